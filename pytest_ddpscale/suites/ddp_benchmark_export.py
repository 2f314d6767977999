"""What `ddpscale suite pytorch-ddp` has measured, as that benchmark's JSON report, which its diff.py reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.metrics.rounds import ArmRounds, group_rounds
from pytest_ddpscale.plan.study import DeviceType, Study
from pytest_ddpscale.plan.variant import USUAL_BUCKET_CAP_MB, Variant
from pytest_ddpscale.results.ddp_benchmark_file import (
    CONFIGURATION,
    GPUS_PER_MACHINE,
    DdpBenchmark,
    DdpBenchmarkResult,
    ddp_benchmark_json,
)


def backend_of(device_type: DeviceType) -> str:
    """What ranks talk by."""
    return "nccl" if device_type == "cuda" else "gloo"


def exported_benchmark(evidence: Evidence, versions: Mapping[str, str], usual: Variant) -> dict[str, Any] | None:
    """The report, of JSON types; None if no model has one GPU without DDP, which that benchmark puts first.

    As there, a size that fits a machine is that of the first machine's first GPUs.

    Args:
        versions: of the software, by name.
        usual: the settings that the benchmark has by itself; other arms have no place in its report.
    """
    found = [one for study in evidence.plan.studies if (one := _benchmark(evidence, study, usual))]
    said = (
        versions.get("torch", "unknown"), versions.get("cuda"), backend_of(evidence.plan.device_type),
        int(USUAL_BUCKET_CAP_MB),
    )  # fmt: skip
    configuration = dict(zip(CONFIGURATION, said, strict=True))
    per_machine = {GPUS_PER_MACHINE: evidence.plan.layout.ranks_per_node}
    return ddp_benchmark_json({**configuration, **per_machine}, found) if found else None


def _benchmark(evidence: Evidence, study: Study, usual: Variant) -> DdpBenchmark | None:
    results = []
    for arm in study.arms:
        if arm.kind == "ddp" and arm.variant != usual:
            continue
        groups = group_rounds(evidence.columns, study.id, arm, evidence.plan.layout)
        result = _result(groups[0]) if len(groups) else None
        if result is None and arm.kind == "alone":
            return None
        results += [] if result is None else [result]
    return DdpBenchmark(study.workload.model, study.workload.batch_size, tuple(results))


def _result(measured: ArmRounds) -> DdpBenchmarkResult | None:
    """The steps of each rank, round after round, of rounds in which all ranks kept as many; None if there is none."""
    steps_s, counts = measured.measured.step_s.astype(np.float64), []
    of_rounds = []
    for row, there in enumerate(measured.present):
        of_ranks = [one[~np.isnan(one)] for one in steps_s[row, there]]
        if len({len(one) for one in of_ranks}) == 1 and len(of_ranks) == measured.present.shape[1] and len(of_ranks[0]):
            counts.append(len(of_ranks[0]))
            of_rounds.append(np.stack(of_ranks))
    if not of_rounds:
        return None
    together = np.concatenate(of_rounds, axis=1)
    return DdpBenchmarkResult(tuple(range(len(together))), tuple(together.ravel().tolist()), tuple(counts))
