"""Import results of willgpaik/pytorch-ddp-scaling-benchmark as a run that can be judged.

That tool's ``benchmark_ddp.py`` writes one JSON object per world size: one long sample, with means and deviations per
rank. The run directory made from them has one round, whose spread is that of its steps (the reading `single_sample`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from itertools import chain, count, groupby, pairwise
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from pytest_ddpscale.errors import ResultFileError, SkuError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.hardware import is_named
from pytest_ddpscale.plan.study import Plan, Scaling, Study
from pytest_ddpscale.plan.words import Precision
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.block import Block, Value
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import GangRecord, Rank
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord, now_iso
from pytest_ddpscale.run.strict_json import column, decode
from pytest_ddpscale.thresholds.model import Thresholds
from pytest_ddpscale.util.regular_file import read_regular

TOOL = "willgpaik/pytorch-ddp-scaling-benchmark"
UNKNOWN_HOST = "imported"
_NOTES = (
    "single samples: intervals come from the step-time standard deviation",
    "one GPU was wrapped in DistributedDataParallel too (ddp@1): the source times no bare model (alone)",
    "every step was followed by a synchronize, and throughput is batch over mean step time",
    "host names and GPU UUIDs are unknown: the source records none",
)
# As `json` writes it.
_ANSI_CODE = re.compile(rb"\\u001b\[[0-9;?]*[ -/]*[@-~]")

# Beyond any existing machine, and small enough to avoid overflow.
_Positive = Annotated[float, Meta(ge=1e-9, le=1e15)]
_NotNegative = Annotated[float, Meta(ge=0, le=1e15)]
_Whole = Annotated[int, Meta(ge=1, le=10**15)]
_Text = Annotated[str, Meta(pattern=r"\S")]


class PaikActivity(Struct, frozen=True):
    """nvidia-smi's utilization.gpu, in per cent; the mean is None if it gave no answer."""

    mean: Annotated[float, Meta(ge=0, le=100)] | None


class PaikSampling(Struct, frozen=True):
    """Samples from nvidia-smi."""

    gpu_activity_pct: PaikActivity


class PaikRank(Struct, frozen=True):
    """One rank: its steps, their mean and sample deviation in seconds, and its peak memory in GiB, called GB there."""

    rank: int
    n_steps: _Whole
    mean_step_sec: _Positive
    stdev_step_sec: _NotNegative
    peak_mem_gb: _Positive
    gpu_sampling: PaikSampling | None

    @property
    def utilization(self) -> float | None:
        """Utilization as a share, 0 … 1; None if it was not sampled."""
        percent = self.gpu_sampling.gpu_activity_pct.mean if self.gpu_sampling else None
        return None if percent is None else percent / 100


class PaikResult(Struct, frozen=True, kw_only=True):
    """One result file, at `path`: one workload at one world size."""

    path: str = ""
    scaling_mode: Scaling
    world_size: _Whole
    nodes: _Whole
    model: Annotated[str, Meta(pattern="^[A-Za-z0-9_]+$")]  # it becomes part of study ids, and so of file names
    precision: Precision
    batch_size_per_gpu: _Whole
    global_batch_size: _Whole
    image_size: _Whole
    channels_last: bool
    compile: bool
    warmup_sec_target: _NotNegative
    bench_sec_target: _Positive
    device_name: _Text
    torch_version: _Text
    cuda_version: _Text | None
    nccl_topology: _Text | None
    per_rank: tuple[PaikRank, ...]

    def __post_init__(self) -> None:
        batch = self.batch_size_per_gpu * self.world_size
        if self.global_batch_size != batch:
            raise ValueError(
                f"global_batch_size is {self.global_batch_size}; expected {batch}, batch_size_per_gpu x ranks"
            )
        if [one.rank for one in self.per_rank] != list(range(self.world_size)):
            raise ValueError(f"per_rank does not hold the ranks 0 to {self.world_size - 1} in order")

    @property
    def workload(self) -> Workload:
        """The workload that files of one study share: without a name, with the batch that is constant over sizes."""
        is_strong = self.scaling_mode == "strong"
        return Workload(
            "",
            ImageFamily(self.model, self.image_size, "channels_last" if self.channels_last else "contiguous"),
            self.precision,
            self.global_batch_size if is_strong else self.batch_size_per_gpu,
            global_batch_size=self.global_batch_size if is_strong else None,
            compile=self.compile,
        )

    @property
    def arm(self) -> Arm:
        """The arm that the file measured."""
        return Arm("ddp", self.world_size, self.batch_size_per_gpu)


_DECODER = Decoder(PaikResult)


