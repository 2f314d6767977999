"""A ratio to a constant of the file and its throughput: two items that decide by themselves, counted as one."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from xml.etree import ElementTree

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pytest_ddpscale.report.cause import causes
from pytest_ddpscale.run.verdicts import Judgement, read_judgement
from pytest_ddpscale.thresholds.waiver import today
from tests.plugin.site import REQUIREMENTS, Site, outcome_line, output_of, thresholds_text
from tests.plugin.test_generation_ratio import RUN_RATIO, reference

THROUGHPUT, RATIO = "throughput_per_gpu[resnet152-fp16-1gpu]", "generation_ratio[resnet152-fp16-1gpu-vs-reference-gpu]"
ALL = len(REQUIREMENTS)
# A GPU of 1350 img/s is 2.7 times the reference; the measured one reaches 1189.1.
SLOW = (("{1: 500}", "{1: 1350}"), ("bound: 1130", "bound: 1300"))
SLOW_RATIO = (("{1: 2.4}", "{1: 2.7}"), ("bound: 2.2", "bound: 2.5"))
WARNS = (("because: made up}", "because: made up, severity: warn}"),)


def asked(site: Site, *changes: tuple[str, str], more: tuple[str, ...] = ()) -> None:
    """The site's thresholds with these places of the two rows changed, and further rows."""
    rows = dict(REQUIREMENTS)
    for item in (f"test_{THROUGHPUT}", f"test_{RATIO}"):
        for old, new in changes:
            rows[item] = rows[item].replace(old, new)
    site.write("thresholds.yaml", thresholds_text([*rows.values(), *more]))


def judgement_of(site: Site) -> Judgement:
    return read_judgement(site.path / "measured" / "verdicts.json")


def assert_counts(site: Site, **outcomes: int) -> None:
    """In metrics.prom, and nothing is left over."""
    text = (site.path / "measured" / "metrics.prom").read_text(encoding="utf-8")
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    found = {one.labels["outcome"]: one.value for one in samples if one.name == "ddpscale_requirements"}
    assert {name: count for name, count in found.items() if count} == outcomes
    # Programs still see every requirement.
    each = Counter(one.labels["outcome"] for one in samples if one.name == "ddpscale_requirement_outcome" and one.value)
    assert sum(each.values()) == len(judgement_of(site).verdicts)


