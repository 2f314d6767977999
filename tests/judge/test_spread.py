"""Weak scaling against the slowest GPU: spread alone is excused, and nothing that is not shown to be spread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from pytest_ddpscale.judge.bounds import p_value_of
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.spread import values_against_slowest
from pytest_ddpscale.judge.values import of_launch
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.telemetry import NO_TELEMETRY, TelemetryBlock, telemetry_columns_of
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_nodes import gang_of, telemetry_of_turns
from pytest_ddpscale.simulate.spread import NodeSpread
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.clusters import a100, faults
from tests.builders.judged import CONFIDENCE, evidence_of_plan
from tests.builders.measurements import Measurement, of_ranks
from tests.rows import rows

ROUNDS = 24
SPREAD, SLOWEST = 0.015, 5  # GPU 5 is 3.7 % behind the median
Change = Callable[[Measurement], Measurement | None]
ChangeTelemetry = Callable[[TelemetryBlock], TelemetryBlock | None]


def case_of(gpus: int) -> Case:
    """The packaged requirement on so many GPUs; beyond a node that of 8 GPUs, with their bound."""
    (case,) = (one for one in a100(8).cases if one.id == f"weak_scaling_efficiency[resnet152-fp16-{min(gpus, 8)}gpu]")
    assert isinstance(case, Case)
    if gpus <= 8:
        return case
    return replace(case, world_size=gpus, requirement=replace(case.requirement, world_size=gpus))


def plan_of(gpus: int, with_each: bool = False, ranks: int | None = None) -> Plan:
    """A study of the arms that so many of all ranks need; ddp of all is the last one."""
    case, ranks = case_of(gpus), ranks or gpus
    workload = case.workload
    assert workload.batch_size is not None
    arms = [*case.question.arms]
    if ranks > gpus:
        arms.append(Arm("ddp", ranks, workload.batch_size))
    if with_each:
        arms.append(Arm("each", ranks, workload.batch_size))
    per_node = min(ranks, 8)
    study = Study("weak", workload, tuple(arms), ROUNDS, 0.0, 0.0, per_node)
    return Plan("a100-sxm4-80gb", "cuda", (study,), nodes=ranks // per_node, ranks_per_node=per_node)


@cache
def blocks_of(
    gpus: int, wrong: tuple[str, ...], sd: float, unwaited: float, with_each: bool, ranks: int | None
) -> tuple[Plan, tuple[Block, ...], tuple[TelemetryBlock, ...]]:
    plan = plan_of(gpus, with_each, ranks)
    options: dict[str, Any] = {"spread": NodeSpread(gpu_sd=sd), "unwaited": unwaited}
    cluster = a100(plan.layout.world_size, **options)
    broken = faults(*wrong, gpus=plan.layout.world_size)
    run, (study,) = SimulatedRun(plan, cluster.performance, broken, seed=3), plan.studies
    told = [one for number in range(ROUNDS) for one in run.measure_round(study, number, study.arms)]
    blocks, turns = [one for one in told if isinstance(one, Block)], defaultdict[Any, list[Block]](list)
    for block in blocks:
        turns[block.key].append(block)
    expected = cluster.expectation(plan)
    return plan, tuple(blocks), tuple(telemetry_of_turns(each, expected, broken) for each in turns.values())


def run_of(
    *wrong: str,
    gpus: int = 8,
    sd: float = SPREAD,
    unwaited: float = 0.007,
    with_each: bool = False,
    ranks: int | None = None,
    change: Change = lambda one: one,
    telemetry: ChangeTelemetry = lambda one: one,
) -> Evidence:
    """A simulated run with its telemetry, after changes to both."""
    plan, blocks, windows = blocks_of(gpus, wrong, sd, unwaited, with_each, ranks)
    gang = gang_of(plan)
    changed = [change(one) for block in blocks for one in of_ranks(block, gang)]
    evidence = evidence_of_plan(plan, [one for one in changed if one is not None])
    kept = [one for one in map(telemetry, windows) if one is not None]
    return replace(evidence, telemetry=telemetry_columns_of(kept, {gang.gang: gang}))


def judged(*wrong: str, gpus: int = 8, case: Case | None = None, **options: Any) -> Verdict:
    return judge(case or case_of(gpus), run_of(*wrong, gpus=gpus, **options), CONFIDENCE)


def against(evidence: Evidence, gpus: int = 8) -> FloatArray:
    """Values against the slowest GPU, round by round."""
    case, (study,) = case_of(gpus), evidence.plan.studies[-1:]
    found = values_against_slowest(case, study, evidence, of_launch(case.question, evidence))
    assert found is not None
    return np.asarray(found.samples[0, 0])


def why_not(verdict: Verdict) -> str:
    """Why a row below its bound is not excused."""
    assert verdict.outcome == "failed"
    assert verdict.against_slowest is None
    (note,) = (note for note in verdict.notes if note.startswith("not excused as spread: "))
    return note.removeprefix("not excused as spread: ")


def without_forward(one: Measurement) -> Measurement:
    return replace(one, forward_s=None)


def test_a_healthy_node_with_spread_passes_by_the_value_against_its_slowest_gpu() -> None:
    verdict = judged()
    assert verdict.outcome == "passed"
    assert verdict.value is not None
    assert verdict.interval is not None
    assert verdict.interval[1] < verdict.bound_value  # which fails without the slowest GPU
    found = verdict.against_slowest
    assert found is not None
    assert found.interval is not None
    assert found.interval[0] >= verdict.bound_value
    assert found.place == f"GPU {SLOWEST} on simulated-0"
    assert found.behind == pytest.approx(0.037, abs=0.004)
    assert verdict.reason == (
        f"{100 * found.value:.1f} % against the slowest GPU keeps the bound; "
        f"{100 * (found.value - verdict.value):.1f} points of the loss are the spread of its GPUs: "
        f"GPU {SLOWEST} on simulated-0 is {100 * found.behind:.1f} % behind the median, limit 5 %"
    )
    assert (verdict.p_value, verdict.culprits) == (None, ())


def test_the_value_against_the_slowest_gpu_is_that_of_a_node_without_spread() -> None:
    alike, spread = (np.nanmean(np.log(against(run_of(sd=sd)))) for sd in (0.0, SPREAD))
    # A little better, because noise makes GPUs that are alike wait for another one in each round.
    assert alike < spread == pytest.approx(alike, abs=0.006)


def test_a_node_without_spread_passes_by_the_printed_value_alone() -> None:
    verdict = judged(sd=0.0)
    assert (verdict.outcome, verdict.against_slowest) == ("passed", None)


def test_without_forward_times_spread_is_a_loss() -> None:
    verdict = judged(with_each=True, change=without_forward)
    assert (verdict.outcome, verdict.against_slowest) == ("failed", None)


def changed_in(number: int, rank: int, factor: float) -> Change:
    """Its forward passes took longer in one round of ddp."""

    def change(one: Measurement) -> Measurement:
        if (one.round, one.rank) != (number, rank) or one.forward_s is None or not one.arm.startswith("ddp"):
            return one
        return replace(one, forward_s=one.forward_s * factor)

    return change


@rows("number", [1, 7, ROUNDS - 1])
def test_the_slowest_gpu_is_never_chosen_by_its_own_round(number: int) -> None:
    usual, (study,) = run_of(), plan_of(8).studies
    turn = study.turn(usual.plan.seed, number)
    other = next(rank for rank in range(8) if rank not in (turn, SLOWEST))
    changed = against(run_of(change=changed_in(number, other, 1.5)))
    np.testing.assert_allclose(changed[: number + 1], against(usual)[: number + 1], rtol=1e-12)


def test_the_slowest_gpu_is_chosen_by_all_rounds_before() -> None:
    (study,) = plan_of(8).studies
    far = changed_in(3, 0, 30.0)  # its mean is the largest from then on
    usual, changed = against(run_of()), against(run_of(change=far))
    later = [number for number in range(4, ROUNDS) if study.turn(0, number) != 0]
    assert (changed[later] < usual[later]).all()  # another choice can only lower the value


def test_the_first_round_of_all_only_chooses() -> None:
    found = against(run_of())
    assert np.isnan(found[0])
    assert not np.isnan(found[1:]).any()


def test_the_first_round_of_a_study_is_chosen_by_the_study_before() -> None:
    alone = run_of()
    plan, (study,) = alone.plan, alone.plan.studies
    before = replace(study, workload=replace(study.workload, name="before", compile=False, precision="bf16"))
    assert before.id != study.id

    def ours(changed: Change) -> list[Measurement]:
        found = [changed(one) for block in blocks_of(8, (), SPREAD, 0.007, False, None)[1] for one in told(block)]
        return [one for one in found if one is not None]

    def told(block: Block) -> Sequence[Measurement]:
        return list(of_ranks(block, gang_of(plan)))

    both = [*ours(lambda one: replace(one, study=before.id)), *ours(lambda one: one)]
    evidence = evidence_of_plan(replace(plan, studies=(before, study)), both)
    found = against(evidence)
    assert not np.isnan(found).any()
    np.testing.assert_allclose(found[1:], against(alone)[1:], rtol=1e-12)
    assert found[0] == pytest.approx(np.nanmean(found), rel=0.02)


def held_down(rank: int, number: int) -> ChangeTelemetry:
    def change(one: TelemetryBlock) -> TelemetryBlock:
        if one.round != number or not one.arm.startswith("ddp@8"):
            return one
        reasons = tuple({"hw_thermal_slowdown": 0.5} if each == rank else {} for each in one.ranks)
        return with_fields(one, throttle_reasons=reasons)

    return change


def unknown_of(rank: int) -> ChangeTelemetry:
    return lambda one: with_fields(one, throttle_reasons=tuple(None if each == rank else {} for each in one.ranks))


def busy(share: float | None) -> Change:
    return lambda one: replace(one, utilization=share) if one.rank == 2 else one


def lacks_forward(one: Measurement) -> Measurement:
    return without_forward(one) if one.rank == 1 else one


def lacks_forward_in_half(one: Measurement) -> Measurement:
    return without_forward(one) if one.rank == SLOWEST and one.round % 2 else one


def is_alike_alone(one: Measurement) -> Measurement:
    if not one.arm.startswith("each"):
        return one
    return replace(one, block_s=1.0 + 0.001 * one.rank, step_s=())


TOO_SLOW = tuple(f"slow-gpu:{rank}:1.045" for rank in range(4))
FAR_APART = tuple(f"slow-gpu:{rank}:1.052" for rank in range(4))
SLOW_NODE = tuple(f"slow-gpu:{rank}:1.042" for rank in range(8, 16))
NOT_EXCUSED: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "a GPU beyond the limit": (("slow-gpu:3:1.09",), {"sd": 0.0}, "a GPU is more than 5 % slower than its peers"),
    "one of four beyond the limit": (
        ("slow-gpu:1:1.08",), {"sd": 0.0, "gpus": 4}, "a GPU is more than 5 % slower than its peers",
    ),
    "two groups": (FAR_APART, {"sd": 0.0}, "GPUs fall into two groups"),
    "throttled in one round": ((), {"telemetry": held_down(2, 5)}, "a GPU was held down by heat"),
    "no telemetry": ((), {"telemetry": lambda _: None}, "heat and power of its GPUs are not known"),
    "no telemetry of one GPU": ((), {"telemetry": unknown_of(6)}, "heat and power of its GPUs are not known"),
    "85 % busy": ((), {"change": busy(0.85)}, "its least busy GPU was 85 % busy"),
    "unknown utilization": ((), {"change": busy(None)}, "it is unknown how busy its GPUs were"),
    "one peer": (("slow-gpu:1:1.04",), {"sd": 0.0, "gpus": 2}, "its GPUs have too few peers"),
    "a slow node": (SLOW_NODE, {"sd": 0.0, "gpus": 64}, "its node is more than 3 % slower than the others"),
    "lost forward times": ((), {"change": lacks_forward_in_half}, "forward times lack in"),
    "no slower alone": ((), {"with_each": True, "change": is_alike_alone}, "GPUs that compute alone differ less"),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "options", "why"), NOT_EXCUSED.values(), ids=NOT_EXCUSED)
def test_what_is_not_shown_to_be_spread_is_a_loss(wrong: tuple[str, ...], options: dict[str, Any], why: str) -> None:
    assert why in why_not(judged(*wrong, **options))


def test_groups_closer_than_the_limit_leave_it_open() -> None:
    verdict = judged(*TOO_SLOW, sd=0.0)
    assert verdict.outcome == "inconclusive"
    assert "not shown to be spread alone: its GPUs may be two groups, 4.4 % apart" in verdict.reason


def test_a_gpu_without_forward_times_does_not_pass() -> None:
    assert judged(change=lacks_forward).outcome != "passed"


def test_a_gpu_without_forward_times_hides_no_groups() -> None:
    verdict = judged(*TOO_SLOW, sd=0.0, gpus=8, ranks=16, change=lambda one: replace(one, forward_s=None)
                     if one.rank == 15 else one)  # fmt: skip
    assert verdict.outcome != "passed"


def test_gpus_that_differ_alone_as_well_are_excused() -> None:
    assert judged(with_each=True).outcome == "passed"


def test_limits_of_a_cpu_and_no_limit_excuse_nothing() -> None:
    case = case_of(8)
    for computing in (1.0, None):
        verdict = judged(case=replace(case, peers=replace(case.peers, computing=computing)))
        assert (verdict.outcome, verdict.against_slowest) == ("failed", None)


def test_where_nodes_are_not_compared_nothing_is_excused_on_several() -> None:
    case = case_of(8)
    off = replace(case, peers=replace(case.peers, nodes=None))
    assert judged(case=off).outcome == "passed"  # there is one node
    many = case_of(16)
    assert judge(many, run_of(gpus=16), CONFIDENCE).outcome == "passed"
    off = replace(many, peers=replace(many.peers, nodes=None))
    assert why_not(judge(off, run_of(gpus=16), CONFIDENCE)) == "nodes are not compared with each other"


def test_a_slow_gpu_outside_the_arm_is_no_reason() -> None:
    verdict = judge(case_of(16), run_of("slow-gpu:60:1.2", gpus=16, ranks=64), CONFIDENCE)
    assert verdict.outcome == "passed"
    assert verdict.against_slowest is not None
    assert verdict.against_slowest.place.endswith(("simulated-0", "simulated-1"))


def test_a_gpu_on_the_limit_leaves_the_row_open() -> None:
    verdict = judged("slow-gpu:3:1.05", sd=0.0)
    assert verdict.outcome == "inconclusive"
    assert verdict.is_open
    assert "not shown to be spread alone: not every GPU is certain to be within 5 % of its peers" in verdict.reason


def test_while_measuring_heat_is_not_waited_for_and_other_conditions_are() -> None:
    def measuring(*wrong: str, **options: Any) -> Verdict:
        evidence = replace(run_of(*wrong, **options), telemetry=NO_TELEMETRY, goes_on=True)
        return judge(case_of(8), evidence, CONFIDENCE)

    assert measuring().outcome == "passed"
    assert measuring("slow-gpu:3:1.05", sd=0.0).is_open
    assert measuring(change=busy(0.85)).outcome == "failed"
    assert measuring("slow-gpu:3:1.09", sd=0.0).outcome == "failed"


def test_more_communication_fails_against_the_slowest_gpu_too() -> None:
    verdict = judged(unwaited=-0.04)
    assert verdict.outcome == "failed"
    found = verdict.against_slowest
    assert found is not None
    assert found.interval is not None
    assert found.interval[1] < verdict.bound_value
    assert verdict.reason.endswith(f"; {100 * found.value:.1f} % against the slowest GPU does, too")
    assert verdict.p_value is not None
    assert verdict.p_value < 0.05


def test_the_chance_of_a_failure_is_the_larger_of_both() -> None:
    evidence, case = run_of(unwaited=-0.04), case_of(8)
    printed = of_launch(case.question, evidence).of(0)
    both = [p_value_of(one, case.requirement) for one in (printed, against(evidence)[1:])]
    assert all(one is not None for one in both)
    assert judge(case, evidence, CONFIDENCE).p_value == max(one for one in both if one is not None)


def test_more_communication_fails_by_the_printed_value_alone_where_spread_is_not_shown() -> None:
    verdict = judged(unwaited=-0.04, change=busy(0.85))
    assert (verdict.outcome, verdict.against_slowest) == ("failed", None)
    assert "against the slowest GPU" not in verdict.reason
    assert not any("spread" in note for note in verdict.notes)


def test_a_node_on_the_limit_leaves_the_row_open() -> None:
    on_limit = tuple(f"slow-gpu:{rank}:1.03" for rank in range(8, 16))
    verdict = judged(*on_limit, sd=0.0, gpus=64)
    assert verdict.is_open
    assert "its node is not certain to be within the limit of nodes" in verdict.reason


def test_no_more_than_the_limit_is_excused() -> None:
    """Forward times of the judged arm alone are far apart, and those of the largest arm are not."""
    (study,) = plan_of(4, ranks=8).studies

    def change(one: Measurement) -> Measurement:
        is_other = one.arm == "ddp@4" and one.rank != study.turn(0, one.round)
        return replace(one, forward_s=1.2 * one.forward_s) if is_other and one.forward_s else one

    verdict = judge(case_of(4), run_of(gpus=4, ranks=8, unwaited=-0.08, change=change), CONFIDENCE)
    assert why_not(verdict) == "it would excuse more than the limit of a GPU"


def test_launches_choose_for_the_first_round_of_each_other() -> None:
    case, fewest = case_of(8), 8
    evidence = run_of(change=lambda one: one if one.round < fewest else None)
    (study,), launches = evidence.plan.studies, (1, 2, 3)
    plan = replace(evidence.plan, studies=tuple(replace(study, launch=one) for one in launches), launches=3)
    gang = gang_of(plan)
    told = [one for block in blocks_of(8, (), SPREAD, 0.007, False, None)[1] for one in of_ranks(block, gang)]
    measured = [
        replace(one, study=of.id, block_s=one.block_s * (1 + 0.0001 * of.launch))
        for of in plan.studies for one in told if one.round < fewest
    ]  # fmt: skip
    windows = [
        with_fields(one, study=of.id)
        for of in plan.studies
        for one in blocks_of(8, (), SPREAD, 0.007, False, None)[2]
        if one.round < fewest
    ]
    telemetry = telemetry_columns_of(windows, {gang.gang: gang})
    verdict = judge(case, replace(evidence_of_plan(plan, measured), telemetry=telemetry), CONFIDENCE)
    assert "rounds; expected at least" not in verdict.reason
    assert verdict.against_slowest is not None
    assert verdict.against_slowest.interval is not None


def test_each_node_is_judged_by_its_own_gpus() -> None:
    evidence = run_of(gpus=8, ranks=32)
    verdict = judge(case_of(8), evidence, CONFIDENCE)
    assert verdict.outcome == "passed"
    assert verdict.against_slowest is not None
    assert verdict.reason.startswith(f"{verdict.place}, the lowest of 4 nodes: ")
    assert f"on {verdict.place} is" in verdict.reason


def test_a_compiled_model_has_no_value_against_the_slowest_gpu() -> None:
    case = case_of(8)
    compiled = replace(case, workload=replace(case.workload, compile=True))
    assert judge(compiled, run_of(), CONFIDENCE).outcome == "not_measured"
