"""Rows, and what they mean."""

from __future__ import annotations

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.find_batch.batch_text import as_json, conclusion, header, heading, row
from pytest_ddpscale.find_batch.batch_trial import BatchTrial
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from tests.approved import assert_approved

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
    lines = [heading(PLAN, 0.9, "of each GPU"), header(PLAN), *map(row, TRIALS), *conclusion(PLAN, 24, TRIALS, 8, 1024)]
    lines += conclusion(PLAN, 16, near, 8, 16) + conclusion(PLAN, 8, [fitting(8, 2, 90.0), over], 8, 16)
    lines += conclusion(PLAN, None, [BatchTrial(8, False, WHY)], 8, 16)
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
