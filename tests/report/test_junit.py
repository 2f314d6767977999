"""JUnit XML is never greener than the judgement."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import date
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.report.junit import render_junit
from pytest_ddpscale.run.verdicts import Blocker, Judgement, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.judgements import (
    ACCEPTED,
    ERROR,
    FAILED,
    HOSTILE,
    INCONCLUSIVE,
    JUDGEMENT,
    NOT_MEASURED,
    PASSED,
    WARNED,
    hostile_judgement,
    judgement_with,
)

# What Jenkins's junit-10.xsd allows: attributes, children, and whether text may be inside.
_MESSAGE: tuple[frozenset[str], frozenset[str], bool] = (frozenset({"type", "message"}), frozenset(), True)
_COUNTED = frozenset({"name", "time", "tests", "failures", "errors"})
_OUTPUT = frozenset({"system-out", "system-err"})
ALLOWED = {
    "testsuites": (_COUNTED, frozenset({"testsuite"}), False),
    "testsuite": (
        _COUNTED | {"group", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
        _OUTPUT | {"testsuite", "properties", "testcase"},
        False,
    ),
    "testcase": (
        frozenset({"name", "time", "classname", "group"}),
        _OUTPUT | {"skipped", "error", "failure"},
        False,
    ),
    "properties": (frozenset(), frozenset({"property"}), False),
    "property": (frozenset({"name", "value"}), frozenset(), False),
    **dict.fromkeys(("failure", "error", "skipped"), _MESSAGE),
    **dict.fromkeys(_OUTPUT, (frozenset[str](), frozenset[str](), True)),
}
REQUIRED = defaultdict(
    frozenset[str],
    testsuite=_COUNTED - {"time"},
    testcase=frozenset({"name"}),
    property=frozenset({"name", "value"}),
)


def _testcase(verdict: Verdict) -> Element:
    found = ElementTree.fromstring(render_junit(judgement_with(verdict))).find("testsuite/testcase")
    assert found is not None
    return found


def _results(verdict: Verdict) -> list[tuple[str, str | None]]:
    return [(child.tag, child.get("type")) for child in _testcase(verdict) if child.tag != "system-out"]


def test_each_outcome_has_its_element() -> None:
    for verdict, expected in [
        (PASSED, []),
        (FAILED, [("failure", "failed")]),
        (INCONCLUSIVE, [("failure", "inconclusive")]),
        (NOT_MEASURED, [("failure", "inconclusive")]),
        (ERROR, [("error", "error")]),
        (WARNED, [("skipped", "warn")]),
        (replace(INCONCLUSIVE, severity="warn"), [("skipped", "warn")]),
        (replace(ERROR, severity="warn"), [("error", "error")]),
        (replace(NOT_MEASURED, severity="warn"), [("failure", "inconclusive")]),
    ]:
        assert _results(verdict) == expected
    allowed = ElementTree.fromstring(render_junit(replace(judgement_with(NOT_MEASURED), allows_unmeasured=True)))
    assert [one.get("type") for one in allowed.iter("skipped")] == ["allowed"]


BLOCKED_BY_A_TEST = replace(ACCEPTED, outcome="rejected", blockers=(Blocker("test", "test_own", "failed"),))
WAIVED = replace(JUDGEMENT, verdicts=(replace(FAILED, waiver=Waiver("me", "known", date(2026, 12, 31))),))


@pytest.mark.parametrize(
    "judgement",
    [ACCEPTED, JUDGEMENT, WAIVED, BLOCKED_BY_A_TEST, hostile_judgement()],
    ids=["accepted", "rejected", "waived", "blocked by a test", "hostile"],
)
def test_nothing_is_written_that_junit_10_xsd_does_not_allow(judgement: Judgement) -> None:
    _assert_allowed(ElementTree.fromstring(render_junit(judgement).encode("utf-8")))


def _assert_allowed(element: Element) -> None:
    attributes, children, holds_text = ALLOWED[element.tag]
    assert REQUIRED[element.tag] <= set(element.keys()) <= attributes
    assert {child.tag for child in element} <= children
    assert holds_text or not (element.text or "").strip()
    for child in element:
        assert not (child.tail or "").strip()
        _assert_allowed(child)


def test_hostile_text_stays_text() -> None:
    rendered = render_junit(hostile_judgement())
    root = ElementTree.fromstring(rendered.encode("utf-8"))
    assert root.find(".//script") is None
    assert "<script>alert(1)</script>" in (root.find(".//testcase").get("name") or "")  # type: ignore[union-attr]
    assert HOSTILE not in rendered


@given(st.text(st.characters(exclude_categories=[])))
def test_any_reason_gives_well_formed_xml(reason: str) -> None:
    judgement = replace(JUDGEMENT, reason=reason, sku=reason, verdicts=(replace(FAILED, reason=reason, id=reason),))
    root = ElementTree.fromstring(render_junit(judgement).encode("utf-8"))
    assert len(list(root.iter("testcase"))) == 1
