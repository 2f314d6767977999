"""Four ways to decide whether a node is fit, applied to the same simulated node by `compared.py`.

Machine time is counted as `pytest --collect-only` counts it, the start-up of a gang included.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from simulated_session import decide

from pytest_ddpscale.judge.deciding import arms_of
from pytest_ddpscale.judge.intervals import t_quantile
from pytest_ddpscale.judge.values import matching_study, of_launch
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import STARTUP_S, round_seconds, warm_up_seconds
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.columns import columns_of
from pytest_ddpscale.run.evidence import Evidence, evidence_of
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.simulate.faults import parse_faults
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.performance import FloatArray
from pytest_ddpscale.simulate.simulated_cluster import SimulatedCluster
from pytest_ddpscale.simulate.simulated_nodes import gang_of
from pytest_ddpscale.thresholds.cases import Case, training_cases

Decision = Literal["accepted", "rejected", "undecided"]
CONFIDENCE = 0.95
GPUS = 8
FIXED_ROUNDS = 16
# Distance of a floor from the published or learned value: the default of SuperBench and DCGM.
FLOOR = 0.95
# One shot, as the published measurements were taken: of each world size, one after the other.
ONE_SHOT_BLOCK_S = 10.0
ONE_SHOT_WARMUP_S, ONE_SHOT_S = 60.0, 300.0
ONE_SHOT_BLOCKS = round(ONE_SHOT_S / ONE_SHOT_BLOCK_S)
# SuperBench: its configuration for 8x A100 trains ResNet-152 with 64 warm-up and 512 timed steps of 192 images a GPU.
SUPERBENCH_IMAGES = (64 + 512) * 192
# DCGM's targeted_stress: so long on all GPUs at once, judged by the most that each reached.
PER_GPU_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """A procedure's decision on a node, and the seconds of machine time that it took."""

    decision: Decision
    seconds: float


@dataclass(frozen=True)
class Node:
    """A simulated node. Every procedure measures it with the same noise, spread between GPUs, and faults.

    Attributes:
        cluster: of one node and one workload.
        faults: as `ddpscale simulate --fault` takes them.
        seed: of its noise, and of how its GPUs differ.
    """

    cluster: SimulatedCluster
    faults: tuple[str, ...]
    seed: int

    @cached_property
    def plan(self) -> Plan:
        """The plan of a session."""
        return self.cluster.plan()

    def run(self, plan: Plan) -> SimulatedRun:
        """One that measures a plan on it."""
        performance = self.cluster.performance.of_cluster(self.seed)
        return SimulatedRun(plan, performance, parse_faults(self.faults, plan.layout), self.seed)

    @property
    def speeds(self) -> dict[str, float]:
        """Images per second of a GPU, by workload."""
        return {name: expected.samples_per_s for name, expected in self.cluster.performance.expectations.items()}

    @cached_property
    def one_shot(self) -> dict[str, FloatArray]:
        """Images per second of each GPU, by arm, (blocks, GPUs): 10-second blocks in one go, weak scaling.

        Measured with the fewest steps a block: how long a block is does not change how it varies here. Of
        several groups that train at once the first is what one would measure.
        """
        (weak,) = (study for study in self.plan.studies if study.scaling == "weak")
        batch_size = weak.arms[0].batch_size
        arms = (*(Arm("ddp", size, batch_size) for size in (1, 2, 4, 8)), Arm("each", GPUS, batch_size))
        study = Study("weak", weak.workload, arms, ONE_SHOT_BLOCKS, 0.0, ONE_SHOT_WARMUP_S)
        run = self.run(replace(self.plan, studies=(study,), probes=None, pairs=None))
        found: dict[str, list[FloatArray]] = {arm.name: [] for arm in arms}
        for number in range(study.rounds):
            for block in run.measure_round(study, number, arms):
                if isinstance(block, Block):
                    found[block.arm].append(block.per_second)
        return {name: np.array(blocks) for name, blocks in found.items()}

    def one_shot_speed(self, world_size: int, blocks: int = ONE_SHOT_BLOCKS) -> float:
        """Mean images per second and GPU of the first group of so many ranks, at its slowest rank's pace."""
        return float(self.one_shot[f"ddp@{world_size}"][:blocks, :world_size].min(axis=1).mean())


def ours(node: Node) -> Outcome:
    """A session: as many rounds as a verdict takes, on every requirement on training that can reject."""
    studies = decide(node.run(node.plan), node.cluster.cases, CONFIDENCE)
    verdicts = [verdict for study in studies for verdict in study.verdicts if verdict.severity == "fail"]
    measuring_s = sum(
        warm_up_seconds(one.study, node.speeds)
        + sum(round_seconds(one.study, arms, node.speeds) for arms in one.rounds)
        for one in studies
    )
    return Outcome(_decided_by(verdicts), STARTUP_S + measuring_s)


def _decided_by(verdicts: Sequence[Verdict]) -> Decision:
    outcomes = {verdict.outcome for verdict in verdicts}
    return "rejected" if "failed" in outcomes else "accepted" if outcomes == {"passed"} else "undecided"


def fixed_rounds(node: Node) -> Outcome:
    """Sixteen rounds of what these requirements need, a two-sided 95 % t-interval of each against the same bound."""
    run, gang = node.run(node.plan), gang_of(node.plan)
    seconds, decisions = STARTUP_S, list[Decision]()
    for study, cases in asked_of(node).items():
        needed = set[str]().union(*map(arms_of, cases))
        arms = tuple(arm for arm in study.arms if arm.name in needed)
        records: list[AnyRecord] = [gang, *run.before_rounds(study)]
        for number in range(FIXED_ROUNDS):
            records += run.measure_round(study, number, study.arms)
        columns = columns_of((record for record in records if isinstance(record, Block)), [gang])
        evidence = evidence_of(node.plan, columns, records)
        decisions += [t_test(case, study, evidence) for case in cases]
        per_round = round_seconds(study, arms, node.speeds)
        seconds += warm_up_seconds(study, node.speeds) + FIXED_ROUNDS * per_round
    return Outcome(_worst(decisions), seconds)


