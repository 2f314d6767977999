"""`ddpscale suite pytorch-ddp`: PyTorch's own DDP benchmark in interleaved rounds, and the JSON report that it writes.

Source: github.com/pytorch/pytorch, benchmarks/distributed/ddp/benchmark.py. Unchanged: fp32, SGD, 32 images per GPU,
broadcast_buffers off, one GPU without DDP and with it, then 2, 4 … GPUs of a node, then whole nodes; percentiles of the
step time over all steps of all ranks. Changed: arms take turns in rounds, so that ratios of arms have intervals.

The report has the configuration and ``benchmark_results``, which has the results of each model by size: ``ranks`` that
trained, and ``measurements``, the seconds of every step of the first rank, then of the second, and so on. The first
result of a model is one GPU without DDP. Our files have two more keys, which its diff.py ignores: ``gpus_per_machine``
and, in results, ``steps_per_round``.

diff.py pools all steps of all ranks for percentiles. Pooled steps are not independent. Ranks wait for each other, so
for the interval a step counts once, as the mean of its ranks. Successive steps are correlated, which the interval of a
series allows for up to 0.5 (`pytest_ddpscale.judge.stats`). If a file records which steps belong to a round, rounds
count instead of steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct
from msgspec.json import Decoder

from pytest_ddpscale.errors import OptionError, ResultFileError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.judge.metrics import groups
from pytest_ddpscale.judge.stats import Estimate, estimate_of
from pytest_ddpscale.plan.arm import USUAL_BUCKET_CAP_MB, Arm, Variant
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.block import STEP_S
from pytest_ddpscale.run.strict_json import Positive, decode
from pytest_ddpscale.suites.comparing import SuiteDiff, diff_of
from pytest_ddpscale.suites.engine import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import above_zero, image_model, number, several
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows, cell_with_ends
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.document import Block, Line, Listing, Section
from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.util.printable import one_line
from pytest_ddpscale.util.regular_file import read_regular

FILE_NAME = "pytorch-ddp.json"  # in the run directory of a suite
PERCENTS, PERCENTS_OF_DIFF, NO_DDP = (50, 75, 90, 95), (75, 95), "no ddp"
# The benchmark's only setting that differs from torch's defaults.
AS_THERE = Variant(broadcast_buffers=False)
_AT_LEAST_ONE = Meta(min_length=1)
_BESIDE = (
    Column("mean_s", "Mean s", better=-1), Column("efficiency", "Of no ddp", "{:.1%}"),
    Column("ratio", "Of 25 MiB", "{:.3f}×"),
)  # fmt: skip
_COLUMNS = (
    Column("model", "Model"), Column("batch", "Batch"), Column("size", "Size"),
    Column("bucket_cap_mb", "bucket_cap_mb"), Column("gpus", "Devices"), *_BESIDE,
)  # fmt: skip
_MODEL = itemgetter("model", "batch")
_DRAWN = Drawn("Throughput per device over no ddp", "gpus", ("efficiency",), "curve")
_HEAD = (
    "* PyTorch version: {pytorch_version}\n* CUDA version: {cuda_version}\n"
    "* Distributed backend: {distributed_backend}\n* Maximum bucket size: {bucket_size}MB"
)
_HOW = (
    "Beside the percentiles: the mean step of the ranks; throughput over no ddp, and over buckets of 25 MiB on as many "
    "devices, in the same rounds, or, without rounds, by p50."
)


class DdpBenchmarkResult(Struct, frozen=True, omit_defaults=True):
    """One size.

    Attributes:
        ranks: ranks that trained together.
        measurements: seconds of each step, rank after rank.
        steps_per_round: steps of each rank in each round, in order; only in our files, where sizes take turns. None if
            all steps were made in one go.
    """

    ranks: Annotated[tuple[int, ...], _AT_LEAST_ONE]
    measurements: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], _AT_LEAST_ONE]
    steps_per_round: Annotated[tuple[Positive, ...], _AT_LEAST_ONE] | None = None

    def __post_init__(self) -> None:
        if len(self.measurements) % len(self.ranks):
            raise ValueError("measurements that are no multiple of ranks")

    @property
    def separate_s(self) -> list[float]:
        """Mean step time of each round, or of each step if the file has no rounds: seconds, in order.

        The mean of all ranks: under DDP they wait for each other, so their times are one value, not many.
        """
        of_steps = np.reshape(self.measurements, (len(self.ranks), -1)).mean(axis=0)
        ends = np.cumsum(self.steps_per_round or [1] * len(of_steps))
        return [one.mean() for one in np.split(of_steps, ends[:-1])]


class DdpBenchmark(Struct, frozen=True):
    """One model; `result` by number of GPUs, one GPU without DDP first."""

    model: str
    batch_size: Positive
    result: Annotated[tuple[DdpBenchmarkResult, ...], _AT_LEAST_ONE]

    def __post_init__(self) -> None:
        if len(self.result[0].ranks) > 1:
            raise ValueError("a first result of several ranks; expected one GPU without DDP")


class DdpBenchmarkFile(Struct, frozen=True):
    """A whole report."""

    bucket_size: int | float | None
    cuda_version: str | None
    distributed_backend: str | None
    pytorch_version: str | None
    benchmark_results: Annotated[tuple[DdpBenchmark, ...], _AT_LEAST_ONE]
    gpus_per_machine: Positive = 8  # fixed in PyTorch's benchmark

    @property
    def configuration(self) -> dict[str, str]:
        """All but the results, as it is printed."""
        return {key: one_line(str(getattr(self, key))) for key in self.__struct_fields__[:4]}

    @property
    def devices(self) -> str:
        """GPUs, or CPUs, which have no version of CUDA."""
        return "GPUs" if self.cuda_version else "CPUs"


def read_ddp_benchmark(path: Path) -> DdpBenchmarkFile:
    """Read a report. Raises ResultFileError if it is invalid or contradicts itself."""
    try:
        return decode(Decoder(DdpBenchmarkFile), read_regular(path))
    except (OSError, ValueError) as error:
        raise ResultFileError(
            str(path), f"cannot be read as a report ({getattr(error, 'strerror', None) or error})",
            "a file that benchmark.py --json wrote",
            "Name such a file, or the run directory of `ddpscale suite pytorch-ddp`.",
        ) from None  # fmt: skip


def report_at(path: Path) -> Path | None:
    """The path of the report: the file itself, or the one in a suite's run directory; None if there is none."""
    file = path / FILE_NAME if path.is_dir() else path
    return file if file.is_file() else None


