"""JUnit XML is never greener than the judgement."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from xml.etree import ElementTree

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
from tests.rows import rows

# What is written of that which Jenkins's junit-10.xsd allows: attributes of each element.
WRITTEN = {
    "testsuites": "name tests failures errors", "testsuite": "name tests failures errors skipped", "properties": "",
    "property": "name value", "testcase": "classname name", "system-out": "",
    **dict.fromkeys(("failure", "error", "skipped"), "type message"),
}  # fmt: skip


@rows(
    ("verdict", "told"),
    [
        (PASSED, ""), (FAILED, "failure failed"), (INCONCLUSIVE, "failure inconclusive"),
        (NOT_MEASURED, "failure inconclusive"), (ERROR, "error error"), (WARNED, "skipped warn"),
        (replace(INCONCLUSIVE, severity="warn"), "skipped warn"), (replace(ERROR, severity="warn"), "error error"),
        (replace(NOT_MEASURED, severity="warn"), "failure inconclusive"),
    ],
)  # fmt: skip
def test_each_outcome_has_its_element(verdict: Verdict, told: str) -> None:
    case = ElementTree.fromstring(render_junit(judgement_with(verdict))).find("testsuite/testcase")
    assert case is not None
    assert [f"{one.tag} {one.get('type')}" for one in case if one.tag != "system-out"] == [told] * bool(told)


def test_a_suite_counts_each_and_a_requirement_that_may_stay_unmeasured_is_skipped() -> None:
    [suite] = ElementTree.fromstring(render_junit(JUDGEMENT))
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["8", "3", "1", "1"]
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
    for element in ElementTree.fromstring(render_junit(judgement).encode("utf-8")).iter():
        assert {*element.keys()} == {*WRITTEN[element.tag].split()}


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
