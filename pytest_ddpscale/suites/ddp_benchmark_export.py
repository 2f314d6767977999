"""Results of `ddpscale suite pytorch-ddp` as JSON reports of PyTorch's benchmark, which its diff.py reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_ddpscale.compare.ddp_benchmark_file import (
    CONFIGURATION,
    FILE_NAME,
    GPUS_PER_MACHINE,
    DdpBenchmark,
    DdpBenchmarkResult,
    ddp_benchmark_json,
)
from pytest_ddpscale.judge.metrics import groups
from pytest_ddpscale.plan.arm import USUAL_BUCKET_CAP_MB, Variant
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.block import STEP_S
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.suites.suite import MeasuredSuite


def backend_of(device_type: DeviceType) -> str:
    """Backend of torch.distributed for a device type."""
    return "nccl" if device_type == "cuda" else "gloo"


def exported_files(measured: MeasuredSuite, usual: Variant) -> dict[str, dict[str, Any]]:
    """The reports as JSON types by file name: ``pytorch-ddp.json``, and one for each other bucket size.

    A bucket size is left out if no model was measured on one GPU without DDP, the benchmark's first row. As in the
    benchmark, a size that fits a machine is measured on the first GPUs of the first machine.

    Args:
        measured: by the suite.
        usual: the benchmark's default settings.
    """
    arms = (arm for study in measured.evidence.plan.studies for arm in study.arms if arm.kind == "ddp")
    found = {}
    for variant in dict.fromkeys((usual, *(arm.variant for arm in arms))):
        exported = _exported(measured.evidence, measured.versions, variant)
        if exported is not None:
            found[FILE_NAME if variant == usual else f"pytorch-ddp-bucket-{variant.bucket_cap_mb:g}.json"] = exported
    return found


def _exported(evidence: Evidence, versions: Mapping[str, str], variant: Variant) -> dict[str, Any] | None:
    found = [one for study in evidence.plan.studies if (one := _benchmark(evidence, study, variant))]
    bucket = variant.bucket_cap_mb or USUAL_BUCKET_CAP_MB
    said = (
        versions.get("torch", "unknown"), versions.get("cuda"), backend_of(evidence.plan.device_type),
        int(bucket) if bucket.is_integer() else bucket,
    )  # fmt: skip
    configuration = dict(zip(CONFIGURATION, said, strict=True))
    per_machine = {GPUS_PER_MACHINE: evidence.plan.layout.ranks_per_node}
    return ddp_benchmark_json({**configuration, **per_machine}, found) if found else None


def _benchmark(evidence: Evidence, study: Study, variant: Variant) -> DdpBenchmark | None:
    results = []
    for arm in study.arms:
        if arm.kind == "ddp" and arm.variant != variant:
            continue
        found = groups(evidence.columns, study.id, (arm,), evidence.plan.layout)
        result = _result(found.at(0)) if found.places else None
        if result is None and arm.kind == "alone":
            return None
        results += [] if result is None else [result]
    return DdpBenchmark(study.workload.family.model, study.workload.batch_size, tuple(results))


def _result(measured: ArmRounds) -> DdpBenchmarkResult | None:
    """Steps of each rank, from the rounds in which all ranks kept equally many; None without such rounds."""
    steps_s, counts = measured.reading(STEP_S).astype(np.float64), []
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
