"""The plan says what will be trained, how long that takes and what it occupies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.plan.estimate import PAIRS_ROUND_S, STARTUP_S, estimate, probes_seconds, study_seconds
from pytest_ddpscale.plan.pairing import pair_study
from pytest_ddpscale.plan.probe import Probe, ProbeStudy
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.plan_text import plan_lines, shortened

WORKLOAD = Workload("r152", "resnet152", "fp16", 512, global_batch_size=256)
WEAK = Study("weak", WORKLOAD, (Arm("alone", 1, 512), Arm("ddp", 8, 512)), rounds=9, block_s=3.0, warmup_s=10.0)
STRONG = replace(WEAK, scaling="strong", arms=(Arm("alone", 1, 256), Arm("ddp", 8, 32)))
PLAN = Plan("a100", "cuda", (WEAK, STRONG))


def test_a_plan_in_full() -> None:
    whole = estimate(PLAN)
    minutes = study_seconds(WEAK) / 60
    assert plan_lines(PLAN, 5, isolate=False) == [
        f"ddpscale plan for a100: 5 requirements, 2 studies, about {whole.seconds / 60:.1f} min on 8 GPUs "
        f"= {whole.device_hours:.2f} GPU-hours (at most {whole.most_seconds / 60:.1f} min)",
        f"  weak/r152    {minutes:4.1f} min  at most 9 rounds of alone (batch 512), ddp@8 (batch 512)",
        f"  strong/r152  {minutes:4.1f} min  at most 9 rounds of alone (batch 256), ddp@8 (batch 32)",
    ]


def test_a_launch_for_each_study_takes_longer() -> None:
    whole = estimate(PLAN, isolate=True)
    assert f"about {whole.seconds / 60:.1f} min on" in plan_lines(PLAN, 5, isolate=True)[0]
    assert plan_lines(PLAN, 5, isolate=True)[0] != plan_lines(PLAN, 5, isolate=False)[0]


def test_launches_are_said_once_with_what_they_cost_together() -> None:
    studies = tuple(replace(study, rounds=12, launch=launch) for launch in (1, 2, 3) for study in PLAN.studies)
    plan = replace(PLAN, studies=studies, launches=3)
    head, weak, strong = plan_lines(plan, 5, isolate=False)
    whole = estimate(plan)
    assert "2 studies in 3 launches" in head
    assert whole.seconds == whole.most_seconds, "no launch ends early"
    once = STARTUP_S + sum(study_seconds(study, rounds=None) for study in studies[:2])
    assert whole.seconds == pytest.approx(3 * once)
    assert f"{3 * study_seconds(studies[0], rounds=None) / 60:.1f} min  3 launches of 12 rounds of alone" in weak
    assert "3 launches of 12 rounds of alone" in strong


def test_known_speeds_make_the_estimate() -> None:
    slow = {"r152": 10.0}
    head, weak, _ = plan_lines(PLAN, 5, isolate=False, img_per_s=slow)
    assert f"about {estimate(PLAN, img_per_s=slow).seconds / 60:.1f} min" in head
    assert f"{study_seconds(WEAK, slow) / 60:.1f} min" in weak


def test_on_cpu_it_is_cores_and_one_is_not_many() -> None:
    alone = replace(WEAK, arms=WEAK.arms[:1])
    head = plan_lines(Plan("cpu", "cpu", (alone,)), 1, isolate=False)[0]
    assert head.startswith("ddpscale plan for cpu: 1 requirement, 1 study, about ")
    assert " on 1 core = " in head
    assert " core-hours (at most " in head


@pytest.mark.parametrize("isolate", [False, True])
def test_nothing_to_measure_is_said_so(isolate: bool) -> None:
    assert plan_lines(Plan("cpu", "cpu", ()), 0, isolate=isolate) == [
        "ddpscale plan for cpu: 0 requirements, 0 studies, about 0.0 min on 0 cores = 0.00 core-hours (at most 0.0 min)"
    ]


def test_several_nodes_are_said_so() -> None:
    head = plan_lines(replace(PLAN, nodes=3, ranks_per_node=8), 5, isolate=False)[0]
    assert " on 24 GPUs in 3 nodes = " in head


def test_probes_come_first_with_their_names_and_their_time() -> None:
    probes = ProbeStudy((Probe("matmul-fp16"), Probe("all-reduce-32mib", 8)), 16, 0.5)
    head, probed, weak, strong = plan_lines(replace(PLAN, probes=probes), 7, isolate=False)
    assert head.startswith("ddpscale plan for a100: 7 requirements, 2 studies and 2 probes, about ")
    minutes = probes_seconds(probes) / 60
    assert probed == f"  probes       {minutes:4.1f} min  at most 16 rounds of matmul-fp16, all-reduce-32mib@8"
    assert [weak, strong] == plan_lines(PLAN, 7, isolate=False)[1:]


def test_of_probes_alone_the_names_stand_close() -> None:
    plan = Plan("a100", "cuda", (), ranks_per_node=8, probes=ProbeStudy((Probe("matmul-fp16"),), 16, 0.5))
    head, probed = plan_lines(plan, 1, isolate=False)
    assert head.startswith("ddpscale plan for a100: 1 requirement, 0 studies and 1 probe, about ")
    assert " on 8 GPUs = " in head
    assert probed.startswith("  probes  ")


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
