"""Requirements and measurements whose values are known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_ddpscale.plan.metric import METRICS, required_arms
from pytest_ddpscale.plan.study import Arm, DeviceType, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.records import Measurement
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.verdict.evaluation import judge
from pytest_ddpscale.verdict.evidence import Evidence
from pytest_ddpscale.verdict.verdict import Verdict

WORKLOAD = Workload("r", "resnet18", "fp32", 4, image_size=32, global_batch_size=8)
ALONE_IMG_PER_S = 100.0
REFERENCE_IMG_PER_S = 50.0
STEPS = 10
CONFIDENCE = 0.95
GIB = 2**30
RELATIVE = tuple(name for name, metric in METRICS.items() if metric.relative_to_alone)
AT_LEAST = tuple(name for name, metric in METRICS.items() if not metric.upper_bound)
RATES = tuple(name for name in AT_LEAST if name != "device_utilization")


def make_case(metric: str, bound: float, world_size: int = 2, workload: Workload = WORKLOAD, **keys: Any) -> Case:
    """A requirement with a published bound, unless `keys` says otherwise."""
    definition = METRICS[metric]
    data: dict[str, Any] = {
        "metric": metric,
        "workload": workload.name,
        "world_size": world_size,
        "at_most" if definition.upper_bound else "at_least": bound,
        "source": {"measured": 123.0, "reference": "a paper"},
        **({"versus": "old"} if definition.takes_versus else {}),
        **keys,
    }
    reference = REFERENCE_IMG_PER_S if definition.takes_versus else None
    return Case(
        Requirement.model_validate(data), workload, f"{workload.name}-{world_size}gpu", "thresholds.yaml:7", reference
    )


def make_measurement(
    study: str, arm: Arm, round_: int, rank: int, img_per_s: float = ALONE_IMG_PER_S, **changes: Any
) -> Measurement:
    """One rank's block at a given pace."""
    measured = Measurement(
        study, arm.name, round_, rank, rank, f"node{rank}", f"GPU-{rank}", arm.batch_size, STEPS,
        block_s=arm.batch_size * STEPS / img_per_s, started_unix_s=1.7e9 + round_,
        utilization=0.99, peak_memory_bytes=GIB,
    )  # fmt: skip
    return replace(measured, **changes)


def make_study(case: Case, rounds: int = 5) -> Study:
    """The study that answers a case."""
    requirement = case.requirement
    arms = tuple(required_arms(requirement.definition, case.workload, requirement.world_size))
    return Study(requirement.definition.scaling, case.workload, arms, rounds, 1.0, 1.0)


def make_measurements(case: Case, values: Sequence[float]) -> list[Measurement]:
    """Measurements of which the case's metric has these values, one a round.

    Rank 0 sets the pace and is the least busy one; the other ranks are faster, busier and smaller.
    """
    study = make_study(case)
    found = []
    for number, value in enumerate(values):
        for arm in study.arms:
            measured = arm.world_size == case.requirement.world_size
            for rank in range(arm.world_size):
                one = make_measurement(study.id, arm, number, rank)
                found.append(_with_value(one, case, value, first=rank == 0) if measured else one)
    return found


def _with_value(one: Measurement, case: Case, value: float, *, first: bool) -> Measurement:
    metric, world_size = case.requirement.metric, case.requirement.world_size
    if metric == "device_utilization":
        return replace(one, utilization=value if first else 1.0)
    if metric == "peak_memory_gib":
        return replace(one, peak_memory_bytes=round(value * GIB) if first else 1)
    unit = {
        "throughput_per_gpu": 1.0,
        "generation_ratio": REFERENCE_IMG_PER_S,
        "strong_scaling_speedup": ALONE_IMG_PER_S / world_size,
    }.get(metric, ALONE_IMG_PER_S)
    img_per_s = value * unit * (1.0 if first else 1.25)
    return replace(one, block_s=one.batch_size * STEPS / img_per_s)


def make_evidence(
    case: Case,
    measurements: Sequence[Measurement],
    device_type: DeviceType = "cuda",
    errors: Mapping[str, str] | None = None,
) -> Evidence:
    """A run that had nothing but this case to measure."""
    return Evidence(Plan("a100", device_type, (make_study(case),)), measurements, errors or {})


def judge_values(metric: str, bound: float, values: Sequence[float], device_type: DeviceType = "cuda") -> Verdict:
    """The verdict on a bound when these values were measured, one a round."""
    case = make_case(metric, bound)
    return judge(case, make_evidence(case, make_measurements(case, values), device_type), CONFIDENCE)
