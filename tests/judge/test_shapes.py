"""Shape of what is judged × kind of metric × fault: the same faults forbid the same verdicts wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, Pace, build_plan
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import CONFIDENCE, OTHER_CHECKSUM, at_pace, make_case
from tests.builders.measurements import Measurement
from tests.judge.nodes import equal, measure_nodes, nodes_evidence, slow_node

ROUNDS = FEWEST_ROUNDS + 2
NO_TIME = "--ddp-budget ran out before this was decided"


@dataclass(frozen=True)
class Shape:
    """Ranks that a requirement is about, and nodes and launches that have them."""

    nodes: int
    world_size: int
    placement: str = "packed"
    launches: int = 1

    @property
    def judges_each_node(self) -> bool:
        return self.nodes > 1 and self.world_size <= 2

    def case(self, metric: str, bound: float) -> Case:
        return make_case(metric, bound, self.world_size, placement=self.placement)

    def plan(self, case: Case) -> Plan:
        empty = Plan("a100", "cuda", (), nodes=self.nodes, ranks_per_node=2)
        return build_plan(empty, [case.question], Pace(ROUNDS, 1.0, 1.0, launches=self.launches))


SHAPES = {
    "two GPUs of one node": Shape(1, 2),
    "one GPU of each node": Shape(3, 1),
    "two GPUs of each node": Shape(3, 2),
    "two of three nodes": Shape(3, 4),
    "a GPU of each node together": Shape(3, 3, "spread"),
    "three launches": Shape(1, 2, launches=3),
    "three launches on each node": Shape(3, 2, launches=3),
}
# A bound that sound ranks keep, and one that they miss.
BOUNDS = {
    "throughput_per_gpu": (90.0, 120.0),
    "weak_scaling_efficiency": (0.9, 1.05),
    "step_time_p95": (45.0, 30.0),
    "device_utilization": (0.9, 0.999),
    "peak_memory_gib": (2.0, 0.5),
}
IN_EVERY_SHAPE = ("throughput_per_gpu", "weak_scaling_efficiency")
OF_EVERY_METRIC = ("two GPUs of one node", "two GPUs of each node")
Change = Callable[[Measurement], Measurement | None]


def as_it_is(one: Measurement) -> Measurement:
    return one


@dataclass(frozen=True)
class Fault:
    """What is wrong in the last study, and what becomes of a bound that sound ranks keep, and of one that they miss.

    Attributes:
        kept: the outcome.
        missed: the outcome; where each node is judged by itself a fault of one rank hides no failure of the others.
        of_rank: what is wrong with the last rank.
        of_all: what is wrong with all ranks.
        of_baseline: what is wrong with the arm that a ratio is to.
        metrics: that the fault is about.
    """

    kept: str
    missed: str
    of_rank: Change = as_it_is
    of_all: Change = as_it_is
    of_baseline: Change = as_it_is
    metrics: Sequence[str] = tuple(BOUNDS)


def lost(one: Measurement) -> None:
    """It is not there."""


def lost_in_a_round(one: Measurement) -> Measurement | None:
    return None if one.round == 3 else one


FAULTS = {
    "nothing": Fault("passed", "failed"),
    "nobody measured": Fault("not_measured", "not_measured", of_all=lost),
    "too few rounds": Fault(
        "inconclusive", "inconclusive", of_all=lambda one: None if one.round >= FEWEST_ROUNDS - 1 else one
    ),
    "a rank is never there": Fault("not_measured", "not_measured", lost),
    "a rank misses a round": Fault("inconclusive", "inconclusive", lost_in_a_round),
    "no baseline": Fault("not_measured", "not_measured", of_baseline=lost, metrics=["weak_scaling_efficiency"]),
    "the baseline misses a round": Fault(
        "inconclusive", "inconclusive", of_baseline=lost_in_a_round, metrics=["weak_scaling_efficiency"]
    ),
    "another batch": Fault("not_measured", "not_measured", of_all=lambda one: replace(one, batch_size=8)),
    "a rank has no reading": Fault(
        "not_measured", "not_measured", lambda one: replace(one, utilization=None, peak_memory_bytes=None),
        metrics=["device_utilization", "peak_memory_gib"],
    ),
    "a rank has no reading in a round": Fault(
        "inconclusive", "inconclusive",
        lambda one: replace(one, utilization=None, peak_memory_bytes=None) if one.round == 3 else one,
        metrics=["device_utilization", "peak_memory_gib"],
    ),
    "an impossible reading": Fault(
        "error", "error", lambda one: replace(one, utilization=float("-inf")), metrics=["device_utilization"]
    ),
    "faster than can be": Fault(
        "inconclusive", "inconclusive", of_all=lambda one: at_pace(one, 130.0), metrics=["weak_scaling_efficiency"]
    ),
}  # fmt: skip


@cache
def sound(shape: Shape, metric: str) -> tuple[Plan, list[Measurement]]:
    """What is planned for it, and measured of ranks that are all alike."""
    plan = shape.plan(shape.case(metric, BOUNDS[metric][0]))
    return plan, measure_nodes(plan, rounds=ROUNDS)


def evidence_with(fault: Fault, shape: Shape, metric: str) -> Evidence:
    plan, found = sound(shape, metric)
    case = shape.case(metric, BOUNDS[metric][0])
    arms = [arm.name for arm in case.question.arms]
    last = max(one.rank for one in found if one.arm == arms[-1])
    changed: list[Measurement | None] = []
    for one in found:
        if one.study != plan.studies[-1].id:
            changed.append(one)
        elif one.arm == arms[-1]:
            changed.append(fault.of_all(one) if one.rank != last else _both(fault, one))
        else:
            changed.append(fault.of_baseline(one) if one.arm == arms[0] else one)
    return nodes_evidence(plan, [one for one in changed if one is not None])


def _both(fault: Fault, one: Measurement) -> Measurement | None:
    changed = fault.of_rank(one)
    return changed and fault.of_all(changed)


def combinations(metrics: Sequence[str]) -> list[tuple[str, Shape, str]]:
    """Names of shapes, shapes and metrics: a rate and a ratio in every shape, the others in two of them.

    A ratio to one GPU says nothing of one.
    """
    return [
        (f"{name}, {metric}", shape, metric)
        for (name, shape), metric in product(SHAPES.items(), metrics)
        if metric in IN_EVERY_SHAPE or name in OF_EVERY_METRIC
        if shape.world_size > 1 or metric != "weak_scaling_efficiency"
    ]


def test_a_fault_of_one_rank_forbids_the_same_verdicts_in_every_shape() -> None:
    wrong = []
    for fault_name, fault in FAULTS.items():
        for name, shape, metric in combinations(fault.metrics):
            evidence = evidence_with(fault, shape, metric)
            missed = "failed" if shape.judges_each_node and fault.of_rank is not as_it_is else fault.missed
            for bound, expected in zip(BOUNDS[metric], (fault.kept, missed), strict=True):
                verdict = judge(shape.case(metric, bound), evidence, CONFIDENCE)
                if verdict.outcome != expected or (verdict.value is None) != (expected in ("not_measured", "error")):
                    wrong.append(f"{name}, {fault_name}: {verdict.outcome} at {bound} instead of {expected}")
    assert not wrong, "\n".join(wrong)


def test_what_spoils_a_study_spoils_it_in_every_shape() -> None:
    wrong = []
    for name, shape, metric in combinations(list(BOUNDS)):
        case = shape.case(metric, BOUNDS[metric][0])
        plan, whole = sound(shape, metric)
        last = plan.studies[-1].id
        few = [one for one in whole if one.round < 3]
        ddp = [one for one in whole if one.study == last and one.parameters_checksum]
        odd = ddp[-1] if ddp else None
        differing = [replace(one, parameters_checksum=OTHER_CHECKSUM) if one is odd else one for one in whole]
        outcomes = {
            "broke": judge(case, replace(nodes_evidence(plan, whole), errors={last: "rank 1 died"}), CONFIDENCE),
            "replicas differ": judge(case, nodes_evidence(plan, differing), CONFIDENCE),
            "no time": judge(case, replace(nodes_evidence(plan, few), out_of_time={last}), CONFIDENCE),
        }
        expected = {"broke": "error", "replicas differ": "error", "no time": "inconclusive"}
        if shape.world_size == 1:  # nobody to differ from
            del outcomes["replicas differ"], expected["replicas differ"]
        found = {key: verdict.outcome for key, verdict in outcomes.items()}
        if found != expected:
            wrong.append(f"{name}: {found}")
        if not any(NO_TIME in note for note in outcomes["no time"].notes):
            wrong.append(f"{name}: the budget is not told: {outcomes['no time'].notes}")
    assert not wrong, "\n".join(wrong)


def test_a_slow_node_is_named_by_every_shape_that_has_another_one() -> None:
    wrong = []
    for name, shape in SHAPES.items():
        case = shape.case("throughput_per_gpu", 90.0)
        plan = shape.plan(case)
        slowness = slow_node(1) if shape.nodes > 1 else equal
        verdict = judge(case, nodes_evidence(plan, measure_nodes(plan, slowness, ROUNDS)), CONFIDENCE)
        named = {one.host for one in verdict.culprits}
        expected = ("failed", {"n1"}) if shape.nodes > 1 else ("passed", set())
        if (verdict.outcome, named) != expected:
            wrong.append(f"{name}: {verdict.outcome}, {named}")
    assert not wrong, "\n".join(wrong)
