"""Requirements and measurements whose values are known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_ddpscale.judge.intervals import Estimate
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.sequential import EProcesses
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.metric import measured_arm
from pytest_ddpscale.plan.metric_catalogue import METRICS, TRAINING_METRICS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, Pace, build_plan
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.plan.workload import ImageFolderData, Workload
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.records import SeededStep
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import Case, NodeCase
from pytest_ddpscale.thresholds.model import PeerLimits, Requirement, Severity, Sku, Source, check_of_nodes
from pytest_ddpscale.thresholds.parts import Detect
from tests.builders.measurements import Measurement
from tests.builders.rounds import columns_of

WORKLOAD = Workload("r", ImageFamily("resnet18", image_size=32), "fp32", 4, global_batch_size=8)
IMAGES = ImageFolderData("/images")
ANY_CPU = Sku("any", Detect(device="cpu"))
ALONE_SAMPLES_PER_S = 100.0
REFERENCE_SAMPLES_PER_S = 50.0
PEAK_TFLOPS = 1.0
FLOPS_PER_IMAGE = PEAK_TFLOPS * 1e12 / ALONE_SAMPLES_PER_S
STEPS = 10
CONFIDENCE = 0.95
GIB = 2**30
ENERGY_J = 300.0
CHECKSUM, OTHER_CHECKSUM = "c0ffee", "decade"
# No drift, and far enough apart for an interval of some width.
SPREAD = (0.84, 0.88, 0.82, 0.90, 0.80, 0.86, 0.84, 0.88, 0.83)

# Counted in ranks: what k ranks do is one of k shares, and its only sensible bound is 1.
SHARES_OF_RANKS = ("replica_agreement",)
# The slowest relative to its peers is never below 1.
FROM_ONE_UP = ("rank_uniformity",)
# Metrics that can be made to have any value, from `least_value` up.
VALUED = tuple(
    name for name, metric in TRAINING_METRICS.items() if name not in SHARES_OF_RANKS and not metric.reads_own_pace
)
RELATIVE = tuple(name for name, metric in TRAINING_METRICS.items() if metric.baseline)
READINGS = ("device_utilization", "peak_memory_gib", "memory_spread", "images_per_joule")
FACTORS = tuple(name for name in VALUED if METRICS[name].scale == "factors")
DIFFERENCES = tuple(name for name in VALUED if METRICS[name].scale == "differences")
# Those of a pace alone: batch, steps and duration of a block.
OF_STEPS = tuple(name for name in VALUED if METRICS[name].unit == "ms" or name == "step_time_cv")
OF_A_PACE = tuple(name for name in VALUED if name not in (*READINGS, *OF_STEPS))

Change = Callable[[Measurement], Measurement | None]


def least_value(metric: str) -> float:
    """What the values of a metric start from: a share of 0.9 is 1.9 where they start from 1."""
    return 1.0 if metric in FROM_ONE_UP else 0.0


def world_size_of(metric: str) -> int:
    """Two ranks, unless that says nothing about the metric."""
    return min(2, METRICS[metric].maximum_world_size or 2)


def easy_bound(metric: str) -> float:
    """A bound that values of 0.9 from the least one up keep."""
    definition = METRICS[metric]
    if metric in SHARES_OF_RANKS:
        return 1.0
    if not definition.upper_bound:
        return 0.01
    return 0.99 if definition.unit == "fraction" else 5.0


def hard_bound(metric: str) -> float:
    """A bound that values of 0.9 from the least one up miss."""
    most = METRICS[metric].range_at(world_size_of(metric))[1]
    return max(0.01, least_value(metric)) if METRICS[metric].upper_bound else min(2.0, most)


def make_case(
    metric: str, bound: float, world_size: int | None = None, workload: Workload = WORKLOAD, **keys: Any
) -> Case:
    """A requirement with a published bound, unless `keys` says otherwise."""
    definition = METRICS[metric]
    if definition.reads_folder:
        workload = replace(workload, data=IMAGES)
    world_size = world_size or world_size_of(metric)
    given: dict[str, Any] = {
        "source": Source(bound, None, "a paper", "far enough away"),
        "workload": workload.name,
        "world_size": world_size,
        "versus": "old" if definition.takes_versus else None,
        "severity": "warn" if keys.get("provisional") else "fail",
        **keys,
    }
    return Case(
        Requirement(metric, bound, **given),
        world_size,
        workload,
        f"{workload.name}-{world_size}gpu",
        "thresholds.yaml:7",
        reference_samples_per_s=REFERENCE_SAMPLES_PER_S if definition.takes_versus else None,
        peak_tflops=PEAK_TFLOPS if definition.takes_peak else None,
        peers=PeerLimits(computing=0.05),
    )


def check_case(name: str, severity: Severity = "fail", sku: Sku = ANY_CPU) -> NodeCase:
    """A check of nodes."""
    return NodeCase(check_of_nodes(name, severity), name, "thresholds.yaml:7", sku)


def make_measurement(
    study: str, arm: Arm, round_: int, rank: int, samples_per_s: float = ALONE_SAMPLES_PER_S, **changes: Any
) -> Measurement:
    """One rank's block at a given pace."""
    measured = Measurement(
        study, arm.name, round_, rank, rank, f"node{rank}", f"GPU-{rank}", arm.batch_size, STEPS,
        block_s=1.0, started_unix_s=1.7e9 + round_, utilization=0.99, peak_memory_bytes=GIB, energy_j=ENERGY_J,
        parameters_checksum=CHECKSUM if arm.kind == "ddp" else None,
    )  # fmt: skip
    return replace(at_pace(measured, samples_per_s), **changes)


