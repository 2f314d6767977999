"""JUnit XML: a test case per verdict, for dashboards that read nothing else.

The document is valid under Jenkins's junit-10.xsd, which most tools expect. That schema has no properties for a test
case, so its numbers are lines of ``system-out``, and no count of skipped tests over all suites.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report import digits, text
from pytest_ddpscale.report.causes import counts_text, headline
from pytest_ddpscale.run.run_json import WATERMARK
from pytest_ddpscale.run.verdicts import Judgement, Verdict


def render_junit(judgement: Judgement) -> str:
    """The judgement as a JUnit XML document.

    Failures and errors together equal the blockers; a blocker that is not a requirement becomes a test case of its own.
    An undecided requirement is a failure, because JUnit has no word for it and dashboards show passed and skipped tests
    as green. Anything else that did not pass is ``skipped``: it only warns, is waived, or may be missing.
    """
    suites = Element("testsuites", name="ddpscale")
    suite = SubElement(suites, "testsuite", name=f"ddpscale.{text.one_line(judgement.sku)}")
    properties = SubElement(suite, "properties")
    _property(properties, "headline", headline(judgement))
    _property(properties, "requirements", counts_text(judgement))
    _property(properties, "sku", judgement.sku)
    _property(properties, "outcome", judgement.outcome)
    _property(properties, "reason", text.headline(judgement))
    for one in judgement.lowered:
        was, now = digits.lowered_bounds(one)
        _property(properties, "lowered", f"{one.requirement}: {was} → {now}")
    for note in (*([WATERMARK] if judgement.simulated else []), *judgement.notes):
        _property(properties, "note", note)
    for verdict in judgement.verdicts:
        _testcase(suite, verdict, blocks=judgement.is_blocked_by(verdict))
    for blocker in judgement.other_blockers:
        name, reason = text.one_line(blocker.name), text.one_line(blocker.reason)
        testcase = SubElement(suite, "testcase", classname=f"ddpscale.{blocker.kind}", name=name)
        SubElement(testcase, "failure", type=judgement.outcome, message=reason)
    first = next((one for one in suite.iterfind("testcase/*") if one.tag in ("failure", "error")), None)
    if first is not None:
        first.text = "\n".join(filter(None, (headline(judgement), first.text)))
    counts = {
        "tests": len(suite.findall("testcase")),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    for name, count in counts.items():
        suite.set(name, str(count))
        if name != "skipped":
            suites.set(name, str(count))
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _testcase(suite: Element, verdict: Verdict, *, blocks: bool) -> None:
    classname = f"ddpscale.{verdict.metric}"
    testcase = SubElement(suite, "testcase", classname=classname, name=text.one_line(verdict.id))
    if not verdict.passed:
        _not_passed(testcase, verdict, blocks=blocks)
    SubElement(testcase, "system-out").text = "\n".join(_numbers(verdict))


def _numbers(verdict: Verdict) -> Iterator[str]:
    """``name: value``, unrounded."""
    if verdict.value is not None:
        yield f"value: {float(verdict.value)!r}"
    if verdict.interval is not None:
        low, high = verdict.interval
        yield f"interval: [{float(low)!r}, {float(high)!r}]"
    for key, number in verdict.bound.items():
        yield f"bound: {key} {float(number)!r}"
    yield f"unit: {verdict.unit}"
    if verdict.launch_sd is not None:
        yield f"launch_sd: {verdict.launch_sd!r}"
    yield f"outcome: {verdict.outcome}"


def _not_passed(testcase: Element, verdict: Verdict, *, blocks: bool) -> None:
    message = _message(verdict)
    if verdict.is_waived:
        element = SubElement(testcase, "skipped", type="waived", message=f"{text.waiver_text(verdict)}: {message}")
    elif not blocks:
        word = "warn" if verdict.severity == "warn" else "allowed"
        element = SubElement(testcase, "skipped", type=word, message=f"{word}: {message}")
    elif verdict.outcome == "error":
        element = SubElement(testcase, "error", type="error", message=message)
    else:
        kind = "failed" if verdict.outcome == "failed" else "inconclusive"
        element = SubElement(testcase, "failure", type=kind, message=message)
    is_counted_once = METRICS[verdict.metric].subject == "check"  # and has no error
    basis = "" if is_counted_once else f", {text.basis_text(verdict)}"
    value = f"value {_value_and_limits(verdict)}{basis}"
    element.text = "\n".join([value, *text.remarks(verdict, in_full=True)])


def _value_and_limits(verdict: Verdict) -> str:
    limits = digits.limits_text(verdict)
    return digits.point_text(verdict) + (f", {limits}" if limits != digits.ABSENT else "")


def _message(verdict: Verdict) -> str:
    measured = f"{_value_and_limits(verdict)}, bound {digits.bound_text(verdict)}" if verdict.value is not None else ""
    word = text.verdict_word(verdict)
    start = text.reason_text(verdict) if word in ("WARN", "WAIVED") else f"{word}: {text.reason_text(verdict)}"
    return f"{start} ({measured})" if measured else start


def _property(properties: Element, name: str, value: str) -> None:
    SubElement(properties, "property", name=name, value=text.one_line(value))
