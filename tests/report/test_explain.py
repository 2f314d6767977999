"""A failing item says everything that is needed to act on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.report.explain import explain
from pytest_ddpscale.results.verdicts import Verdict
from tests.builders.judgements import (
    ALL,
    ERROR,
    FAILED,
    INCONCLUSIVE,
    NOT_MEASURED,
    PASSED,
    UUID,
    WARNED,
    hostile_judgement,
)

WHERE = "thresholds.yaml:42"
RERUN = "pytest --gpu-sku=a100-sxm4-80gb 'test_scaling.py::test_throughput[r-8gpu]'"


def lines(verdict: Verdict) -> list[str]:
    return explain(verdict, WHERE, RERUN).splitlines()


def test_a_failure_in_full() -> None:
    assert lines(replace(FAILED, culprits=FAILED.culprits[:1])) == [
        "FAIL  throughput_per_gpu[resnet152-fp16-8gpu]: the interval lies below the bound",
        "  value     1159.2 img/s",
        "  limits    at most 1164.0 img/s  (95% confidence, 12 rounds)",
        "  bound     ≥ 1180 img/s  (severity fail, thresholds.yaml:42)",
        "  margin    −1.8 %",
        "  note      power limit 300 W on node7",
        f"  blame     GPU 3 ({UUID}) on node7: 1.04× the median time without communication in 12 of 12 rounds",
        f"  rerun     {RERUN}",
    ]


def test_every_culprit_and_note_has_a_line() -> None:
    found = lines(replace(FAILED, notes=("one", "two")))
    assert sum(line.startswith("  blame ") for line in found) == len(FAILED.culprits) == 4
    assert [line for line in found if line.startswith("  note ")] == ["  note      one", "  note      two"]


@pytest.mark.parametrize("verdict", [NOT_MEASURED, ERROR])
def test_without_a_value_there_are_neither_limits_nor_margin(verdict: Verdict) -> None:
    found = lines(verdict)
    assert not [line for line in found if line.startswith(("  value", "  limits", "  margin"))]
    assert verdict.reason in found[0]


def test_without_an_interval_the_value_still_shows() -> None:
    found = lines(replace(INCONCLUSIVE, interval=None))
    assert any(line.startswith("  value ") for line in found)
    assert not any(line.startswith("  limits ") for line in found)


def test_a_warning_says_that_it_only_warns_and_that_nothing_is_published() -> None:
    found = lines(WARNED)
    assert found[0].startswith("WARN  strong_scaling_speedup[")
    assert f"  bound     ≥ 6.5×  (severity warn, {WHERE})" in found
    assert "  note      the bound is provisional: no published figure stands behind it" in found


@pytest.mark.parametrize("verdict", ALL)
def test_every_explanation_ends_with_the_command_that_measures_it_again(verdict: Verdict) -> None:
    assert lines(verdict)[-1] == f"  rerun     {RERUN}"
    assert any(WHERE in line for line in lines(verdict))


def test_a_published_bound_needs_no_excuse() -> None:
    assert not any("provisional" in line for line in lines(PASSED))


def test_hostile_text_adds_no_line_and_moves_no_cursor() -> None:
    hostile = hostile_judgement().verdicts[0]
    found = lines(hostile)
    assert len(found) == len(lines(replace(FAILED, culprits=FAILED.culprits[:1])))
    assert all(line.isprintable() for line in found)
