"""`ddpscale suite pytorch-ddp`: the models, sizes and tables of PyTorch's own DDP benchmark, in interleaved rounds.

Source: github.com/pytorch/pytorch, benchmarks/distributed/ddp/benchmark.py. Unchanged: fp32, SGD, 32 images per GPU,
broadcast_buffers off, one GPU without DDP and with it, then 2, 4 … GPUs of a node, then whole nodes; percentiles of the
step time over all steps of all ranks. Changed: arms take turns in rounds, so that ratios of arms have intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.judge.metrics import groups, merged
from pytest_ddpscale.plan.arm import USUAL_BUCKET_CAP_MB, Arm, Variant
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.where_time_goes import step_time_percentiles_ms
from pytest_ddpscale.run.block import STEP_S
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.suites.ddp_benchmark import (
    COLUMNS,
    CONFIGURATION,
    FILE_NAME,
    GPUS_PER_MACHINE,
    NO_DDP,
    RESULTS,
    DdpBenchmark,
    DdpBenchmarkResult,
    benchmark_lines,
    overheads,
    size_name,
    size_rows,
)
from pytest_ddpscale.suites.engine import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import MOST_BATCH, MOST_PIXELS, image_model, several, whole
from pytest_ddpscale.suites.results import Column, Results, Row, Rows
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.document import Line, Listing, Section

MODELS = ("resnet50", "resnet101", "resnext50_32x4d", "resnext101_32x8d")
BATCH_SIZE = 32
# The benchmark's only setting that differs from torch's defaults.
AS_THERE = Variant(broadcast_buffers=False)
_RATIOS = (
    Column("samples_per_s_per_gpu", "img/s per GPU", "{:.1f}", bare=True),
    Column("against_no_ddp", "Against no ddp", "{:.3f}×"),
    Column("against_bucket_25", "Against 25 MiB", "{:.3f}×"),
)


class PytorchDdp(Suite):
    """PyTorch's DDP benchmark."""

    name = "pytorch-ddp"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for models, batch and buckets, so that it also runs on small machines."""
        add = adder(parser)
        add("--models", "M1,M2", several(image_model), "torchvision models", ",".join(MODELS))
        add("--batch", "N", whole(MOST_BATCH), "images per GPU", BATCH_SIZE)
        add("--image-size", "PIXELS", whole(MOST_PIXELS), "", 224)
        add("--bucket-sizes", "MB,MB", several(_bucket_size),
            "bucket_cap_mb to compare with 25 MiB on all ranks, such as 1,5,10,50,100")  # fmt: skip
        parser.add_argument("--buckets-at-every-size", action="store_true",
            help="also compare them on one GPU, two, four …")  # fmt: skip

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each model."""
        batch, number = arguments.batch, nodes.machine.cluster.nodes
        buckets = sorted({*(arguments.bucket_sizes or ())} - {USUAL_BUCKET_CAP_MB})
        arms = [*arms_of(nodes.ranks_per_node, number, batch, buckets, arguments.buckets_at_every_size)]
        studies = (
            nodes.study(Workload(model, ImageFamily(model, arguments.image_size, "contiguous"), "fp32", batch), arms)
            for model in arguments.models
        )
        return nodes.plan(studies, survey=not nodes.is_cpu or number > 1)

    def unfit_of(self, surveys: Sequence[Survey]) -> dict[str, str]:
        """Hosts whose topology differs from the first host's; the original benchmark refuses them too."""
        first = surveys[0].topology if surveys else ""
        return {one.host: "its topology differs from the first node's" for one in surveys if one.topology != first}

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each model, size and bucket."""
        plan, rows, listings = measured.plan, list[Row](), list[str]()
        for study in plan.studies:
            of_study = [*_rows(measured, study)]
            usual = [row for row in of_study if row["bucket_cap_mb"] is None]
            rows += of_study
            if usual:
                listings.append("\n".join(benchmark_lines(study.workload.name, study.workload.batch_size, usual)))
        versions = measured.versions
        said = (
            f"PyTorch version: {versions.get('torch', 'unknown')}", f"CUDA version: {versions.get('cuda', 'none')}",
            f"Distributed backend: {_backend(plan)}",
        )  # fmt: skip
        topologies = [one.topology for one in measured.evidence.surveys.values() if one.topology][:1]
        told = Section("As the benchmark prints it", [*map(Line, said), *map(Listing, (*topologies, *listings))])
        table = Rows("pytorch-ddp", "Sizes and buckets", [*COLUMNS, *_RATIOS], rows, 3, [*overheads(rows)])
        findings = [f"{len({row['model'] for row in rows})} of {len(plan.studies)} models measured"]
        files = _files(measured)
        return Results("PyTorch's DDP benchmark", findings, [table], measured.problems(), more=[told], files=files)


def _bucket_size(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size <= 10**5:
        raise ValueError("sizes in MiB such as 1,5,50, above 0 and up to 100000")
    return size


def _backend(plan: Plan) -> str:
    return "nccl" if plan.device_type == "cuda" else "gloo"


def arms_of(
    ranks_per_node: int, nodes: int, batch: int, buckets: Sequence[float], every_size: bool = False
) -> Iterator[Arm]:
    """One GPU without DDP and with it, 2, 4 … of a node, whole nodes; bucket sizes on all ranks or at every size."""
    sizes = [2**power for power in range(ranks_per_node.bit_length()) if 2**power < ranks_per_node]
    sizes += [ranks_per_node * count for count in range(1, nodes + 1)]
    yield Arm("alone", 1, batch)
    for size in sizes:
        yield Arm("ddp", size, batch, variant=AS_THERE)
    for size in sizes if every_size else sizes[-1:]:
        for megabytes in buckets:
            yield Arm("ddp", size, batch, variant=replace(AS_THERE, bucket_cap_mb=megabytes))


def _rows(measured: MeasuredSuite, study: Study) -> Iterator[Row]:
    """Rows of arms that have steps; each beside one GPU without DDP, or beside the usual bucket on as many ranks."""
    layout, columns = measured.plan.layout, measured.evidence.columns
    times, alone = dict[Arm, dict[int, float]](), study.arms[0]
    for arm in study.arms:
        if in_ms := step_time_percentiles_ms(merged(columns, study.id, arm, layout)):
            times[arm] = {p: value / 1000.0 for p, value in in_ms.items()}
    sizes = [
        (NO_DDP if arm is alone else size_name(arm.world_size, layout.ranks_per_node), arm.world_size, of_arm)
        for arm, of_arm in times.items()
    ]
    usual = {arm.world_size: arm for arm in study.arms if arm.variant == AS_THERE}
    for arm, row in zip(times, size_rows(study.workload.family.model, sizes), strict=True):
        bucket = arm.variant.bucket_cap_mb
        beside = alone if bucket is None else usual[arm.world_size]
        ratio = None if arm is alone else measured.throughput(study, arm, beside)
        yield row | {
            "bucket_cap_mb": bucket, "samples_per_s_per_gpu": measured.throughput(study, arm),
            "against_no_ddp": ratio if bucket is None else None, "against_bucket_25": ratio if bucket else None,
        }  # fmt: skip


def _files(measured: MeasuredSuite) -> dict[str, dict[str, Any]]:
    """Reports of the benchmark by file name: ``pytorch-ddp.json``, and one for each other bucket size.

    A bucket size is left out if no model was measured on one GPU without DDP, the benchmark's first row. As in the
    benchmark, a size that fits a machine is measured on the first GPUs of the first machine.
    """
    plan, versions, found = measured.plan, measured.versions, {}
    variants = (arm.variant for study in plan.studies for arm in study.arms if arm.kind == "ddp")
    for variant in dict.fromkeys((AS_THERE, *variants)):
        benchmarks = [one for study in plan.studies if (one := _benchmark(measured, study, variant))]
        bucket = variant.bucket_cap_mb or USUAL_BUCKET_CAP_MB
        said = (
            versions.get("torch", "unknown"), versions.get("cuda"), _backend(plan),
            int(bucket) if bucket.is_integer() else bucket,
        )  # fmt: skip
        name = FILE_NAME if variant == AS_THERE else f"pytorch-ddp-bucket-{bucket:g}.json"
        if benchmarks:
            found[name] = {
                **dict(zip(CONFIGURATION, said, strict=True)), GPUS_PER_MACHINE: plan.layout.ranks_per_node,
                RESULTS: msgspec.to_builtins(benchmarks),
            }  # fmt: skip
    return found


def _benchmark(measured: MeasuredSuite, study: Study, variant: Variant) -> DdpBenchmark | None:
    results = list[DdpBenchmarkResult]()
    for arm in study.arms:
        if arm.kind == "ddp" and arm.variant != variant:
            continue
        found = groups(measured.evidence.columns, study.id, (arm,), measured.plan.layout)
        result = _result(found.at(0)) if found.places else None
        if result is None and arm.kind == "alone":
            return None
        results += [] if result is None else [result]
    return DdpBenchmark(study.workload.family.model, study.workload.batch_size, tuple(results))


def _result(measured: ArmRounds) -> DdpBenchmarkResult | None:
    """Steps of each rank, from the rounds in which all ranks kept equally many; None without such rounds."""
    rounds = list[Any]()
    for steps_s in measured.reading(STEP_S).astype(np.float64):
        of_ranks = [one[~np.isnan(one)] for one in steps_s]
        if len({len(one) for one in of_ranks}) == 1 and len(of_ranks[0]):
            rounds.append(np.stack(of_ranks))
    if not rounds:
        return None
    together = np.concatenate(rounds, axis=1)
    steps = tuple(together.ravel().tolist())
    return DdpBenchmarkResult(tuple(range(len(together))), steps, tuple(one.shape[1] for one in rounds))