def at_pace(one: Measurement, samples_per_s: float) -> Measurement:
    """A block of equal steps at a given pace."""
    return with_steps(one, [one.batch_size / samples_per_s] * STEPS)


def with_steps(one: Measurement, step_s: Sequence[float]) -> Measurement:
    """A block of these steps, in seconds."""
    return replace(one, steps=len(step_s), step_s=tuple(step_s), block_s=math.fsum(step_s))


def make_study(case: Case, rounds: int = FEWEST_ROUNDS) -> Study:
    """The study that answers a case."""
    requirement = case.requirement
    arms = tuple(case.question.arms)
    return Study(requirement.definition.scaling, case.workload, arms, rounds, 1.0, 1.0)


def make_measurements(case: Case, values: Sequence[float]) -> list[Measurement]:
    """Measurements of which the case's metric has these values, one a round.

    Rank 0 sets the pace, is the least busy, the least steady, the fullest and the hungriest one, and the one that
    disagrees; the other ranks are faster, busier, steadier, smaller and thriftier, and agree.
    """
    study = make_study(case)
    measured = measured_arm(case.requirement.definition, case.workload, case.world_size)
    return [
        _with_value(one, case, value) if arm == measured else one
        for number, value in enumerate(values)
        for arm in study.arms
        for one in (make_measurement(study.id, arm, number, rank) for rank in range(arm.world_size))
    ]


