"""The plan says what will be trained, how long that takes and what it occupies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import PAIRS_ROUND_S, estimate, study_times
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.pairing import pair_study
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.listings import plan_lines, shortened

WORKLOAD = Workload("r152", ImageFamily("resnet152"), "fp16", 512, global_batch_size=256)
WEAK = Study("weak", WORKLOAD, (Arm("alone", 1, 512), Arm("ddp", 8, 512)), rounds=9, block_s=3.0, warmup_s=10.0)
STRONG = replace(WEAK, scaling="strong", arms=(Arm("alone", 1, 256), Arm("ddp", 8, 32)))
PLAN = Plan("a100", "cuda", (WEAK, STRONG))


def test_known_speeds_make_the_estimate() -> None:
    slow = {"r152": 10.0}
    head, weak, _ = plan_lines(PLAN, 5, isolate=False, samples_per_s=slow)
    assert f"about {estimate(PLAN, samples_per_s=slow).seconds / 60:.1f} min" in head
    assert f"{study_times(PLAN, slow)[WEAK.id].seconds(WEAK.rounds) / 60:.1f} min" in weak


def test_pairs_of_nodes_come_last_with_the_rounds_that_they_take_at_least() -> None:
    plan = replace(PLAN, nodes=4, ranks_per_node=8, pairs=pair_study("cuda"))
    assert plan_lines(plan, 5, isolate=False)[-1] == "  pairs         0.1 min  at least 3 rounds of pairs of nodes"
    without = estimate(replace(plan, pairs=None))
    assert estimate(plan).seconds == pytest.approx(without.seconds + 3 * PAIRS_ROUND_S)
    assert estimate(plan).most_seconds == pytest.approx(without.most_seconds + 11 * PAIRS_ROUND_S)


def test_a_long_plan_is_cut_short_where_an_outcome_follows() -> None:
    lines = [f"line {number}" for number in range(8)]
    assert shortened(lines) == [*lines[:5], "  and 3 more (-v, or --collect-only)"]
    assert shortened(lines[:6]) == lines[:6], "one line is not replaced by another"
