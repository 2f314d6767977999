"""Import results of willgpaik/pytorch-ddp-scaling-benchmark as a run that can be judged.

That tool's ``benchmark_ddp.py`` writes one JSON object per world size: one long sample, with means and deviations per
rank. The run directory made from them has one round, whose spread is that of its steps (the reading `single_sample`).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.json import Decoder

from pytest_ddpscale.errors import ResultFileError, SkuError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.hardware import is_named
from pytest_ddpscale.plan.study import Plan, Scaling, Study
from pytest_ddpscale.plan.words import Precision
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.block import Block, Value
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import GangRecord, Rank, Span, WorkloadFlops
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord, now_iso
from pytest_ddpscale.run.strict_json import Positive, Seconds, column, decode
from pytest_ddpscale.thresholds.model import Thresholds
from pytest_ddpscale.util.regular_file import read_regular

TOOL = "willgpaik/pytorch-ddp-scaling-benchmark"
UNKNOWN_HOST = "imported"
_NOTES = (
    "single samples: intervals come from the step-time standard deviation",
    "ddp@1, one GPU under DistributedDataParallel, is the baseline: none was alone",
    "every step was followed by a synchronize; throughput is batch over mean step",
    "utilization and power are nvidia-smi's, as it said them; energy is mean power times the steps' time",
    "host names and GPU UUIDs are unknown: the source records none",
)
_JOB = "model", "precision", "image_size", "memory_format", "compile"  # settings that a result file tells


class PaikSamples(Struct):
    """Samples from nvidia-smi; the mean is None if it gave no answer."""

    mean: Span | None


class PaikSampling(Struct):
    """What was sampled; utilization.gpu is in per cent."""

    gpu_activity_pct: PaikSamples
    power_w: PaikSamples | None = None


class PaikRank(Struct):
    """One rank: its steps, their mean, sample deviation and 95th percentile in seconds; memory in GiB, called GB."""

    rank: int
    n_steps: Positive
    mean_step_sec: Seconds
    stdev_step_sec: Span
    peak_mem_gb: Seconds  # above 0, too
    gpu_sampling: PaikSampling | None
    p95_step_sec: Seconds | None = None

    def sampled(self, name: str) -> float | None:
        """Mean of what was sampled; None if it was not."""
        return getattr(getattr(self.gpu_sampling, name, None), "mean", None)


class PaikResult(Struct):
    """One result file: one workload at one world size."""

    scaling_mode: Scaling
    world_size: Positive
    nodes: Positive
    model: Annotated[str, Meta(pattern="^[A-Za-z0-9_]+$")]  # it becomes part of study ids, and so of file names
    precision: Precision
    batch_size_per_gpu: Positive
    global_batch_size: Positive
    image_size: Positive
    channels_last: bool
    compile: bool
    warmup_sec_target: Span
    bench_sec_target: Seconds
    device_name: str
    torch_version: str
    cuda_version: str | None
    per_rank: tuple[PaikRank, ...]

    def __post_init__(self) -> None:
        if self.global_batch_size != self.batch_size_per_gpu * self.world_size:
            raise ValueError("global_batch_size is not batch_size_per_gpu x world_size")
        if [rank.rank for rank in self.per_rank] != [*range(self.world_size)]:
            raise ValueError("per_rank does not hold all ranks in order")

    @property
    def workload(self) -> Workload:
        """The workload that files of one study share: without a name, with the batch that is constant over sizes."""
        whole = self.global_batch_size if self.scaling_mode == "strong" else None
        family = ImageFamily(self.model, self.image_size, "channels_last" if self.channels_last else "contiguous")
        return Workload(
            "", family, self.precision, whole or self.batch_size_per_gpu, global_batch_size=whole, compile=self.compile
        )

    def gang(self, number: int) -> GangRecord:
        """One gang per file, in torchrun's usual order: the ranks of a node are consecutive."""
        ranks_per_node = -(-self.world_size // self.nodes)
        places = (
            Place(f"{UNKNOWN_HOST}-{node}" if node else UNKNOWN_HOST, local_rank, f"unknown-{rank}")
            for rank in range(self.world_size) for node, local_rank in [divmod(rank, ranks_per_node)]
        )  # fmt: skip
        return GangRecord(gang=number, ranks=tuple(Rank(place=place, device_name=self.device_name) for place in places))

    def block(self, study: str, arm: str, gang: int) -> Block:
        """All steps of all ranks as one block; its readings are columns with a value for each rank."""
        ranks, seconds = self.per_rank, [rank.mean_step_sec * rank.n_steps for rank in self.per_rank]
        percents, watts = ([rank.sampled(name) for rank in ranks] for name in ("gpu_activity_pct", "power_w"))
        readings: dict[str, Value | tuple[Value, ...]] = {
            "step_stdev_s": column(rank.stdev_step_sec if rank.n_steps > 1 else None for rank in ranks),
            "step_p95_s": column(rank.p95_step_sec for rank in ranks),
            "energy_j": column(power and power * taken_s for power, taken_s in zip(watts, seconds, strict=True)),
            "utilization": column(percent and percent / 100 for percent in percents),
            "peak_memory_bytes": column(round(rank.peak_mem_gb * 2**30) for rank in ranks),
            "single_sample": True,
        }
        return Block(
            study=study, arm=arm, round=0, gang=gang, ranks=tuple(range(self.world_size)), began_unix_s=0.0,
            count=column(rank.n_steps for rank in ranks), work=float(self.batch_size_per_gpu),
            # Not the wall time: the tool's throughput is the batch over the mean step.
            seconds=column(seconds),
            readings={name: value for name, value in readings.items() if value is not None},
        )  # fmt: skip


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
    files, expected = list[PaikResult](), f"a result file of {TOOL}, as its --output-json writes it"
    for path in sorted(path for path in source.rglob("*.json") if path.is_file()):
        try:
            files.append(decode(Decoder(PaikResult), read_regular(path)))
        except (OSError, ValueError) as error:
            hint = "Restore it from a copy, measure it again, or move it elsewhere."
            raise ResultFileError(str(path), f"is not a valid result ({error})", expected, hint) from None
    if not files:
        raise ResultFileError(str(source), "holds no *.json file", expected)
    sku = _sku_name(files, sku, thresholds)
    groups = dict[tuple[Scaling, Workload], list[PaikResult]]()
    for file in sorted(files, key=lambda file: (file.scaling_mode, file.model, file.precision, file.world_size)):
        groups.setdefault((file.scaling_mode, file.workload), []).append(file)
    studies, records, notes = list[Study](), list[GangRecord | Block](), [*_NOTES]
    flops = list[WorkloadFlops]()
    for (scaling, ours), group in groups.items():
        # A name that the thresholds use for another workload would be judged as that workload.
        keys = (*_JOB, "global_batch_size" if scaling == "strong" else "batch_size")
        values = [ours.settings[key] for key in keys]
        other = "-".join(map(str, values)).lower().replace("_", "-")
        same = (
            name
            for name, theirs in thresholds.skus[sku].workloads.items()
            if [theirs.settings.get(key) for key in keys] == values
        )
        study = Study(
            scaling, dataclasses.replace(ours, name=next(same, other)),
            tuple(Arm("ddp", file.world_size, file.batch_size_per_gpu) for file in group), 1,
            group[0].bench_sec_target, group[0].warmup_sec_target,
        )  # fmt: skip
        if len({*study.arms}) < len(study.arms):
            raise ResultFileError(str(source), f"two results of {study.id} at one world size", "one of each size")
        studies.append(study)
        if (needed := ours.family.flops_per_sample) is not None:
            flops.append(WorkloadFlops(study=study.id, flops_per_sample=needed))
        notes += [f"{study.id} is not judged: no workload of the thresholds is like it"] * (
            study.workload.name == other
        )
        for file, arm in zip(group, study.arms, strict=True):
            gang = len(records) // 2
            records += [file.gang(gang), file.block(study.id, arm.name, gang)]
    run = RunDirectory.create(out)
    run.write_json(run.plan_json, Plan(sku, "cuda", tuple(studies)))
    run.append_records([*records, *flops])
    versions = {
        name: ", ".join(sorted({getattr(file, f"{name}_version") or "unknown" for file in files}))
        for name in ("torch", "cuda")
    }
    # Last, because run.json marks a directory as a run.
    run.write_json(run.run_json, RunRecord(
        sku=sku, status="imported", source=TOOL, started_at=now_iso(), versions=versions, notes=tuple(notes)
    ))  # fmt: skip
    return run


def _sku_name(files: list[PaikResult], wanted: str | None, thresholds: Thresholds) -> str:
    """The SKU that all files come from; `wanted` is its name, an alias, or None. Files of two SKUs are refused."""
    devices = dict.fromkeys(file.device_name for file in files)
    # Driver versions name the same GPU differently; its SKU matches all the names.
    matching = [
        name for name, sku in thresholds.skus.items()
        if all(sku.detect.name and is_named(device, sku.detect.name) for device in devices)
    ]  # fmt: skip
    possible = matching or ([] if len(devices) > 1 else [*thresholds.skus])
    name = thresholds.canonical_name(wanted) if wanted else ", ".join(matching)
    if name not in possible:
        expected = f"one of {', '.join(possible)}" if possible else "results of one GPU model"
        raise SkuError("--gpu-sku", f"found {wanted or 'none'} for results of {', '.join(devices)}", expected)
    return name