def asked_of(node: Node) -> dict[Study, list[Case]]:
    """The requirements on training that can reject, by the study that answers them."""
    found: dict[Study, list[Case]] = {}
    for case in training_cases(node.cluster.cases):
        study = matching_study(node.plan, case.question)
        if study is not None and case.requirement.severity == "fail":
            found.setdefault(study, []).append(case)
    return found


def t_test(case: Case, study: Study, evidence: Evidence) -> Decision:
    """Decision by the t-interval of the mean of all rounds."""
    values = (of_launch(case.question, evidence) / case.constant).of(0)
    definition, by_factors = case.requirement.definition, case.requirement.definition.scale == "factors"
    series, bound = (np.log(values), math.log(case.requirement.bound)) if by_factors else (
        values, case.requirement.bound)  # fmt: skip
    reach = t_quantile(0.5 + CONFIDENCE / 2, len(series) - 1) * series.std(ddof=1) / math.sqrt(len(series))
    above = series.mean() - bound
    good = -above if definition.upper_bound else above
    return "accepted" if good >= reach else "rejected" if good < -reach else "undecided"


def _worst(decisions: Sequence[Decision]) -> Decision:
    """Decision on all requirements together."""
    return "rejected" if "rejected" in decisions else "undecided" if "undecided" in decisions else "accepted"


def _floor(values_and_floors: Iterator[tuple[float, float]]) -> Decision:
    return "accepted" if all(value >= floor for value, floor in values_and_floors) else "rejected"


def published_floor(node: Node) -> Outcome:
    """One shot, as published: 60 s and 300 s on 1, 2, 4 and 8 GPUs, throughput of each against 0.95 x published."""
    pairs = ((node.one_shot_speed(size), FLOOR * speed) for size, speed in published_speeds(node).items())
    return Outcome(_floor(pairs), one_shot_seconds())


def same_bounds(node: Node) -> Outcome:
    """The same shot against the bounds of our requirements on throughput and weak scaling, without an interval."""
    alone = node.one_shot_speed(1)
    pairs = (
        (node.one_shot_speed(case.world_size) / (alone if "efficiency" in case.requirement.metric else 1.0),
         case.requirement.bound)
        for cases in asked_of(node).values()
        for case in cases
        if case.requirement.metric in ("throughput_per_gpu", "weak_scaling_efficiency")
    )  # fmt: skip
    return Outcome(_floor(pairs), one_shot_seconds())


def one_shot_seconds() -> float:
    """A job for each world size."""
    return 4 * (STARTUP_S + ONE_SHOT_WARMUP_S + ONE_SHOT_S)


def published_speeds(node: Node) -> dict[int, float]:
    """Published images per second and GPU of weak scaling, by world size."""
    (expected,) = node.cluster.performance.expectations.values()
    return {size: expected.samples_per_s * expected.efficiency_at("weak", size) for size in (1, 2, 4, 8)}


@dataclass(frozen=True)
class Superbench:
    """SuperBench's way: ResNet-152 on 8 GPUs and work on each of them, against criteria learned from a fleet.

    Its rule `variance` with condition -0.05 on throughput; each GPU's own work stands for its per-GPU benchmarks.

    Attributes:
        together: criterion for 8 GPUs, images per second and GPU.
        each: criterion for a GPU by itself.
    """

    together: float
    each: float

    @classmethod
    def learned(cls, fleet: Sequence[Node]) -> Superbench:
        """Criteria: medians of sound nodes."""
        together = statistics.median(node.one_shot_speed(8, cls._blocks(node)) for node in fleet)
        return cls(together, float(np.median([node.one_shot["each@8"][: cls._blocks(node)] for node in fleet])))

    def __call__(self, node: Node) -> Outcome:
        """The node against them."""
        blocks = self._blocks(node)
        each = node.one_shot["each@8"][:blocks].mean(axis=0).tolist()
        pairs = [(node.one_shot_speed(8, blocks), self.together), *((speed, self.each) for speed in each)]
        decision = _floor((value, FLOOR * criterion) for value, criterion in pairs)
        return Outcome(decision, 2 * (STARTUP_S + self._seconds(node)))

    @staticmethod
    def _seconds(node: Node) -> float:
        return SUPERBENCH_IMAGES / published_speeds(node)[8]

    @classmethod
    def _blocks(cls, node: Node) -> int:
        return round(cls._seconds(node) / ONE_SHOT_BLOCK_S)


def per_gpu(node: Node) -> Outcome:
    """DCGM's way (targeted_stress): every GPU by itself, the best of 120 s against 0.95 x its target."""
    best = node.one_shot["each@8"][: round(PER_GPU_S / ONE_SHOT_BLOCK_S)].max(axis=0).tolist()
    target = published_speeds(node)[1]
    return Outcome(_floor((speed, FLOOR * target) for speed in best), STARTUP_S + PER_GPU_S)


Outcomes = Mapping[str, Outcome]


def all_procedures(node: Node, superbench: Superbench) -> Outcomes:
    """Decision of each procedure on a node, by its name in the table."""
    return {
        "ddpscale": ours(node),
        "16 rounds, t-test": fixed_rounds(node),
        "one shot, our bounds": same_bounds(node),
        "one shot, published - 5 %": published_floor(node),
        "SuperBench's way": superbench(node),
        "DCGM's way": per_gpu(node),
    }
