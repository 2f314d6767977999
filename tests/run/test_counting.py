"""What rests on the same evidence is counted once, and never better than the worst of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from pytest_ddpscale.run.counting import counted_as, counted_groups, groups_within, number_of, worst_of
from pytest_ddpscale.run.verdicts import WRONG_DATA, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.judgements import PASSED

THROUGHPUT = replace(PASSED, id="throughput", metric="throughput_per_gpu", unit="img/s", bound={"at_least": 0.9})
RATIO = replace(
    PASSED, id="ratio", metric="generation_ratio", unit="x", bound={"at_least": 0.9}, counts_with="throughput"
)
OTHER = replace(PASSED, id="other")
WAIVER = Waiver("A. Name", "a fan is ordered", date(2026, 12, 31))


def test_a_ratio_is_counted_with_its_throughput_wherever_both_stand() -> None:
    assert counted_groups([RATIO, OTHER, THROUGHPUT]) == [[OTHER], [THROUGHPUT, RATIO]]
    assert counted_as([RATIO, OTHER, THROUGHPUT]) == {
        "throughput": "throughput",
        "ratio": "throughput",
        "other": "other",
    }
    assert number_of([RATIO, OTHER, THROUGHPUT]) == 2


def test_a_ratio_whose_throughput_is_not_there_counts_by_itself() -> None:
    assert counted_groups([OTHER, RATIO]) == [[OTHER], [RATIO]]


def test_two_ratios_of_one_throughput_are_the_same_evidence() -> None:
    older = replace(RATIO, id="ratio to an older one")
    assert counted_groups([THROUGHPUT, RATIO, older]) == [[THROUGHPUT, RATIO, older]]
    assert groups_within([RATIO, older], [THROUGHPUT, RATIO, older]) == [[RATIO, older]]


def test_requirements_without_an_id_or_with_the_same_one_are_not_taken_for_one() -> None:
    nameless = replace(OTHER, id="")
    assert number_of([nameless, nameless, OTHER, OTHER]) == 4


FAILED = replace(RATIO, outcome="failed", value=0.5)
WARNED = replace(FAILED, severity="warn")
OPEN = replace(RATIO, outcome="inconclusive")
MISSING = replace(RATIO, outcome="not_measured", value=None)
ERROR = replace(MISSING, outcome="error")
WAIVED = replace(FAILED, waiver=WAIVER)
WRONG = replace(WARNED, flags=(WRONG_DATA,))
# The worst first: what blocks, a waived failure, what only warns.
IN_ORDER = (FAILED, ERROR, MISSING, OPEN, WAIVED, WARNED, RATIO)


@pytest.mark.parametrize("worse", range(len(IN_ORDER) - 1))
def test_a_group_counts_as_the_worst_of_it(worse: int) -> None:
    for better in IN_ORDER[worse + 1 :]:
        assert worst_of([better, IN_ORDER[worse]]) is IN_ORDER[worse]
        assert worst_of([IN_ORDER[worse], better]) is IN_ORDER[worse]


def test_wrong_data_blocks_though_its_requirement_only_warns() -> None:
    assert worst_of([WAIVED, WRONG]) is WRONG
    assert worst_of([OPEN, WRONG]) is WRONG


def test_what_may_stay_unmeasured_is_not_worse_than_a_failure_that_somebody_signed_for() -> None:
    assert worst_of([MISSING, WAIVED], allows_unmeasured=True) is WAIVED
    assert worst_of([THROUGHPUT, MISSING], allows_unmeasured=True) is MISSING


def test_of_two_alike_the_group_counts_as_the_throughput() -> None:
    failed: Verdict = replace(THROUGHPUT, outcome="failed", value=0.5)
    assert worst_of([failed, FAILED]) is failed
