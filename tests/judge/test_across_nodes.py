"""Requirements that go beyond a node: judged once, on the ranks that were planned."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.judge.deciding import arms_needed
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure, plan_of
from tests.judge.nodes import (
    ROUNDS,
    Slowness,
    equal,
    measure_nodes,
    nodes_evidence,
    plan_of_nodes,
    slow_node,
)
from tests.rows import rows

# Of three nodes with two ranks each: the first two.
EFFICIENCY = make_case("weak_scaling_efficiency", 0.9, world_size=4)
THROUGHPUT = make_case("throughput_per_gpu", 90.0, world_size=4)
SPREAD = make_case("throughput_per_gpu", 90.0, world_size=3, placement="spread")


def judge_across(case: Case, slowness: Slowness = equal, nodes: int = 3) -> Verdict:
    plan = plan_of_nodes([case], nodes, 2)
    return judge(case, nodes_evidence(plan, measure_nodes(plan, slowness)), CONFIDENCE)


def test_the_baseline_is_the_first_node_and_not_what_others_did_alone() -> None:
    plan = plan_of_nodes([EFFICIENCY], 3, 2)
    found = measure_nodes(plan)
    fast_elsewhere = [
        replace(one, block_s=one.block_s / 2, step_s=()) if (one.arm, one.host) == ("alone", "n1") else one
        for one in found
    ]
    expected = judge(EFFICIENCY, nodes_evidence(plan, found), CONFIDENCE)
    verdict = judge(EFFICIENCY, nodes_evidence(plan, fast_elsewhere), CONFIDENCE)
    assert (verdict.value, verdict.outcome) == (expected.value, "passed")


def test_a_slow_node_that_took_no_part_is_not_blamed() -> None:
    plan = plan_of_nodes([THROUGHPUT], 3, 2)
    found = [
        replace(one, block_s=one.block_s * 1.5, step_s=()) if one.arm == "ddp@4" else one
        for one in measure_nodes(plan, slow_node(2))
    ]
    verdict = judge(THROUGHPUT, nodes_evidence(plan, found), CONFIDENCE)
    assert verdict.outcome == "failed"
    assert verdict.culprits == ()


@rows("which", range(3))
def test_a_slow_node_fails_an_efficiency_of_all_wherever_it_is(which: int) -> None:
    verdict = judge_across(SPREAD, slow_node(which))
    assert verdict.outcome == "failed"
    assert [(c.kind, c.host) for c in verdict.culprits] == [("node", f"n{which}")]


def test_packed_ranks_do_not_stand_in_for_spread_ones() -> None:
    packed = make_case("throughput_per_gpu", 90.0, world_size=3)
    plan = plan_of_nodes([packed], 3, 2)
    verdict = judge(SPREAD, nodes_evidence(plan, measure_nodes(plan)), CONFIDENCE)
    assert verdict.outcome == "not_measured"


def test_nothing_is_spread_over_one_node() -> None:
    plan = plan_of([SPREAD])
    measured = evidence_of_plan(plan, [one for study in plan.studies for one in measure(study, ROUNDS)])
    verdict = judge(SPREAD, measured, CONFIDENCE)
    assert verdict.outcome == "not_measured"
    assert "at least 2 nodes" in verdict.reason


def test_arms_for_the_report_alone_are_dropped_as_soon_as_nobody_needs_them() -> None:
    plan = plan_of_nodes([EFFICIENCY], 3, 2)
    assert [arm.name for arm in plan.studies[0].arms] == ["alone", "ddp@2", "ddp@4", "each@6"]
    open_still = [
        replace(one, block_s=one.block_s * (1 + one.round % 2), step_s=()) if one.arm == "ddp@4" else one
        for one in measure_nodes(plan)
    ]
    evidence = nodes_evidence(plan, open_still)
    arms = [arm.name for arm in plan.studies[0].arms]
    assert judge(EFFICIENCY, evidence, CONFIDENCE).is_open
    assert arms_needed(arms, [EFFICIENCY]) == ["alone", "ddp@4"]


def test_arms_are_named_by_their_placement() -> None:
    assert SPREAD.question.arms == [Arm("ddp", 3, 4, "spread")]
    assert SPREAD.question.arms[0].name == "ddp@3-spread"
