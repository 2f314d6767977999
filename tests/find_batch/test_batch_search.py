"""Which batches are tried, and what is said of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.find_batch.find_max_batch import MULTIPLE, as_json, conclusion, heading, largest_fitting, row
from pytest_ddpscale.find_batch.trial import BatchTrial
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from tests.approved import assert_approved

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


GIB = 2**30
ARMS = Arm("alone", 1, 8), Arm("ddp", 4, 8)
PLAN = Plan("cpu", "cpu", (Study("weak", Workload("r18", ImageFamily("resnet18"), "bf16", 8), ARMS, 1, 0.1, 0.0),))
WHY = "the kernel ended rank 1 on n1 for lack of memory"


def fitting(batch: int, gib: float, samples_per_s: float) -> BatchTrial:
    return BatchTrial(batch, True, "", round(gib * GIB), 10 * GIB, samples_per_s)


TRIALS = (fitting(8, 2, 90.0), fitting(16, 4, 120.0), BatchTrial(32, False, WHY), fitting(24, 6, 100.0))


def test_people_are_told_what_was_approved() -> None:
    near = (fitting(8, 2, 100.5), fitting(16, 4, 100.0))  # one per cent of a few steps is no difference
    over = BatchTrial(16, False, "more than 90% of the memory", round(9.5 * GIB), 10 * GIB, 100.0)
    lines = [*heading(PLAN, 0.9, "of each GPU"), *map(row, TRIALS), *conclusion(PLAN, 24, TRIALS, 1024)]
    lines += conclusion(PLAN, 16, near, 16) + conclusion(PLAN, 8, [fitting(8, 2, 90.0), over], 16)
    lines += conclusion(PLAN, None, [BatchTrial(8, False, WHY)], 16)
    assert_approved("find-max-batch.txt", "\n".join(lines) + "\n")


def test_for_programs() -> None:
    found = as_json("r18", PLAN, 24, TRIALS)
    assert {name: found[name] for name in ("workload", "ranks", "arms", "largest", "fastest")} == {
        "workload": "r18", "ranks": 4, "arms": ["alone", "ddp@4"], "largest": 24, "fastest": 16,
    }  # fmt: skip
    assert found["trials"][2] == {
        "batch": 32, "fits": False, "why_not": WHY, "peak_bytes": None, "limit_bytes": None,
        "samples_per_s_per_gpu": None,
    }  # fmt: skip
