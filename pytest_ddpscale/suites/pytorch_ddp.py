"""`ddpscale suite pytorch-ddp`: the models, sizes and tables of PyTorch's own DDP benchmark, in interleaved rounds.

Source: github.com/pytorch/pytorch, benchmarks/distributed/ddp/benchmark.py. Unchanged: fp32, SGD, 32 images per GPU,
broadcast_buffers off, one GPU without DDP and with it, then 2, 4 … GPUs of a node, then whole nodes; percentiles of the
step time over all steps of all ranks, of several nodes at a size that fits one those of the first. Changed: arms take
turns in rounds, so that ratios of arms have intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.judge.metrics import groups
from pytest_ddpscale.plan.arm import USUAL_BUCKET_CAP_MB, Arm, Variant
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.block import STEP_S
from pytest_ddpscale.suites.ddp_benchmark import (
    COLUMNS,
    FILE_NAME,
    NO_DDP,
    DdpBenchmark,
    DdpBenchmarkFile,
    DdpBenchmarkResult,
    printed,
    size_name,
    size_rows,
)
from pytest_ddpscale.suites.engine import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import MOST_BATCH, MOST_PIXELS, above_zero, image_model, several, whole
from pytest_ddpscale.suites.results import Column, Results, Rows
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.command_parser import adder

# The benchmark's only setting that differs from torch's defaults.
AS_THERE = Variant(broadcast_buffers=False)
_NOTES = (
    "Ratio: throughput over that of one GPU without DDP, of another bucket_cap_mb over that of 25 on as many GPUs, in "
    "the same rounds.",
)
Found = dict[Arm, DdpBenchmarkResult]


class PytorchDdp(Suite):
    """PyTorch's DDP benchmark."""

    name = "pytorch-ddp"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for models, batch and buckets, so that it also runs on small machines."""
        add = adder(parser)
        models = "resnet50,resnet101,resnext50_32x4d,resnext101_32x8d"
        add("--models", "M1,M2", several(image_model), "torchvision models", models)
        add("--batch", "N", whole(MOST_BATCH), "images per GPU", 32)
        add("--image-size", "PIXELS", whole(MOST_PIXELS), "", 224)
        told = "bucket_cap_mb to compare with 25 MiB at every size, such as 1,5,10,50,100"
        add("--bucket-sizes", "MB,MB", several(above_zero), told)

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each model."""
        batch, number = arguments.batch, nodes.machine.cluster.nodes
        buckets = sorted({*(arguments.bucket_sizes or ())} - {USUAL_BUCKET_CAP_MB})
        arms = [*arms_of(nodes.ranks_per_node, number, batch, buckets)]
        studies = (
            nodes.study(Workload(model, ImageFamily(model, arguments.image_size, "contiguous"), "fp32", batch), arms)
            for model in arguments.models
        )
        return nodes.plan(studies, survey=not nodes.is_cpu or number > 1)

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each model, size and bucket."""
        plan = measured.plan
        found = {study: _results(measured, study) for study in plan.studies}
        models = [_rows(measured, study, of) for study, of in found.items() if of]
        rows = [row for of_model in models for row in of_model]
        files = _files(measured, found)
        usual = [[row for row in of_model if row["bucket_cap_mb"] is None] for of_model in models]
        topologies = dict.fromkeys(one.topology for one in measured.evidence.surveys.values() if one.topology)
        more = [printed(files[FILE_NAME], usual, topologies)] if FILE_NAME in files else []
        columns = [*COLUMNS, Column("ratio", "Ratio", "{:.3f}×")]
        table = Rows("pytorch-ddp", "Sizes and buckets", columns, rows, 3, _NOTES)
        told = f"{len(models)} of {len(found)} models measured"
        return Results(
            "PyTorch's DDP benchmark", [told], [table], measured.problems(), more=more,
            files={name: msgspec.to_builtins(file) for name, file in files.items()},
        )  # fmt: skip


def arms_of(ranks_per_node: int, nodes: int, batch: int, buckets: Sequence[float]) -> Iterator[Arm]:
    """One GPU without DDP and with it, 2, 4 … of a node, whole nodes; then each other bucket size at every size."""
    sizes = [2**power for power in range(ranks_per_node.bit_length()) if 2**power < ranks_per_node]
    sizes += [ranks_per_node * count for count in range(1, nodes + 1)]
    yield Arm("alone", 1, batch)
    for variant in (AS_THERE, *(replace(AS_THERE, bucket_cap_mb=megabytes) for megabytes in buckets)):
        yield from (Arm("ddp", size, batch, variant=variant) for size in sizes)


def _results(measured: MeasuredSuite, study: Study) -> Found:
    """Steps of each rank, from the rounds in which all ranks kept equally many; without arms that have none."""
    found = Found()
    for arm in study.arms:
        of = groups(measured.evidence.columns, study.id, (arm,), measured.plan.layout)
        rounds = list[FloatArray]()
        for steps_s in of.at(0).reading(STEP_S).astype(np.float64) if of.places else ():
            of_ranks = [one[~np.isnan(one)] for one in steps_s]
            if len({len(one) for one in of_ranks}) == 1 and len(of_ranks[0]):
                rounds.append(np.stack(of_ranks))
        if rounds:
            steps = tuple(np.concatenate(rounds, axis=1).ravel().tolist())
            found[arm] = DdpBenchmarkResult(tuple(range(arm.world_size)), steps, tuple(one.shape[1] for one in rounds))
    return found


def _rows(measured: MeasuredSuite, study: Study, found: Found) -> list[dict[str, Any]]:
    per_node, alone = measured.plan.layout.ranks_per_node, study.arms[0]
    sizes = ((NO_DDP if arm is alone else size_name(arm.world_size, per_node), of) for arm, of in found.items())
    rows = size_rows(study.workload.family.model, sizes)
    for arm, row in zip(found, rows, strict=True):
        bucket = arm.variant.bucket_cap_mb
        beside = alone if bucket is None else replace(arm, variant=AS_THERE)
        ratio = None if arm is alone else measured.throughput(study, arm, beside)
        row |= {"bucket_cap_mb": bucket, "ratio": ratio}
    return rows


def _files(measured: MeasuredSuite, found: Mapping[Study, Found]) -> dict[str, DdpBenchmarkFile]:
    """Reports of the benchmark by file name: ``pytorch-ddp.json``, and one for each other bucket size.

    A model is left out if it was not measured on one GPU without DDP, the benchmark's first row. As in the benchmark, a
    size that fits a machine is measured on the first GPUs of the first machine.
    """
    plan, versions, files = measured.plan, measured.versions, dict[str, DdpBenchmarkFile]()
    for variant in dict.fromkeys(arm.variant for study in found for arm in study.arms[1:]):
        bucket = variant.bucket_cap_mb or USUAL_BUCKET_CAP_MB
        benchmarks = [
            DdpBenchmark(study.workload.family.model, study.workload.batch_size, tuple(
                result for arm, result in of.items() if arm.kind == "alone" or arm.variant == variant
            ))
            for study, of in found.items() if study.arms[0] in of
        ]  # fmt: skip
        name = FILE_NAME if variant == AS_THERE else f"pytorch-ddp-bucket-{bucket:g}.json"
        if benchmarks:
            files[name] = DdpBenchmarkFile(
                versions.get("torch", "unknown"), versions.get("cuda"), "gloo" if plan.device_type == "cpu" else "nccl",
                int(bucket) if bucket.is_integer() else bucket, tuple(benchmarks), plan.layout.ranks_per_node,
            )  # fmt: skip
    return files
