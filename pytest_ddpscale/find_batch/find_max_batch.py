"""`ddpscale find-max-batch`. Every command imports this module, so heavy imports are inside functions."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.find_batch.batch_search import MULTIPLE
from pytest_ddpscale.settings import AUTO, count_up_to, read_value
from pytest_ddpscale.util.owned_folder import owned_folder
from pytest_ddpscale.util.packaged import usual_thresholds

if TYPE_CHECKING:
    from pytest_ddpscale.find_batch.batch_trial import BatchTrial, MemoryBounds
    from pytest_ddpscale.node.survey import GpusHere
    from pytest_ddpscale.plan.planner import Question
    from pytest_ddpscale.plan.study import Plan
    from pytest_ddpscale.plan.words import DeviceType
    from pytest_ddpscale.plan.workload import Workload
    from pytest_ddpscale.thresholds.loading import ThresholdsFile

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

MOST_BATCH = 65_536
MOST_STEPS = 1_000
MOST_RANKS = 64
NOTHING_FITS = 1  # exit code


@dataclass(frozen=True)
class BatchOptions:
    """Batches from `least` to `most`, with `steps` steps each, within `fraction` of the memory."""

    least: int
    most: int
    steps: int
    fraction: float


@dataclass(frozen=True)
class TrialNode:
    """This machine, on which batches are tried."""

    file: ThresholdsFile
    sku: str
    device_type: DeviceType
    ranks: int


@dataclass(frozen=True)
class FoundBatch:
    """Result for a workload; `largest` is None if no batch fits."""

    name: str
    plan: Plan
    largest: int | None
    trials: tuple[BatchTrial, ...]


def add_find_max_batch(commands: Commands, gpus_here: Callable[[], GpusHere]) -> None:
    """Add `ddpscale find-max-batch`."""
    command = commands.add_parser(
        "find-max-batch", help="find the largest per-GPU batch that trains within the memory, on this node's GPUs"
    )
    add = command.add_argument
    add("--gpu-sku", default=AUTO, metavar="SKU", help="a name or alias in the thresholds file; default: %(default)s")
    add(
        "--thresholds",
        type=Path,
        metavar="FILE",
        help="default: thresholds.yaml here, else the packaged one",
    )
    add("--workload", nargs="+", default=[], metavar="NAME", help="workloads of the SKU; default: all")
    add("--model", metavar="MODEL", help="torchvision model instead of --workload; needs --precision")
    add("--precision", choices=("fp32", "fp16", "bf16"), help="of --model")
    add(
        "--image-size",
        dest="pixels",
        metavar="PIXELS",
        help="of --model; default: that of the SKU's workloads, else 224",
    )
    add("--least", default=str(MULTIPLE), metavar="N", help="first batch to try; default: %(default)s")
    add("--most", default=str(MOST_BATCH), metavar="N", help="largest batch to try; default: %(default)s")
    add("--steps", default="12", metavar="N", help="least steps of each arm at each batch; default: %(default)s")
    add("--fraction", default="0.9", metavar="F", help="share of the memory that may be used; default: %(default)s")
    add("--ranks", metavar="N", help="ranks that train at once; default: all GPUs (CPU: cores) of this node")
    add("--json", type=Path, metavar="FILE", help="write the results as JSON")
    add("--write", type=Path, metavar="NEW.yaml",
        help="write a new thresholds file with the batches, which extends --thresholds; an existing file is never "
             "changed")  # fmt: skip
    command.set_defaults(run=lambda arguments: _find_max_batch(arguments, gpus_here))


def _find_max_batch(arguments: argparse.Namespace, gpus_here: Callable[[], GpusHere]) -> int:
    """Try batches of each workload. Returns the exit code. Raises DdpscaleError."""
    from pytest_ddpscale.node.survey import refuse_missing_torch
    from pytest_ddpscale.thresholds.site_file import refuse_unwritable

    options = _options(arguments)
    refuse_missing_torch()
    node = _node(arguments, gpus_here)
    asked = [(workload, _questions(node, workload)) for workload in _workloads(arguments, node)]
    found: list[FoundBatch] = []
    # Fail before an hour's work if it cannot be written; an earlier result stays until there is a new one.
    if arguments.json is not None and arguments.json.exists():
        arguments.json.open("a").close()
    else:
        _write_json(arguments.json, node, options, found)
    if arguments.write is not None:
        refuse_unwritable(arguments.write, node.file)

    def keep(latest: FoundBatch) -> None:
        _write_json(arguments.json, node, options, [*found, latest])

    for workload, questions in asked:
        searched = _search(node, workload, questions, options, keep)
        keep(searched)
        found.append(searched)
        print()
    if arguments.write is not None:
        _write_overlay(arguments.write, node, found)
    return 0 if all(one.largest is not None for one in found) else NOTHING_FITS


def _options(arguments: argparse.Namespace) -> BatchOptions:
    least = read_value("--least", arguments.least, _batch)
    most = read_value("--most", arguments.most, _batch)
    if least > most:
        raise OptionError("--least", f"found {least}, but --most is {most}", f"at most {most}")
    steps = read_value("--steps", arguments.steps, _steps)
    return BatchOptions(least, most, steps, read_value("--fraction", arguments.fraction, _fraction))


def _batch(text: str) -> int:
    expected = f"a multiple of {MULTIPLE} up to {MOST_BATCH}"
    if re.fullmatch("[0-9]{1,6}", text) is None or not 0 < int(text) <= MOST_BATCH or int(text) % MULTIPLE:
        raise ValueError(expected)
    return int(text)


def _steps(text: str) -> int:
    from pytest_ddpscale.find_batch.trial_study import STEPS_PER_BLOCK

    least = 2 * STEPS_PER_BLOCK  # a block of warm-up, and one that is timed
    steps = count_up_to(MOST_STEPS)(text)
    if steps < least:
        raise ValueError(f"at least {least} steps: the first ones only warm up")
    return steps


def _fraction(text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        fraction = 0.0
    if not 0.05 <= fraction <= 1.0:
        raise ValueError("a number from 0.05 to 1")
    return fraction


def _node(arguments: argparse.Namespace, gpus_here: Callable[[], GpusHere]) -> TrialNode:
    """This node with its SKU and ranks. Raises BadInput."""
    from pytest_ddpscale.node.survey import GpusHere
    from pytest_ddpscale.sku.matching import resolve_sku
    from pytest_ddpscale.thresholds.cases import device_type
    from pytest_ddpscale.thresholds.loading import load_thresholds

    file = load_thresholds(arguments.thresholds or usual_thresholds())
    asked = arguments.gpu_sku if arguments.gpu_sku == AUTO else file.sku_name(arguments.gpu_sku)
    is_cpu = asked != AUTO and file.thresholds.skus[asked].detect.device == "cpu"
    here = GpusHere() if is_cpu else gpus_here()
    gpus = here.gpus
    sku = resolve_sku(file, asked, gpus, why_none=here.why_none)
    kind = device_type(file.thresholds.skus[sku])
    given = None if arguments.ranks is None else read_value("--ranks", arguments.ranks, count_up_to(MOST_RANKS))
    if kind == "cuda" and given is not None and given > len(gpus):
        raise OptionError("--ranks", f"found {given}, but {len(gpus)} GPUs are visible", f"at most {len(gpus)}")
    return TrialNode(file, sku, kind, given or (len(gpus) if kind == "cuda" else _cores()))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _workloads(arguments: argparse.Namespace, node: TrialNode) -> list[Workload]:
    """The requested workloads. Raises OptionError."""
    from pytest_ddpscale.find_batch.trial_study import workload_of

    sku = node.file.thresholds.skus[node.sku]
    if arguments.model is None:
        for option, given in (("--precision", arguments.precision), ("--image-size", arguments.pixels)):
            if given is not None:
                hint = "Workloads of the thresholds file have their own."
                raise OptionError(option, f"found {given!r} without --model", "--model as well", hint)
        unknown = [name for name in arguments.workload if name not in sku.workloads]
        if unknown or not sku.workloads:
            known = f"some of {', '.join(sku.workloads)}" if sku.workloads else "--model: the SKU has no workloads"
            raise OptionError("--workload", f"found {unknown[0] if unknown else 'nothing'!r}", known)
        return [sku.workloads[name] for name in dict.fromkeys(arguments.workload or sku.workloads)]
    for option, given in (("--workload", arguments.workload), ("--write", arguments.write)):
        if given:
            raise OptionError(option, "found beside --model, which may not be in the thresholds file", "one of them")
    if arguments.precision is None:
        raise OptionError("--precision", "--model needs it", "--precision fp32, fp16 or bf16")
    size = read_value("--image-size", arguments.pixels, count_up_to(10_000)) if arguments.pixels else None
    return [workload_of(sku, arguments.model, arguments.precision, size, node.device_type)]


def _questions(node: TrialNode, workload: Workload) -> list[Question]:
    from pytest_ddpscale.find_batch.trial_study import questions_of

    return questions_of(node.file, node.sku, workload, node.ranks)


def _search(
    node: TrialNode,
    workload: Workload,
    questions: Sequence[Question],
    options: BatchOptions,
    keep: Callable[[FoundBatch], None],
) -> FoundBatch:
    """Try batches of one workload, print each, and keep all so far, because each may take a minute.

    Raises:
        GangError: something other than memory ended a trial.
    """
    from pytest_ddpscale.find_batch.batch_search import largest_fitting
    from pytest_ddpscale.find_batch.batch_text import conclusion, header, heading, row
    from pytest_ddpscale.find_batch.batch_trial import try_batch
    from pytest_ddpscale.find_batch.trial_study import trial_plan
    from pytest_ddpscale.launch.environment import launch_here
    from pytest_ddpscale.launch.supervisor import interrupted_by_termination
    from pytest_ddpscale.plan.study import Plan

    empty = Plan(node.sku, node.device_type, ())
    bounds, memory = _bounds(node.device_type, options.fraction)
    first = trial_plan(empty, questions, options.least, options.steps)
    _print(heading(first, options.fraction, memory), header(first))
    launch = launch_here(node.device_type)
    trials: list[BatchTrial] = []

    def fits(batch: int) -> bool:
        plan = trial_plan(empty, questions, batch, options.steps)
        trials.append(try_batch(plan, launch, bounds, logs / f"gang-{len(trials)}.log"))
        _print(row(trials[-1]))
        keep(FoundBatch(workload.name, first, None, tuple(trials)))
        return trials[-1].fits

    with owned_folder("batch") as logs, interrupted_by_termination():
        largest = largest_fitting(fits, options.least, options.most)
    _print(*conclusion(first, largest, trials, options.least, options.most))
    return FoundBatch(workload.name, first, largest, tuple(trials))


def _bounds(device_type: DeviceType, fraction: float) -> tuple[MemoryBounds, str]:
    """Memory that ranks may use, and which memory in words. Raises OptionError."""
    from pytest_ddpscale.find_batch.batch_trial import MemoryBounds
    from pytest_ddpscale.find_batch.memory_limit import memory_limit, own_cgroup

    cgroup = own_cgroup()
    if cgroup is not None and cgroup.ends_as_one:
        raise OptionError(
            f"memory.oom.group of {cgroup.folder}",
            "found 1, there or above: the kernel would kill this command together with a rank", "0",
            "Write 0 into it, or start the command in another memory cgroup.",
        )  # fmt: skip
    if device_type == "cuda":
        return MemoryBounds(fraction, None, cgroup), "of each GPU"
    limit = memory_limit(cgroup)
    if limit is None:
        return MemoryBounds(fraction, None, cgroup), "(size unknown)"
    return MemoryBounds(fraction, limit, cgroup), f"{limit.of} ({limit.limit_bytes / 2**30:.2f} GiB)"


def _print(*lines: str) -> None:
    """Print without buffering, because a batch takes from seconds to minutes."""
    for line in lines:
        print(line, flush=True)


def _write_json(file: Path | None, node: TrialNode, options: BatchOptions, found: Sequence[FoundBatch]) -> None:
    """Write the results so far if --json names a file. Raises OSError."""
    if file is None:
        return
    from pytest_ddpscale.find_batch.batch_text import as_json
    from pytest_ddpscale.run.strict_json import strict_json

    workloads = [as_json(one.name, one.plan, one.largest, one.trials) for one in found]
    data: dict[str, Any] = {
        "sku": node.sku, "ranks": node.ranks, "fraction": options.fraction, "steps": options.steps,
        "workloads": workloads,
    }  # fmt: skip
    file.write_text(strict_json(data) + "\n", encoding="utf-8")


def _write_overlay(file: Path, node: TrialNode, found: Sequence[FoundBatch]) -> None:
    """Write the batches that fit into a new thresholds file. Raises ThresholdsError, OSError."""
    from pytest_ddpscale.thresholds.site_file import Overlay, write_overlay

    batches = {one.name: {"per_gpu": one.largest} for one in found if one.largest is not None}
    if not batches:
        return
    text = write_overlay(file, Overlay("find-max-batch", node.file, node.sku, {"batch": batches}))
    _print(f"{text}\nWrote {file}. Next: pytest --gpu-sku={node.sku} --thresholds={file}")