def import_paik(source: Path, out: Path, sku: str | None, thresholds: Thresholds) -> RunDirectory:
    """Write a run directory from a directory of result files.

    Args:
        source: directory of the ``*.json`` files, searched with its subdirectories.
        out: the run directory to create.
        sku: name or alias of the SKU; None to find it by the device name in the files.
        thresholds: for the SKUs' device names and the names of their workloads.

    Raises:
        ResultFileError: a file is invalid, two files contradict each other, or there is no file.
        SkuError: the SKU is unknown, or does not match the files.
        RunDirectoryError: `out` cannot be written, or already holds a run.

    Nothing is written before all files are validated.
    """
    files = _read_files(source)
    name = _sku_name(files, sku, thresholds)
    workloads = thresholds.skus[name].workloads
    grouped = _grouped(files)
    names = _workload_names(list(grouped), workloads)
    studies = [
        Study(
            scaling=group[0].scaling_mode,
            workload=dataclasses.replace(ours, name=names[ours]),
            arms=tuple(file.arm for file in group),
            rounds=1,
            block_s=max(file.bench_sec_target for file in group),
            warmup_s=max(file.warmup_sec_target for file in group),
        )
        for ours, group in grouped.items()
    ]
    plan = Plan(sku=name, device_type="cuda", studies=tuple(studies))
    pairs = [(study, file) for study, group in zip(studies, grouped.values(), strict=True) for file in group]
    gangs = [_gang(file, number) for number, (_, file) in enumerate(pairs)]
    blocks = [_block(study.id, file, number) for number, (study, file) in enumerate(pairs)]
    records = [record for both in zip(gangs, blocks, strict=True) for record in both]
    notes = [
        f"{study.id}: measured with {setting} {ours}; the thresholds have {theirs}"
        for study in studies
        if (known := workloads.get(study.workload.name))
        for setting, ours, theirs in _differences(study.workload, known)
    ]
    run = RunDirectory.create(out)
    run.write_json(run.plan_json, plan)
    run.append_records(records)
    # Last, because run.json marks a directory as a run.
    run.write_json(run.run_json, _run(name, source, files, gangs, notes))
    return run


def _read_files(directory: Path) -> list[PaikResult]:
    """Every ``*.json`` in a directory and below it, in the order of their paths. Raises ResultFileError."""
    paths = sorted(path for path in directory.rglob("*.json") if path.is_file())
    if not paths:
        found = "holds no *.json file" if directory.is_dir() else "is not a directory"
        raise ResultFileError(
            str(directory), found, f"a directory of result files of {TOOL}",
            "Name the directory that its --output-json wrote to.",
        )  # fmt: skip
    files = []
    for path in paths:
        try:
            files.append(replace(decode(_DECODER, _ANSI_CODE.sub(b"", read_regular(path))), path=str(path)))
        except (OSError, ValueError) as error:
            raise ResultFileError(
                str(path), f"is not a valid result ({error})", f"a result file of {TOOL}",
                f"Restore {path.name} from a copy, measure it again, or move it elsewhere.",
            ) from None  # fmt: skip
    return files


def _sku_name(files: list[PaikResult], asked: str | None, thresholds: Thresholds) -> str:
    """The SKU that all files come from. Files of two SKUs are refused."""
    patterns = {name: sku.detect.name for name, sku in thresholds.skus.items()}

    def skus_of(file: PaikResult) -> list[str]:
        return [name for name, pattern in patterns.items() if pattern and is_named(file.device_name, pattern)]

    first, *others = files
    found = skus_of(first)
    for other in others:
        # Driver versions name the same GPU differently; its SKU matches all the names.
        if other.device_name != first.device_name and not set(found) & set(skus_of(other)):
            raise ResultFileError(
                other.path, f"is of {other.device_name!r}, while {first.path} is of {first.device_name!r}",
                "results of one GPU model", "Keep the results of each GPU model in a directory of its own.",
            )  # fmt: skip
    if asked is None and len(found) == 1:
        return found[0]
    if asked is None:
        which = f"several SKUs of the thresholds: {', '.join(found)}" if found else "no SKU of the thresholds"
        raise SkuError(
            first.path, f"device {first.device_name!r} is {which}",
            f"exactly one of {', '.join(found or thresholds.skus)}", "Name the SKU with --gpu-sku SKU.",
        )  # fmt: skip
    name = thresholds.canonical_name(asked)
    if name is None:
        raise SkuError(
            "--gpu-sku", f"the thresholds have no SKU {asked!r}", f"one of {', '.join(thresholds.skus)}", "Correct it."
        )
    if found and name not in found:
        raise SkuError(
            "--gpu-sku", f"names {name}, but {first.path} is of {first.device_name!r}, which is {' or '.join(found)}",
            "the SKU that was measured", "Leave out --gpu-sku, or correct it.",
        )  # fmt: skip
    return name


