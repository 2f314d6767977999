"""Requirements and measurements whose values are known beforehand.

Tests of other packages take types of the judge from here alone (flags of telemetry from `telemetry`), and what a
session calls: `judge`, `slow_links`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_ddpscale.compare.value_change import ValueChange as ValueChange
from pytest_ddpscale.compare.value_change import ValueInterval as ValueInterval
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.judge.links import gpu_pairs_of as gpu_pairs_of
from pytest_ddpscale.judge.links import slow_links as slow_links
from pytest_ddpscale.judge.stats import Estimate as Estimate
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.planner import Pace, build_plan
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.plan.workload import ImageFolderData, Workload
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import SeededStep
from pytest_ddpscale.thresholds.cases import Case, NodeCase, node_expectation
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


def make_case(
    metric: str, bound: float, world_size: int | None = None, workload: Workload = WORKLOAD, **keys: Any
) -> Case:
    """A requirement with a published bound, unless `keys` says otherwise."""
    definition = METRICS[metric]
    if definition.reads_folder:
        workload = replace(workload, data=IMAGES)
    world_size = world_size or min(2, definition.maximum_world_size or 2)
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
    return NodeCase(check_of_nodes(name, severity), name, "thresholds.yaml:7", node_expectation(sku))


def make_measurement(
    study: str, arm: Arm, round_: int, rank: int, samples_per_s: float = ALONE_SAMPLES_PER_S, **changes: Any
) -> Measurement:
    """One rank's block at a given pace."""
    step_s = (arm.batch_size / samples_per_s,) * STEPS
    measured: dict[str, Any] = {
        "local_rank": rank, "host": f"node{rank}", "device": f"GPU-{rank}", "batch_size": arm.batch_size,
        "steps": STEPS, "block_s": math.fsum(step_s), "started_unix_s": 1.7e9 + round_, "step_s": step_s,
        "utilization": 0.99, "peak_memory_bytes": GIB, "energy_j": ENERGY_J,
        "parameters_checksum": CHECKSUM if arm.kind == "ddp" else None,
    }  # fmt: skip
    return Measurement(study, arm.name, round_, rank, **(measured | changes))


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


def seeded_steps(study: Study, odd: Mapping[int, str] | None = None) -> dict[Place, SeededStep]:
    """The seeded step of every rank, all alike but for the checksums in `odd`, by rank."""
    checksums = odd or {}
    return {
        Place(f"node{rank}", rank, f"GPU-{rank}"): SeededStep(rank=rank, checksum=checksums.get(rank, CHECKSUM))
        for rank in range(study.world_size)
    }


def evidence_of_plan(
    plan: Plan,
    measurements: Sequence[Measurement],
    *,
    errors: Mapping[str, str] | None = None,
) -> Evidence:
    """A whole run."""
    return Evidence(
        plan,
        columns_of(measurements),
        errors or {},
        {study.id: FLOPS_PER_IMAGE for study in plan.studies},
        {study.id: seeded_steps(study) for study in plan.studies},
    )
