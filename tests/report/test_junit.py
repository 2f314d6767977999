"""JUnit XML is never greener than the judgement."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.report.junit import render_junit
from pytest_ddpscale.results.verdicts import Verdict
from tests.builders.judgements import (
    ALL,
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


def _testcase(verdict: Verdict) -> Element:
    found = ElementTree.fromstring(render_junit(judgement_with(verdict))).find("testsuite/testcase")
    assert found is not None
    return found


def _results(verdict: Verdict) -> list[tuple[str, str | None]]:
    return [(child.tag, child.get("type")) for child in _testcase(verdict) if child.tag != "properties"]


def test_one_testcase_per_verdict_named_after_it() -> None:
    root = ElementTree.fromstring(render_junit(JUDGEMENT))
    assert [(case.get("classname"), case.get("name")) for case in root.iter("testcase")] == [
        (f"ddpscale.{verdict.metric}", verdict.id) for verdict in ALL
    ]
    suite = root.find("testsuite")
    assert suite is not None
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["8", "3", "1", "1"]
    assert suite.find("properties/property[@name='outcome']").get("value") == "rejected"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (PASSED, []),
        (FAILED, [("failure", "failed")]),
        (INCONCLUSIVE, [("failure", "inconclusive")]),
        (NOT_MEASURED, [("failure", "inconclusive")]),
        (ERROR, [("error", "error")]),
        (WARNED, [("skipped", "warn")]),
        (replace(INCONCLUSIVE, severity="warn"), [("skipped", "warn")]),
        (replace(ERROR, severity="warn"), [("error", "error")]),
        (replace(NOT_MEASURED, severity="warn"), [("failure", "inconclusive")]),
    ],
)
def test_each_outcome_has_its_element(verdict: Verdict, expected: list[tuple[str, str]]) -> None:
    assert _results(verdict) == expected


def test_properties_carry_the_numbers_unrounded() -> None:
    properties = {p.get("name"): p.get("value") for p in _testcase(PASSED).iter("property")}
    assert properties == {
        "value": "0.9745",
        "interval": "[0.9712, 0.9771]",
        "bound": "at_least 0.96",
        "unit": "fraction",
        "outcome": "passed",
        "launches": "1",
    }
    several = replace(PASSED, launches=3, launch_sd=0.0125)
    properties = {p.get("name"): p.get("value") for p in _testcase(several).iter("property")}
    assert (properties["launches"], properties["launch_sd"]) == ("3", "0.0125")


def test_failure_says_why_and_who() -> None:
    failure = _testcase(FAILED).find("failure")
    assert failure is not None
    assert failure.get("message") == (
        "FAIL: the interval lies below the bound (1159.2 img/s, at most 1164.0 img/s, bound ≥ 1180 img/s)"
    )
    assert "GPU 3 (GPU-5d3a91c2-77aa-4be1-9d0f-1f0c2d9f6a3b) on node7" in (failure.text or "")


def test_warning_says_that_it_is_one() -> None:
    skipped = _testcase(WARNED).find("skipped")
    assert skipped is not None
    assert (skipped.get("message") or "").startswith("warn: the interval lies below")


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
