"""JUnit XML: a test case per verdict, for dashboards that read nothing else.

The document is valid under Jenkins's junit-10.xsd, which most tools expect. That schema has no properties for a test
case, so its numbers are lines of ``system-out``, and no count of skipped tests over all suites.
"""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from pytest_ddpscale.report import digits
from pytest_ddpscale.report.causes import counts_text, headline
from pytest_ddpscale.report.explain import explain, verdict_properties
from pytest_ddpscale.report.words.verdicts import bound_in_words, reason_text, waiver_text
from pytest_ddpscale.run.run_json import WATERMARK
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.util.printable import one_line


def render_junit(judgement: Judgement) -> str:
    """The judgement as a JUnit XML document.

    Failures and errors together equal the blockers; a blocker that is not a requirement becomes a test case of its own.
    An undecided requirement is a failure, because JUnit has no word for it and dashboards show passed and skipped tests
    as green. Anything else that did not pass is ``skipped``: it only warns, is waived, or may be missing.
    """
    suites = Element("testsuites", name="ddpscale")
    suite = SubElement(suites, "testsuite", name=f"ddpscale.{one_line(judgement.sku)}")
    facts = [
        ("headline", headline(judgement)),
        ("requirements", counts_text(judgement)),
        ("sku", judgement.sku),
        ("outcome", judgement.outcome),
    ]
    facts += [("note", note) for note in ([WATERMARK] * judgement.simulated + [*judgement.notes])]
    properties = SubElement(suite, "properties")
    for name, value in facts:
        SubElement(properties, "property", name=name, value=one_line(value))
    for verdict in judgement.verdicts:
        _testcase(suite, verdict, blocks=judgement.is_blocked_by(verdict))
    for blocker in judgement.other_blockers:
        name, reason = one_line(blocker.name), one_line(blocker.reason)
        testcase = SubElement(suite, "testcase", classname=f"ddpscale.{blocker.kind}", name=name)
        SubElement(testcase, "failure", type=judgement.outcome, message=reason)
    first = next((case for case in suite.iterfind("testcase/*") if case.tag in ("failure", "error")), None)
    if first is not None:
        first.text = "\n".join(filter(None, (headline(judgement), first.text)))
    for name, kind in (("tests", ""), ("failures", "/failure"), ("errors", "/error"), ("skipped", "/skipped")):
        count = str(len(suite.findall(f"testcase{kind}")))
        suite.set(name, count)
        if name != "skipped":
            suites.set(name, count)
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _testcase(suite: Element, verdict: Verdict, *, blocks: bool) -> None:
    """A failure or an error if it blocks acceptance; else skipped, or passed."""
    testcase = SubElement(suite, "testcase", classname=f"ddpscale.{verdict.metric}", name=one_line(verdict.id))
    if not verdict.passed:
        message = reason_text(verdict)
        if verdict.value is not None:
            message += f" ({digits.point_text(verdict)}, bound {bound_in_words(verdict)})"
        tag = "skipped" if not blocks else "error" if verdict.outcome == "error" else "failure"
        kind = str(verdict.outcome).replace("not_measured", "inconclusive")
        if not blocks:
            kind = "waived" if verdict.is_waived else "warn" if verdict.severity == "warn" else "allowed"
            message = f"{waiver_text(verdict) or kind}: {message}"
        SubElement(testcase, tag, type=kind, message=message).text = explain(verdict)
    properties = verdict_properties(verdict)
    SubElement(testcase, "system-out").text = "\n".join(f"{name}: {value}" for name, value in properties)
