"""Import of results of willgpaik/pytorch-ddp-scaling-benchmark as a run that can be judged.

Its files hold one long sample per world size. A run directory made of them has one round, whose
spread is that of its steps (`Block.single_sample`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import ResultFileError, RunDirectoryError, SkuError
from pytest_ddpscale.plan.device_name import is_named
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.paik_files import TOOL, ResultFile, read_result_files
from pytest_ddpscale.results.record_lines import line_of
from pytest_ddpscale.results.records import Block, GangRecord
from pytest_ddpscale.results.run_directory import RunDirectory, write_atomically
from pytest_ddpscale.results.run_json import RunDevice, RunHost, RunRecord
from pytest_ddpscale.results.run_record import now_iso
from pytest_ddpscale.results.strict_json import column

if TYPE_CHECKING:  # pydantic is imported by whoever loads thresholds, not by reading results
    from pytest_ddpscale.thresholds.model import Thresholds

UNKNOWN_HOST = "imported"
_NOTES = (
    "single samples: intervals come from the step-time standard deviation",
    "the arm alone is DistributedDataParallel with one rank: the source times no bare model",
    "every step was followed by a synchronize, and throughput is batch over mean step time",
    "host names and GPU UUIDs are unknown: the source records none",
)


@dataclass(frozen=True, order=True)
class _Key:
    """What makes one study of files of different world sizes: all but the world size.

    Attributes:
        batch_size: what the scaling keeps fixed: the per-GPU batch (weak) or the global one (strong).
    """

    scaling: str
    model: str
    precision: str
    batch_size: int
    image_size: int
    channels_last: bool
    compile: bool

    def describes(self, workload: Workload) -> bool:
        """Whether thresholds mean exactly this by that workload."""
        batch_size = workload.batch_size if self.scaling == "weak" else workload.global_batch_size
        return (
            self.resembles(workload)
            and self.batch_size == batch_size
            and self.channels_last == (workload.memory_format == "channels_last")
            and self.compile == workload.compile
        )

    def resembles(self, workload: Workload) -> bool:
        """Whether it is the same job, perhaps with another batch or memory format."""
        theirs = (workload.model, workload.precision, workload.image_size)
        return (self.model, self.precision, self.image_size) == theirs

    @property
    def details(self) -> tuple[str, ...]:
        """What tells it from others of the same model and precision, most telling first."""
        memory_format = "channels-last" if self.channels_last else "contiguous"
        compiled = "compiled" if self.compile else "eager"
        return (f"bs{self.batch_size}", f"{self.image_size}px", memory_format, compiled)


def import_paik(source: Path, out: Path, sku: str | None, thresholds: Thresholds) -> RunDirectory:
    """Write a run directory from a directory of result files.

    Args:
        source: directory of the ``*.json`` files, searched with its subdirectories.
        out: the run directory to make.
        sku: name or alias of the SKU; None to find it by the device name in the files.
        thresholds: for the SKUs' device names and the names of their workloads.

    Raises:
        ResultFileError: a file is no sound result, two files contradict each other, or there is none.
        SkuError: the SKU cannot be told, or is not the one the files come from.
        RunDirectoryError: `out` cannot be written, or already holds a run.

    Nothing is written before all of `source` is found to be sound.
    """
    files = read_result_files(source)
    name = _sku_name(files, sku, thresholds)
    grouped = _grouped(files)
    names = _workload_names(grouped, thresholds.skus[name].workloads)
    studies = {key: _study(key, names[key], group) for key, group in grouped.items()}
    plan = Plan(sku=name, device_type="cuda", studies=tuple(studies.values()))
    numbered = enumerate((key, file) for key, group in grouped.items() for file in group)
    records = [one for number, (key, file) in numbered for one in _records(studies[key].id, file, number)]
    run = RunDirectory.create(out)
    try:
        run.write_json(run.plan_json, plan)
        write_atomically(run.measurements_jsonl, b"".join(map(line_of, records)).decode())
        # Last, because it is what makes a directory a run.
        run.write_json(run.run_json, _run(name, source, files, plan, thresholds))
    except OSError as error:
        raise RunDirectoryError(
            str(out), f"cannot be written ({error.strerror or error})", "a writable directory with space left",
            f"Remove {out}, and import into another directory.",
        ) from None  # fmt: skip
    return run


def _sku_name(files: list[ResultFile], asked: str | None, thresholds: Thresholds) -> str:
    """The SKU that all files come from. Files of two are refused: the source tool would mix them up."""
    skus_of_device = {file.device_name: _skus_of_device(file.device_name, thresholds) for file in files}
    first = files[0]
    for other in files:
        if not _same_device(first.device_name, other.device_name, skus_of_device):
            raise ResultFileError(
                str(other.path), f"is of {other.device_name!r}, while {first.path} is of {first.device_name!r}",
                "results of one GPU model", "Keep the results of each GPU model in a directory of its own.",
            )  # fmt: skip
    found = skus_of_device[first.device_name]
    return _detected_sku(first, found, thresholds) if asked is None else _asked_sku(first, asked, found, thresholds)


def _skus_of_device(device_name: str, thresholds: Thresholds) -> list[str]:
    return [
        name
        for name, sku in thresholds.skus.items()
        if sku.detect.name is not None and is_named(device_name, sku.detect.name)
    ]


def _same_device(one: str, other: str, skus_of_device: Mapping[str, list[str]]) -> bool:
    """Drivers of different age name the same GPU differently; its SKU knows all the names."""
    return one == other or bool(set(skus_of_device[one]) & set(skus_of_device[other]))


def _detected_sku(file: ResultFile, found: list[str], thresholds: Thresholds) -> str:
    if len(found) == 1:
        return found[0]
    which = f"several SKUs of the thresholds: {', '.join(found)}" if found else "no SKU of the thresholds"
    raise SkuError(
        str(file.path), f"device {file.device_name!r} is {which}",
        f"exactly one of {', '.join(found or thresholds.skus)}", "Say which with --sku SKU.",
    )  # fmt: skip


def _asked_sku(file: ResultFile, asked: str, found: list[str], thresholds: Thresholds) -> str:
    name = thresholds.canonical_name(asked)
    if name is None:
        raise SkuError(
            "--sku", f"the thresholds have no SKU {asked!r}", f"one of {', '.join(thresholds.skus)}", "Correct it."
        )
    if found and name not in found:
        raise SkuError(
            "--sku", f"{name} was asked for, but {file.path} is of {file.device_name!r}, which is {' or '.join(found)}",
            "the SKU that was measured", "Leave out --sku, or correct it.",
        )  # fmt: skip
    return name


def _grouped(files: Iterable[ResultFile]) -> dict[_Key, list[ResultFile]]:
    """The files of each study, by world size."""

    def order(file: ResultFile) -> tuple[_Key, int]:
        return (_key(file), file.world_size)

    ordered = sorted(files, key=order)
    for one, other in pairwise(ordered):
        if order(one) == order(other):
            raise ResultFileError(
                str(other.path),
                f"is a second result of {one.scaling} scaling of {one.model} {one.precision} with batch "
                f"{_key(one).batch_size} at world size {one.world_size}, beside {one.path}",
                "one file for each", "Move the one that should not count elsewhere.",
            )  # fmt: skip
    return {key: list(group) for key, group in groupby(ordered, key=_key)}


def _key(file: ResultFile) -> _Key:
    return _Key(
        scaling=file.scaling,
        model=file.model,
        precision=file.precision,
        batch_size=file.batch_size if file.scaling == "weak" else file.global_batch_size,
        image_size=file.image_size,
        channels_last=file.channels_last,
        compile=file.compile,
    )


def _workload_names(keys: Iterable[_Key], workloads: Mapping[str, Workload]) -> dict[_Key, str]:
    """A name for each study's workload, unique within weak and within strong scaling.

    The one that thresholds describe has their name. Another has it too if there is no rival for it
    and it differs in batch, memory format or compile only; rivals are told apart by their batch, as
    in ``resnet152-fp16-bs256``.
    """
    ordered = list(keys)
    names = {key: name for key in ordered for name, workload in workloads.items() if key.describes(workload)}
    for key in ordered:
        if key not in names:
            names[key] = _free_name(key, ordered, names, workloads)
    return names


def _free_name(key: _Key, keys: list[_Key], names: Mapping[_Key, str], workloads: Mapping[str, Workload]) -> str:
    alike = next((name for name, workload in workloads.items() if key.resembles(workload)), None)
    name = alike or f"{key.model.replace('_', '-')}-{key.precision}"
    # A name of the thresholds that stands for something else would be judged as that.
    taken = {names[other] for other in names if other.scaling == key.scaling} | (set(workloads) - {alike})
    rivals = [k for k in keys if (k.scaling, k.model, k.precision) == (key.scaling, key.model, key.precision)]
    candidates = ["-".join((name, *key.details[:count])) for count in range(len(key.details) + 1)]
    return next(c for c in candidates[len(rivals) > 1 :] if c not in taken)


def _study(key: _Key, name: str, files: list[ResultFile]) -> Study:
    first = files[0]
    workload = Workload(
        name=name,
        model=key.model,
        precision=first.precision,
        batch_size=key.batch_size,
        image_size=key.image_size,
        memory_format="channels_last" if key.channels_last else "contiguous",
        global_batch_size=key.batch_size if first.scaling == "strong" else None,
        compile=key.compile,
    )
    return Study(
        scaling=first.scaling,
        workload=workload,
        arms=tuple(_arm(file) for file in files),
        rounds=1,
        block_s=max(file.block_s for file in files),
        warmup_s=max(file.warmup_s for file in files),
    )


def _arm(file: ResultFile) -> Arm:
    return Arm("alone" if file.world_size == 1 else "ddp", file.world_size, file.batch_size)


def _records(study_id: str, file: ResultFile, number: int) -> tuple[GangRecord, Block]:
    """Each file is the work of a gang of its own."""
    ranks = file.ranks
    places = [_place(file, rank) for rank in range(file.world_size)]
    gang = GangRecord(
        gang=number, hosts=tuple(host for host, _ in places), local_ranks=tuple(local for _, local in places),
        devices=tuple(f"unknown-{rank}" for rank in range(file.world_size)), device_names=file.device_name,
    )  # fmt: skip
    block = Block(
        study=study_id,
        arm=_arm(file).name,
        round=0,
        gang=number,
        batch_size=file.batch_size,
        steps=column(rank.steps for rank in ranks),
        ranks=tuple(rank.rank for rank in ranks),
        started_unix_s=0.0,
        # Not the wall time: the tool's throughput is the batch over the mean step.
        block_s=column(rank.mean_step_s * rank.steps for rank in ranks),
        step_stdev_s=column(rank.step_stdev_s for rank in ranks),
        utilization=column(rank.utilization for rank in ranks),
        peak_memory_bytes=column(rank.peak_memory_bytes for rank in ranks),
        single_sample=True,
    )
    return gang, block


def _place(file: ResultFile, rank: int) -> tuple[str, int]:
    """Host and local rank, for torchrun's usual order: the ranks of a node are consecutive."""
    ranks_per_node = -(-file.world_size // file.nodes)
    node, local_rank = divmod(rank, ranks_per_node)
    return (UNKNOWN_HOST if node == 0 else f"{UNKNOWN_HOST}-{node}"), local_rank


def _run(sku: str, source: Path, files: list[ResultFile], plan: Plan, thresholds: Thresholds) -> RunRecord:
    """The content of run.json."""
    largest = max(files, key=lambda file: file.world_size)
    versions = {
        "torch": _all_of(file.torch_version for file in files),
        "cuda": _all_of(file.cuda_version or "unknown" for file in files),
    }
    notes = [*_NOTES, *_differences(plan, thresholds.skus[sku].workloads)]
    notes += [
        f"the results are of several versions of {name}: {text}" for name, text in versions.items() if ", " in text
    ]
    return RunRecord(
        sku=sku,
        status="imported",
        source=TOOL,
        imported_from=source.resolve().name,
        started_at=now_iso(),
        hosts=_hosts(files),
        versions=versions,
        notes=tuple(notes),
        nccl_topology=largest.topology,
    )


def _all_of(texts: Iterable[str]) -> str:
    return ", ".join(sorted(set(texts)))


def _hosts(files: list[ResultFile]) -> tuple[RunHost, ...]:
    devices: dict[str, dict[int, str]] = {}
    for file in files:
        for rank in file.ranks:
            host, local_rank = _place(file, rank.rank)
            devices.setdefault(host, {})[local_rank] = file.device_name
    return tuple(
        RunHost(host, tuple(RunDevice(i, "unknown", name) for i, name in sorted(of_host.items())))
        for host, of_host in devices.items()
    )


def _differences(plan: Plan, workloads: Mapping[str, Workload]) -> list[str]:
    """Where a study bears a name of the thresholds, but was measured with another setting."""
    notes = []
    for study in plan.studies:
        known = workloads.get(study.workload.name)
        if known is None:
            continue
        batch = "batch_size" if study.scaling == "weak" else "global_batch_size"
        for field in (batch, "memory_format", "compile"):
            ours, theirs = getattr(study.workload, field), getattr(known, field)
            if ours != theirs:
                notes.append(f"{study.id}: measured with {field} {ours}; the thresholds have {theirs}")
    return notes
