"""Rows, and what they mean."""

from __future__ import annotations

from pytest_ddpscale.find_batch.batch_text import HEADER, as_json, conclusion, heading, row
from pytest_ddpscale.find_batch.batch_trial import BatchTrial
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Workload

GIB = 2**30
ARMS = Arm("alone", 1, 8), Arm("ddp", 4, 8)
PLAN = Plan("cpu", "cpu", (Study("weak", Workload("r18", "resnet18", "bf16", 8), ARMS, 1, 0.1, 0.0),))
WHY = "the kernel ended rank 1 on n1 for lack of memory"


def fitting(batch: int, gib: float, img_per_s: float) -> BatchTrial:
    return BatchTrial(batch, True, "", round(gib * GIB), 10 * GIB, img_per_s)


TRIALS = (fitting(8, 2, 90.0), fitting(16, 4, 120.0), BatchTrial(32, False, WHY), fitting(24, 6, 100.0))


def test_rows_stand_below_their_header() -> None:
    assert HEADER == "   batch  fits  peak GiB   share  img/s per GPU"
    assert row(fitting(16, 4, 120.0)) == "      16  yes       4.00    40 %          120.0"
    assert row(TRIALS[2]) == f"      32  no           -       -              -  {WHY}"


def test_what_is_tried_is_said_first() -> None:
    assert heading(PLAN, 0.9, "of each GPU") == (
        "r18 (resnet18, bf16, 224 px, channels_last) on 4 ranks, arms alone, ddp@4: within 90 % "
        "of the memory of each GPU"
    )


def test_the_largest_and_that_it_is_not_the_fastest() -> None:
    assert conclusion(24, TRIALS, 8, 1024) == [
        f"The largest batch is 24 images per GPU (6.00 GiB, 60 %); the next, 32, does not fit: {WHY}.",
        "The fastest batch was 16: 120.0 img/s per GPU, against 100.0 with 24. The largest is not the fastest.",
    ]


def test_one_per_cent_of_a_few_steps_is_no_difference() -> None:
    near = (fitting(8, 2, 100.5), fitting(16, 4, 100.0))
    assert conclusion(16, near, 8, 16) == [
        "The largest batch is 16 images per GPU (4.00 GiB, 40 %); no larger one was tried (--most 16)."
    ]


def test_what_takes_too_large_a_share() -> None:
    over = BatchTrial(16, False, "more than 90% of the memory", round(9.5 * GIB), 10 * GIB, 100.0)
    assert conclusion(8, [fitting(8, 2, 90.0), over], 8, 16) == [
        "The largest batch is 8 images per GPU (2.00 GiB, 20 %); the next, 16, does not fit: it took 95 %."
    ]


def test_nothing_fits() -> None:
    assert conclusion(None, [BatchTrial(8, False, WHY)], 8, 16) == [
        f"No batch fits: with the smallest, 8 images per GPU, {WHY}."
    ]


def test_for_programs() -> None:
    found = as_json("r18", PLAN, 24, TRIALS)
    assert {name: found[name] for name in ("workload", "ranks", "arms", "largest", "fastest")} == {
        "workload": "r18", "ranks": 4, "arms": ["alone", "ddp@4"], "largest": 24, "fastest": 16,
    }  # fmt: skip
    assert found["trials"][2] == {
        "batch": 32, "fits": False, "why_not": WHY, "peak_bytes": None, "limit_bytes": None, "img_per_s_per_gpu": None,
    }  # fmt: skip