def junit_counts(site: Site) -> tuple[str | None, str | None]:
    suite = ElementTree.parse(site.path / "measured" / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    return suite.get("tests"), suite.get("failures")


@pytest.fixture
def measured(site: Site) -> Site:
    """A site with a run, in which one GPU reaches 1189.5 img/s: 2.38 times the reference."""
    site.measured()
    return site


def test_both_pass_as_one_requirement_whose_line_has_the_ratio(measured: Site) -> None:
    result = measured.judge("-v")
    result.assert_outcomes(passed=ALL)
    assert outcome_line(result) == f"ACCEPTED: {ALL - 1} of {ALL - 1} requirements passed"
    assert f"{ALL - 1} of {ALL - 1} requirements passed" in result.outlines
    lines = [line.strip() for line in result.outlines]
    [row] = [number for number, line in enumerate(lines) if line.startswith(THROUGHPUT) and line.endswith("PASS")]
    assert lines[row + 1] == "2.379× reference-gpu; bound ≥ 2.2×"
    report = (measured.path / "measured" / "report.html").read_text(encoding="utf-8")
    assert "2.379× reference-gpu; bound ≥ 2.2×</li>" in report
    [ratio] = [one for one in judgement_of(measured).verdicts if one.id == RATIO]
    assert ratio.counts_with == THROUGHPUT
    assert junit_counts(measured) == (str(ALL), "0")
    assert_counts(measured, passed=ALL - 1)


def test_a_ratio_that_fails_alone_fails_the_pair_and_the_run(measured: Site) -> None:
    asked(measured, *SLOW_RATIO)
    result = measured.judge("-v")
    result.assert_outcomes(passed=ALL - 1, failed=1)
    assert outcome_line(result) == (
        "REJECTED: 11.9 % below the reference throughput (2.379× reference-gpu; bound ≥ 2.5×: FAIL); "
        "whether all GPUs are alike was not measured"
    )
    judged = judgement_of(measured)
    assert judged.reason == f"1 of {ALL - 1} requirements failed: {RATIO}"
    assert [one.name for one in judged.blockers] == [RATIO]
    assert f"1 of {ALL - 1} requirements failed, {ALL - 2} passed" in result.outlines
    assert "2.379× reference-gpu; bound ≥ 2.5×: FAIL" in output_of(result)
    assert_counts(measured, passed=ALL - 2, failed=1)


def test_both_fail_as_one_failure_with_one_cause_that_has_both(measured: Site) -> None:
    asked(measured, *SLOW, *SLOW_RATIO)
    result = measured.judge()
    result.assert_outcomes(passed=ALL - 2, failed=2)
    assert outcome_line(result) == (
        "REJECTED: 11.9 % below the reference throughput (2.379× reference-gpu; bound ≥ 2.5×); "
        "whether all GPUs are alike was not measured"
    )
    judged = judgement_of(measured)
    assert judged.reason == f"1 of {ALL - 1} requirements failed: {THROUGHPUT}"
    assert {one.name for one in judged.blockers} == {THROUGHPUT, RATIO}, "each blocks by itself"
    [cause] = causes(judged)
    assert cause.explains == {THROUGHPUT, RATIO}
    assert any(line.startswith(f"1 of {ALL - 1} requirements failed, {ALL - 2} passed") for line in result.outlines)
    assert "2.379× reference-gpu; bound ≥ 2.5×" in [line.strip() for line in result.outlines]
    assert junit_counts(measured) == (str(ALL), "2"), "a program sees every requirement"
    report = (measured.path / "measured" / "report.md").read_text(encoding="utf-8")
    assert "This explains 1 of 1 failure." in report
    assert_counts(measured, passed=ALL - 2, failed=1)


def test_a_throughput_that_fails_alone_shows_its_ratio(measured: Site) -> None:
    asked(measured, *SLOW)
    result = measured.judge()
    result.assert_outcomes(passed=ALL - 1, failed=1)
    assert "2.379× reference-gpu; bound ≥ 2.2×: PASS" in outcome_line(result)
    assert_counts(measured, passed=ALL - 2, failed=1)


def test_a_ratio_that_only_warns_makes_the_pair_a_warning(measured: Site) -> None:
    asked(measured, *SLOW_RATIO, *WARNS)
    result = measured.judge()
    assert outcome_line(result) == f"ACCEPTED: {ALL - 2} of {ALL - 1} requirements passed, 1 warned"
    assert_counts(measured, passed=ALL - 2, failed=1)


def test_a_ratio_without_a_row_on_its_throughput_counts_by_itself(measured: Site) -> None:
    rows = [row for item, row in REQUIREMENTS.items() if item != f"test_{THROUGHPUT}"]
    measured.write("thresholds.yaml", thresholds_text(rows))
    result = measured.judge()
    assert outcome_line(result) == f"ACCEPTED: {ALL - 1} of {ALL - 1} requirements passed"
    assert all(not one.counts_with for one in judgement_of(measured).verdicts)


def test_a_ratio_counts_by_itself_where_its_throughput_is_not_selected(measured: Site) -> None:
    result = measured.judge("-k", "generation_ratio")
    assert outcome_line(result) == f"PARTIAL: 1 of {ALL} requirements passed; {ALL - 1} not selected"
    neither = measured.judge("-k", "weak_scaling")
    assert outcome_line(neither) == f"PARTIAL: 3 of {ALL - 1} requirements passed; {ALL - 4} not selected"


def test_a_ratio_at_another_size_is_other_evidence(measured: Site) -> None:
    at_8 = "{throughput_per_gpu: {8: 500}, of: resnet152-fp16, published: paper, bound: 1130, because: made up}"
    rows = [row for item, row in REQUIREMENTS.items() if item != f"test_{THROUGHPUT}"]
    measured.write("thresholds.yaml", thresholds_text([*rows, at_8]))
    assert outcome_line(measured.judge()) == f"ACCEPTED: {ALL} of {ALL} requirements passed"


def test_a_ratio_to_a_run_counts_by_itself(measured: Site) -> None:
    asked(measured, more=(RUN_RATIO,))
    reference(measured)
    result = measured.judge("-v")
    result.assert_outcomes(passed=ALL + 1)
    assert outcome_line(result) == f"ACCEPTED: {ALL} of {ALL} requirements passed"
    [to_run] = [one for one in judgement_of(measured).verdicts if one.id.endswith("vs-run-old]")]
    assert to_run.counts_with == ""
    assert not re.search(r"^ *2\.00× run-old; bound", output_of(result), re.MULTILINE)


ONE_WAIVED = f"{ALL - 2} of {ALL - 1} requirements met, 1 waived"
TO_REFERENCE = "generation_ratio: 1, versus: reference-gpu"


@pytest.mark.parametrize(
    ("waived", "failing", "outcome", "said"),
    [
        ("throughput_per_gpu: 1", SLOW, "accepted_with_waivers", ONE_WAIVED),
        ("throughput_per_gpu: 1", SLOW + SLOW_RATIO, "rejected", f"1 of {ALL - 1} requirements failed: {RATIO}"),
        (TO_REFERENCE, SLOW_RATIO, "accepted_with_waivers", ONE_WAIVED),
        (TO_REFERENCE, SLOW + SLOW_RATIO, "rejected", f"1 of {ALL - 1} requirements failed: {THROUGHPUT}"),
    ],
)
def test_a_waiver_of_one_waives_nothing_of_the_other(
    measured: Site, waived: str, failing: tuple[tuple[str, str], ...], outcome: str, said: str
) -> None:
    asked(measured, *failing)
    until = today() + timedelta(1)
    row = f"{{{waived}, of: resnet152-fp16, severity: warn, until: {until}, who: A. Name, why: known}}"
    measured.write(
        "own.yaml", f"schema_version: 2\nextends: thresholds.yaml\nskus:\n  tested-gpu:\n    change: [{row}]\n"
    )
    measured.judge("--thresholds=own.yaml")
    judged = judgement_of(measured)
    assert (judged.outcome, judged.reason) == (outcome, said)


def test_what_waits_for_measurements_counts_once(measured: Site) -> None:
    run = measured.path / "measured" / "measurements.jsonl"
    run.unlink()
    measured.judge()
    judged = judgement_of(measured)
    assert judged.outcome == "incomplete"
    assert len(judged.blockers) == ALL
    assert_counts(measured, error=ALL - 1)