def results_of_file(file: DdpBenchmarkFile, confidence: float = 0.95, usual: DdpBenchmarkFile | None = None) -> Results:
    """Configuration and each model's rows as the benchmark prints them, and our estimates beside.

    Weak scaling: each GPU has the same batch at every size, so efficiency is a ratio of step times. ``2M/8G``: sixteen
    GPUs of two machines. Printed examples per second are per GPU and truncated.

    Args:
        file: what is told.
        confidence: of the intervals.
        usual: the same with the usual buckets, to compare with; None if these are.
    """
    lines, table_rows, best = [_HEAD.format_map(file.configuration)], list[Row](), list[str]()
    theirs = (
        {(of.model, len(result.ranks)): result for of in usual.benchmark_results for result in of.result}
        if usual
        else {}
    )
    for of in file.benchmark_results:
        lines += ["", f"Benchmark: {of.model} with batch size {of.batch_size}", ""]
        rows, printed = list[Row](), [" " * 28 + "    ".join(["sec/iter    ex/sec  "] * len(PERCENTS)).rstrip()]
        for result in of.result:
            gpus, is_ddp = len(result.ranks), result is not of.result[0]
            machines, other = max(1, gpus // file.gpus_per_machine), theirs.get((of.model, gpus))
            size = f"{machines}M/{gpus // machines}G" if is_ddp else NO_DDP
            times = {p: float(np.percentile(result.measurements, p)) for p in PERCENTS}
            cells = (f"  p{p:02d}:  {s:1.3f}s  {int(of.batch_size / s):6d}/s" for p, s in times.items())
            printed.append(f"{gpus:4d} {file.devices} -- {size:>8}:{''.join(cells)}")
            rows.append({
                "model": of.model, "batch": of.batch_size, "size": size, "gpus": gpus,
                "curve": f"{of.model}, {file.bucket_size} MiB", "bucket_cap_mb": file.bucket_size,
                "mean_s": estimate_of(result.separate_s, "factors", confidence),
                "efficiency": _throughput(result, of.result[0], confidence) if is_ddp else None,
                "ratio": _throughput(result, other, confidence) if is_ddp and other else None,
                **{f"p{p}_s": seconds for p, seconds in times.items()},
            })  # fmt: skip
        for column in (column for column in _BESIDE if any(row[column.key] for row in rows)):
            texts = [column.title, *(cell_with_ends(row[column.key], column.form) for row in rows)]
            width = max(map(len, texts))
            printed = [f"{line}   {text:>{width}}" for line, text in zip(printed, texts, strict=True)]
        lines += printed
        kept = cell_with_ends(rows[-1]["efficiency"], _BESIDE[1].form)
        best += [f"{of.model} keeps {kept} on {rows[-1]['gpus']} {file.devices}"] * bool(rows[1:])
        table_rows += rows
    original = Section("As the benchmark prints it", [Line(_HOW), Listing("\n".join(lines))])
    table = Rows("pytorch-ddp", "", _COLUMNS, table_rows, 3, drawn=_DRAWN)
    findings = [first_few(best or [f"{len(table_rows)} without DDP, none with it"])]
    return Results("PyTorch's DDP benchmark", findings, [table], more=[original])


def _throughput(result: DdpBenchmarkResult, other: DdpBenchmarkResult, confidence: float) -> Estimate | float | None:
    """Throughput per device over another's: in the same rounds if both have rounds, else by p50."""
    if result.steps_per_round and other.steps_per_round:
        pairs = zip(other.separate_s, result.separate_s, strict=False)
        return estimate_of([theirs / ours for theirs, ours in pairs], "factors", confidence)
    return float(np.median(other.measurements) / np.median(result.measurements))


def read_diff(paths: Sequence[Path], confidence: float) -> SuiteDiff:
    """The comparison of two reports, or of the run directories that have them. Raises BadInput."""
    reports = [report_at(path) or path for path in paths]
    if len({path.resolve() for path in reports}) < len(reports):
        raise OptionError("RUN_DIR", f"found {paths[0]} twice", "two reports")
    files = [read_ddp_benchmark(path) for path in reports]
    a, b = (results_of_file(file, confidence).tables[0] for file in files)
    of_mean = [Results("", tables=[replace(table, columns=[*_COLUMNS[:3], _BESIDE[0]])]) for table in (a, b)]
    return diff_of(*of_mean, kind="pytorch-ddp", notes=[*_diff_lines(files, a.rows, b.rows)])


def _diff_lines(files: Sequence[DdpBenchmarkFile], rows: Sequence[Row], others: Sequence[Row]) -> Iterator[str]:
    """As diff.py prints it: examples per second per GPU in the test, truncated; positive is faster."""
    yield f"{'':20s} {'baseline':>20s}      {'test':>20s}"
    yield f"{'':20s} {'-' * 20}      {'-' * 20}"
    for (key, value), other in zip(*(file.configuration.items() for file in files), strict=True):
        yield f"{key + ':':20s} {value:>20s}  vs  {other[1]:>20s}"
    by_key = {(*_MODEL(row), row["size"]): row for row in others if row["size"] != NO_DDP}
    for (model, batch), of_model in groupby(rows, _MODEL):
        head = f"{'sec/iter':>16s}{'ex/sec':>10s}{'diff':>10s}" * len(PERCENTS_OF_DIFF)
        yield from ("", f"Benchmark: {model} with batch size {batch}", "", " " * 10 + head)
        for row in (row for row in of_model if (model, batch, row["size"]) in by_key):
            cells = ""
            for p in PERCENTS_OF_DIFF:
                before, after = (one[f"p{p}_s"] for one in (row, by_key[model, batch, row["size"]]))
                share = -100 * ((after - before) / before)  # as in diff.py, also for the sign of 0
                cells += f"  p{p:02d}: {after:8.3f}s {int(batch / after):7d}/s {share:+8.1f}%"
            yield f"{row['gpus']:>4d} {files[0].devices}:{cells}"
    yield ""


class PytorchDdp(Suite):
    """PyTorch's DDP benchmark."""

    name = "pytorch-ddp"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for models, batch and buckets, so that it also runs on small machines."""
        add = adder(parser)
        models = "resnet50,resnet101,resnext50_32x4d,resnext101_32x8d"
        add("--models", "M1,M2", several(image_model), "torchvision models", models)
        add("--batch", "N", number, "images per GPU", 32)
        add("--image-size", "PIXELS", number, "", 224)
        explanation = "bucket_cap_mb to compare with 25 MiB at every size, such as 1,5,10,50,100"
        add("--bucket-sizes", "MB,MB", several(_variant), explanation)

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each model: one GPU without DDP; with it 1, 2, 4 … of a node, then whole nodes."""
        batch, per_node = arguments.batch, nodes.ranks_per_node
        sizes = [2**power for power in range((per_node - 1).bit_length())]
        sizes += range(per_node, nodes.world_size + 1, per_node)
        variants = dict.fromkeys((AS_THERE, *(arguments.bucket_sizes or ())))
        arms = [Arm("ddp", size, batch, variant=variant) for variant in variants for size in sizes]
        families = (ImageFamily(model, arguments.image_size, "contiguous") for model in arguments.models)
        studies = (
            nodes.study(Workload(family.model, family, "fp32", batch), [Arm("alone", 1, batch), *arms])
            for family in families
        )
        return nodes.plan(studies, survey=not nodes.is_cpu)  # which has the topology

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each model, size and bucket, of models that were measured on one GPU without DDP.

        The run directory gets a report of the benchmark for each bucket size. As in the benchmark, a size that fits a
        machine is measured on the first GPUs of the first machine.
        """
        plan, versions, files, rows = measured.plan, measured.versions, dict[str, Any](), list[Row]()
        links = [survey.topology for survey in measured.evidence.surveys.values()]
        more: list[Block] = [Section("nvidia-smi topo -m", [Listing(topology)]) for topology in links[:1] if topology]
        usual, findings, is_cpu = None, list[str](), plan.device_type == "cpu"
        for variant in dict.fromkeys(arm.variant for arm in plan.studies[0].arms[1:]):
            models = [*filter(None, (_benchmark(measured, study, variant) for study in plan.studies))]
            if not models:
                continue
            bucket, is_usual = variant.bucket_cap_mb or USUAL_BUCKET_CAP_MB, variant == AS_THERE
            file = DdpBenchmarkFile(
                int(bucket) if bucket % 1 == 0 else bucket, None if is_cpu else versions.get("cuda"),
                "gloo" if is_cpu else "nccl", versions.get("torch"), tuple(models), plan.layout.ranks_per_node,
            )  # fmt: skip
            files[FILE_NAME if is_usual else f"pytorch-ddp-bucket-{bucket:g}.json"] = file
            of_file = results_of_file(file, measured.confidence, usual)
            usual = usual or file
            findings, more = findings or [*of_file.findings], [*more, *of_file.more]
            rows += [row for row in of_file.tables[0].rows if is_usual or row["size"] != NO_DDP]
        table = Rows("pytorch-ddp", "", _COLUMNS, rows, 4, drawn=_DRAWN)
        return Results("PyTorch's DDP benchmark", findings, [table], measured.problems(), more=more, files=files)


def _variant(text: str) -> Variant:
    size = above_zero(text)
    return AS_THERE if size == USUAL_BUCKET_CAP_MB else replace(AS_THERE, bucket_cap_mb=size)


def _benchmark(measured: MeasuredSuite, study: Study, variant: Variant) -> DdpBenchmark | None:
    """Steps that all ranks made of each arm; None without those of one GPU without DDP."""
    results = list[DdpBenchmarkResult]()
    for arm in (arm for arm in study.arms if arm.kind == "alone" or arm.variant == variant):
        of = groups(measured.evidence.columns, study.id, (arm,), measured.plan.layout)
        steps_s: Iterable[Any] = of.at(0).reading(STEP_S).astype(np.float64) if of.places else ()
        if rounds := [some for block_s in steps_s if (some := block_s[:, ~np.isnan(block_s).any(axis=0)]).size]:
            steps = tuple(np.concatenate(rounds, axis=1).ravel().tolist())
            counts = tuple(of_round.shape[1] for of_round in rounds)
            results.append(DdpBenchmarkResult(tuple(range(arm.world_size)), steps, counts))
        elif arm.kind == "alone":
            return None
    return DdpBenchmark(study.workload.family.model, study.workload.batch_size, tuple(results))