def _with_value(one: Measurement, case: Case, value: float) -> Measurement:
    metric, first = case.requirement.metric, one.rank == 0
    if metric == "device_utilization":
        return replace(one, utilization=value if first else max(1.0, value))
    if metric == "peak_memory_gib":
        return replace(one, peak_memory_bytes=round(value * GIB) if first else 1)
    if metric == "memory_spread":
        return replace(one, peak_memory_bytes=GIB if first else round((1 - value) * GIB))
    if metric == "images_per_joule":
        return replace(one, energy_j=one.batch_size * one.steps / (value if first else 1.25 * value))
    if metric == "communication_time":
        return at_pace(one, _samples_per_s(case, value) * (1.0 if first else 1.25))
    if METRICS[metric].unit == "ms":
        is_median = metric == "inference_latency_p50"  # of all ranks' steps: that of the slower half of two
        return with_steps(one, [value / 1000 * (1.0 if first or is_median else 0.8)] * STEPS)
    if metric == "step_time_cv":
        # Sample standard deviation of steps that alternate about their mean.
        swing = value * math.sqrt((STEPS - 1) / STEPS) if first else 0.0
        return with_steps(one, [0.04 * (1 + swing), 0.04 * (1 - swing)] * (STEPS // 2))
    if metric == "replica_agreement":
        return replace(one, parameters_checksum=OTHER_CHECKSUM if first and value < 1 else CHECKSUM)
    if metric == "rank_uniformity":
        return at_pace(one, ALONE_SAMPLES_PER_S / (value if first else 1.0))
    return at_pace(one, _samples_per_s(case, value) * (1.0 if first else 1.25))


def _samples_per_s(case: Case, value: float) -> float:
    """The pace at which a metric of time has a value."""
    paces = {
        "throughput_per_gpu": value,
        "inference_throughput": value,
        "generation_ratio": value * REFERENCE_SAMPLES_PER_S,
        "strong_scaling_speedup": value * ALONE_SAMPLES_PER_S / case.world_size,
        "exposed_communication": ALONE_SAMPLES_PER_S * (1 - value),
        "ddp_overhead": ALONE_SAMPLES_PER_S / (1 + value),
        "communication_time": case.workload.batch_size
        / (case.workload.batch_size / ALONE_SAMPLES_PER_S + value / 1000),
    }
    return paces.get(case.requirement.metric, value * ALONE_SAMPLES_PER_S)


def make_evidence(
    case: Case,
    measurements: Sequence[Measurement],
    device_type: DeviceType = "cuda",
    errors: Mapping[str, str] | None = None,
) -> Evidence:
    """A run that had nothing but this case to measure."""
    return evidence_of_plan(Plan("a100", device_type, (make_study(case),)), measurements, errors=errors)


def judge_values(metric: str, bound: float, values: Sequence[float], device_type: DeviceType = "cuda") -> Verdict:
    """The verdict on a bound when these values were measured, one a round."""
    case = make_case(metric, bound)
    return judge(case, make_evidence(case, make_measurements(case, values), device_type), CONFIDENCE)


def judge_changed(metric: str, change: Change, rounds: int = FEWEST_ROUNDS + 1) -> Verdict:
    """The verdict on rounds that would easily pass, after a change to their measurements; None drops one."""
    case = make_case(metric, easy_bound(metric))
    value = least_value(metric) + 0.9 if metric in VALUED else 1.0
    changed = [change(one) for one in make_measurements(case, [value] * rounds)]
    return judge(case, make_evidence(case, [one for one in changed if one is not None]), CONFIDENCE)


def plan_of(cases: Sequence[Case], device_type: DeviceType = "cuda", rounds: int = 16) -> Plan:
    """What a session would plan for these cases."""
    return build_plan(Plan("a100", device_type, ()), [case.question for case in cases], Pace(rounds, 1.0, 1.0))


def measure(
    study: Study,
    rounds: int,
    samples_per_s: Callable[[Arm, int, int], float] = lambda arm, number, rank: ALONE_SAMPLES_PER_S,
    ranks_per_host: int = 1,
) -> list[Measurement]:
    """Every arm of a study in every round; `samples_per_s` of arm, round and rank."""
    return [
        make_measurement(
            study.id, arm, number, rank, samples_per_s(arm, number, rank),
            host=f"node{rank // ranks_per_host}", local_rank=rank % ranks_per_host,
        )
        for number in range(rounds)
        for arm in study.arms
        for rank in ([study.turn(0, number)] if arm.world_size == 1 else range(arm.world_size))
    ]  # fmt: skip


def seeded_steps(study: Study, odd: Mapping[int, str] | None = None) -> list[SeededStep]:
    """The seeded step of every rank, all alike but for the checksums in `odd`, by rank."""
    checksums = odd or {}
    return [
        SeededStep(study.id, rank, rank, f"node{rank}", f"GPU-{rank}", checksums.get(rank, CHECKSUM))
        for rank in range(study.world_size)
    ]


def evidence_of_plan(
    plan: Plan,
    measurements: Sequence[Measurement],
    *,
    errors: Mapping[str, str] | None = None,
    odd_seeded: Mapping[int, str] | None = None,
) -> Evidence:
    """A whole run; `odd_seeded` has checksums of seeded steps that are unlike the others', by rank."""
    return Evidence(
        plan,
        columns_of(measurements),
        errors or {},
        {study.id: FLOPS_PER_IMAGE for study in plan.studies},
        {study.id: seeded_steps(study, odd_seeded) for study in plan.studies},
    )


def sequential_mean(values: Sequence[float], confidence: float) -> Estimate | None:
    """What the values alone say, without drift: for comparison with a verdict."""
    process = EProcesses(np.array([values]))
    low, high = process.intervals(confidence)[0].tolist()
    return None if math.isnan(low) else Estimate(float(process.centres[0]), (low, high))


def sequential_geometric_mean(values: Sequence[float], confidence: float) -> Estimate | None:
    """As `sequential_mean`, of the logarithms."""
    logs = sequential_mean([math.log(value) for value in values], confidence)
    if logs is None:
        return None
    return Estimate(math.exp(logs.value), (math.exp(logs.interval[0]), math.exp(logs.interval[1])))