def _grouped(files: Iterable[PaikResult]) -> dict[Workload, list[PaikResult]]:
    """The files of each study, by world size."""

    def order(file: PaikResult) -> tuple[object, ...]:
        return (file.scaling_mode, *file.workload.settings.values(), file.world_size)

    ordered = sorted(files, key=order)
    for one, other in pairwise(ordered):
        if order(one) == order(other):
            raise ResultFileError(
                other.path,
                f"is a second result of {one.scaling_mode} scaling of {one.model} {one.precision} with batch "
                f"{one.workload.batch_size} at world size {one.world_size}, beside {one.path}",
                "one file for each", "Move the one that should not count elsewhere.",
            )  # fmt: skip
    return {key: list(group) for key, group in groupby(ordered, key=lambda file: file.workload)}


def _differences(ours: Workload, theirs: Workload) -> list[tuple[str, object, object]]:
    """Name and both values of each setting in which a workload of the thresholds with the same job differs."""
    batch = "global_batch_size" if ours.global_batch_size else "batch_size"
    both = ours.differences(theirs)
    return [(name, *both[name]) for name in (batch, "memory_format", "compile") if name in both]


def _workload_names(studied: list[Workload], workloads: Mapping[str, Workload]) -> dict[Workload, str]:
    """A name for each study's workload, unique within weak and within strong scaling.

    A workload that the thresholds describe has their name. One that differs in batch, memory format or compile only
    has it too, unless several do; those get their batch as a suffix, as in ``resnet152-fp16-bs256``, and a number.
    """
    alike = {
        ours: [one for one, theirs in workloads.items()
               if not {"model", "precision", "image_size"} & ours.differences(theirs).keys()]
        for ours in studied
    }  # fmt: skip
    names = {ours: one for ours in studied for one in alike[ours] if not _differences(ours, workloads[one])}
    for ours in (one for one in studied if one not in names):
        known, family = alike[ours][:1], ours.family
        name = known[0] if known else f"{family.model.replace('_', '-')}-{ours.precision}"
        scaled = [one for one in studied if bool(one.global_batch_size) == bool(ours.global_batch_size)]
        # A name that the thresholds use for another workload would be judged as that workload.
        taken = {names[one] for one in scaled if one in names} | (workloads.keys() - known)
        rivals = sum((one.family.model, one.precision) == (family.model, ours.precision) for one in scaled)
        with_batch = f"{name}-bs{ours.batch_size}"
        free = chain([name] * (rivals == 1), [with_batch], (f"{with_batch}-{number}" for number in count(2)))
        names[ours] = next(one for one in free if one not in taken)
    return names


def _gang(file: PaikResult, number: int) -> GangRecord:
    """One gang per file, in torchrun's usual order: the ranks of a node are consecutive."""
    ranks_per_node = -(-file.world_size // file.nodes)
    ranks = []
    for rank in range(file.world_size):
        node, local_rank = divmod(rank, ranks_per_node)
        place = Place(f"{UNKNOWN_HOST}-{node}" if node else UNKNOWN_HOST, local_rank, f"unknown-{rank}")
        ranks.append(Rank(place=place, device_name=file.device_name))
    return GangRecord(gang=number, ranks=tuple(ranks))


def _block(study_id: str, file: PaikResult, number: int) -> Block:
    ranks = file.per_rank
    readings: dict[str, list[Value]] = {
        "step_stdev_s": [one.stdev_step_sec if one.n_steps > 1 else None for one in ranks],
        "utilization": [one.utilization for one in ranks],
        "peak_memory_bytes": [round(one.peak_mem_gb * 2**30) for one in ranks],
        "single_sample": [True for _ in ranks],
    }
    return Block(
        study=study_id,
        arm=file.arm.name,
        round=0,
        gang=number,
        ranks=tuple(one.rank for one in ranks),
        count=column(one.n_steps for one in ranks),
        work=float(file.batch_size_per_gpu),
        began_unix_s=0.0,
        # Not the wall time: the tool's throughput is the batch over the mean step.
        seconds=column(one.mean_step_sec * one.n_steps for one in ranks),
        readings={name: column(values) for name, values in readings.items() if any(v is not None for v in values)},
    )


def _run(
    sku: str, source: Path, files: list[PaikResult], gangs: Iterable[GangRecord], notes: Iterable[str]
) -> RunRecord:
    """The content of run.json."""
    versions = {
        "torch": ", ".join(sorted({file.torch_version for file in files})),
        "cuda": ", ".join(sorted({file.cuda_version or "unknown" for file in files})),
    }
    several = [
        f"the results come from several versions of {name}: {text}" for name, text in versions.items() if ", " in text
    ]
    return RunRecord(
        sku=sku,
        status="imported",
        source=TOOL,
        started_at=now_iso(),
        versions=versions,
        notes=(*_NOTES, *notes, *several),
    )
