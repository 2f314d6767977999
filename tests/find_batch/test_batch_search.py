"""Which batches are tried, and what is said of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.find_batch.batch_search import as_json, conclusion, fastest, heading, largest_fitting, row
from pytest_ddpscale.find_batch.batch_trial import BatchTrial
from pytest_ddpscale.find_batch.find_max_batch import MULTIPLE
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from tests.approved import assert_approved

GIB = 2**30
ARMS = Arm("alone", 1, 8), Arm("ddp", 4, 8)
PLAN = Plan("cpu", "cpu", (Study("weak", Workload("r18", ImageFamily("resnet18"), "bf16", 8), ARMS, 1, 0.1, 0.0),))
WHY = "the kernel ended rank 1 on n1 for lack of memory"
multiples = st.integers(1, 300).map(lambda number: MULTIPLE * number)


def tried(largest: int, least: int, most: int) -> tuple[int | None, list[int]]:
    """What is found, and what was tried for it, where batches up to `largest` fit."""
    asked: list[int] = []

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= largest

    return largest_fitting(fits, least, most), asked


def test_batches_are_doubled_and_then_halved_between() -> None:
    for largest, least, most, asked in [
        (83, 8, 1024, [8, 16, 32, 64, 128, 96, 80, 88]),
        (64, 8, 1024, [8, 16, 32, 64, 128, 96, 80, 72]),
        (8, 8, 1024, [8, 16]),
        (4, 8, 1024, [8]),
        (9999, 8, 24, [8, 16, 24]),
        (30, 24, 24, [24]),
        (100, 24, 1024, [24, 48, 96, 192, 144, 120, 104]),
    ]:
        assert tried(largest, least, most)[1] == asked


@given(largest=st.integers(0, 2500), least=multiples, most=multiples)
def test_the_largest_multiple_of_eight_is_found(largest: int, least: int, most: int) -> None:
    most = max(least, most)
    found, asked = tried(largest, least, most)
    assert len(set(asked)) == len(asked)
    assert all(batch % MULTIPLE == 0 and least <= batch <= most for batch in asked)
    if found is None:
        assert largest < least
        return
    assert found <= largest
    assert found == most or found + MULTIPLE > largest
    assert found == most or found + MULTIPLE in asked  # so that the next one was seen not to fit


def fitting(batch: int, gib: float, samples_per_s: float | None = None) -> BatchTrial:
    return BatchTrial(batch, True, "", round(gib * GIB), 10 * GIB, samples_per_s)


def test_people_and_programs_are_told_what_was_approved() -> None:
    trials = (fitting(8, 2, 90.0), fitting(16, 4, 120.0), BatchTrial(32, False, WHY), fitting(24, 6, 100.0))
    near = (fitting(8, 2, 100.5), fitting(16, 4, 100.0))  # one per cent of a few steps is no difference
    over = BatchTrial(16, False, "more than 90% of the memory", round(9.5 * GIB), 10 * GIB, 100.0)
    lines = [*heading(PLAN, 0.9, "of each GPU"), *map(row, trials), *conclusion(PLAN, 24, trials, 1024)]
    lines += conclusion(PLAN, 16, near, 16) + conclusion(PLAN, 8, [fitting(8, 2, 90.0), over], 16)
    lines += conclusion(PLAN, None, [BatchTrial(8, False, WHY)], 16)
    lines += conclusion(PLAN, 8, [BatchTrial(8, True, "", 5)], 8)  # of a size that nobody knows
    lines += map(repr, as_json(PLAN, 24, trials[:3]).items())
    assert_approved("find-max-batch.txt", "\n".join(lines) + "\n")


def test_the_fastest_is_one_that_fits() -> None:
    trials = [fitting(8, 1, 5.0), fitting(16, 1, 7.0), fitting(24, 1)]
    assert fastest([*trials, BatchTrial(32, False, samples_per_s=9.0)]) == trials[1]
    assert fastest([]) is None
