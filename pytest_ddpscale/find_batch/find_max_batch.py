"""`ddpscale find-max-batch`: the largest per-GPU batch that trains like a study within the available memory."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.find_batch import trial as trials
from pytest_ddpscale.find_batch.trial import STEPS_PER_BLOCK, BatchTrial, percent, questions_of, trial_plan
from pytest_ddpscale.launch.environment import launch_here
from pytest_ddpscale.launch.supervisor import interrupted_by_termination
from pytest_ddpscale.node.survey import GpusHere, refuse_missing_torch
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.settings import AUTO
from pytest_ddpscale.sku.matching import resolve_sku
from pytest_ddpscale.suites.options import MOST_PIXELS, PRECISIONS, whole, workload_of
from pytest_ddpscale.thresholds.cases import device_type
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.model import Sku
from pytest_ddpscale.thresholds.site_file import Overlay, refuse_unwritable, write_overlay
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.owned_folder import owned_folder
from pytest_ddpscale.util.packaged import usual_thresholds

MULTIPLE = 8  # suits tensor cores; a finer search is not worth the launches
MOST_BATCH, MOST_STEPS, MOST_RANKS = 65_536, 1_000, 64
NOTHING_FITS = 1  # exit code
_GIB = 2**30
_NOTABLE = 1.01  # throughput is of a few steps, so smaller ratios do not count


def add_options(parser: argparse.ArgumentParser, gpus_here: Callable[[], GpusHere]) -> None:
    """Add the command's options."""
    add, more = adder(parser), parser.add_argument
    add("--gpu-sku", "SKU", str, "a name or alias in the thresholds file", AUTO)
    add("--thresholds", "FILE", Path, "default: thresholds.yaml here, else the packaged one")
    more("--workload", nargs="+", default=[], metavar="NAME", help="workloads of the SKU; default: all")
    add("--model", "MODEL", str, "torchvision model instead of --workload; needs --precision")
    more("--precision", choices=PRECISIONS, help="of --model")
    add("--image-size", "PIXELS", whole(MOST_PIXELS), "of --model; default: that of the SKU's workloads, else 224")
    add("--least", "N", _batch, "first batch to try", MULTIPLE)
    add("--most", "N", _batch, "largest batch to try", MOST_BATCH)
    add("--steps", "N", _steps, "least steps of each arm at each batch", 12)
    add("--fraction", "F", _fraction, "share of the memory that may be used", 0.9)
    add("--ranks", "N", whole(MOST_RANKS), "ranks that train at once; default: all GPUs (CPU: cores) of this node")
    add("--json", "FILE", Path, "write the results as JSON")
    add("--write", "NEW.yaml", Path, "write a new thresholds file with the batches, which extends --thresholds; an "
        "existing file is never changed")  # fmt: skip
    parser.set_defaults(run=lambda arguments: _find_max_batch(arguments, gpus_here))


def _batch(text: str) -> int:
    if re.fullmatch("[0-9]{1,6}", text) is None or not 0 < int(text) <= MOST_BATCH or int(text) % MULTIPLE:
        raise ValueError(f"a multiple of {MULTIPLE} up to {MOST_BATCH}")
    return int(text)


def _steps(text: str) -> int:
    least = 2 * STEPS_PER_BLOCK  # a block of warm-up, and one that is timed
    steps = whole(MOST_STEPS)(text)
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


def _find_max_batch(arguments: argparse.Namespace, gpus_here: Callable[[], GpusHere]) -> int:
    """Try batches of each workload. Returns the exit code. Raises DdpscaleError."""
    least, most = arguments.least, arguments.most
    if least > most:
        raise OptionError("--least", f"found {least}, but --most is {most}", f"at most {most}")
    refuse_missing_torch()
    file = load_thresholds(arguments.thresholds or usual_thresholds())
    sku, ranks = _machine(arguments, file, gpus_here)
    empty = Plan(sku, device_type(file.thresholds.skus[sku]), ())
    workloads = _workloads(arguments, file.thresholds.skus[sku], empty)
    head = {"sku": sku, "ranks": ranks, "fraction": arguments.fraction, "steps": arguments.steps}
    found: list[dict[str, Any]] = []

    def keep(latest: Sequence[dict[str, Any]]) -> None:
        """All so far, because each batch may take a minute."""
        if arguments.json is not None:
            arguments.json.write_text(strict_json(head | {"workloads": [*found, *latest]}) + "\n", encoding="utf-8")

    # Fail before an hour's work if it cannot be written; an earlier result stays until there is a new one.
    if arguments.json is not None and arguments.json.exists():
        arguments.json.open("a").close()
    else:
        keep([])
    if arguments.write is not None:
        refuse_unwritable(arguments.write, file)
    for workload in workloads:
        found.append(_search(arguments, empty, file, workload, ranks, lambda latest: keep([latest])))
        keep([])
        print()
    batches = {one["workload"]: {"per_gpu": one["largest"]} for one in found if one["largest"] is not None}
    if arguments.write is not None and batches:
        text = write_overlay(arguments.write, Overlay("find-max-batch", file, sku, {"batch": batches}))
        _print(f"{text}\nWrote {arguments.write}. Next: pytest --gpu-sku={sku} --thresholds={arguments.write}")
    return 0 if len(batches) == len(found) else NOTHING_FITS


def _machine(arguments: argparse.Namespace, file: ThresholdsFile, gpus_here: Callable[[], GpusHere]) -> tuple[str, int]:
    """The SKU of this node, and the ranks that train at once. Raises BadInput."""
    asked = arguments.gpu_sku if arguments.gpu_sku == AUTO else file.sku_name(arguments.gpu_sku)
    is_cpu = asked != AUTO and file.thresholds.skus[asked].detect.device == "cpu"
    here = GpusHere() if is_cpu else gpus_here()
    sku, given, most = resolve_sku(file, asked, here.gpus, why_none=here.why_none), arguments.ranks, len(here.gpus)
    if device_type(file.thresholds.skus[sku]) == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return sku, given or cores or 1
    if given is not None and given > most:
        raise OptionError("--ranks", f"found {given}, but {most} GPUs are visible", f"at most {most}")
    return sku, given or most


def _workloads(arguments: argparse.Namespace, sku: Sku, empty: Plan) -> list[Workload]:
    """The requested workloads. Raises OptionError."""
    if arguments.model is None:
        for option, given in (("--precision", arguments.precision), ("--image-size", arguments.image_size)):
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
    return [workload_of(sku, arguments.model, arguments.precision, arguments.image_size, empty.device_type)]


def _search(
    arguments: argparse.Namespace, empty: Plan, file: ThresholdsFile, workload: Workload, ranks: int,
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:  # fmt: skip
    """Try batches of one workload, print each, and keep all so far.

    Raises:
        GangError: something other than memory ended a trial.
    """
    questions, tried = questions_of(file, empty.sku, workload, ranks), list[BatchTrial]()
    limit, memory = (None, "of each GPU") if empty.device_type == "cuda" else trials.memory_limit()
    memory = f"{memory} ({limit / _GIB:.2f} GiB)" if limit else memory
    first, launch = trial_plan(empty, questions, arguments.least, arguments.steps), launch_here(empty.device_type)
    _print(*heading(first, arguments.fraction, memory))

    def fits(batch: int) -> bool:
        plan, log = trial_plan(empty, questions, batch, arguments.steps), logs / f"gang-{len(tried)}.log"
        tried.append(trials.try_batch(plan, launch, arguments.fraction, limit, log))
        _print(row(tried[-1]))
        keep(as_json(workload.name, first, None, tried))
        return tried[-1].fits

    with owned_folder("batch") as logs, interrupted_by_termination():
        largest = largest_fitting(fits, arguments.least, arguments.most)
    _print(*conclusion(first, largest, tried, arguments.most))
    return as_json(workload.name, first, largest, tried)


def largest_fitting(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The largest batch that fits: doubled from `least` until one does not fit, then bisected to a multiple of 8.

    Args:
        fits: tries a batch; called at most once for each. A larger batch must need more memory.
        least: first batch, a multiple of 8.
        most: largest batch to try, a multiple of 8.

    Returns:
        None if not even `least` fits.
    """
    if not fits(least):
        return None
    largest, too_large = least, most + MULTIPLE
    while largest < most and too_large > most:
        batch = min(2 * largest, most)
        largest, too_large = (batch, too_large) if fits(batch) else (largest, batch)
    while too_large - largest > MULTIPLE:
        batch = (largest + too_large) // 2 // MULTIPLE * MULTIPLE
        largest, too_large = (batch, too_large) if fits(batch) else (largest, batch)
    return largest


def heading(plan: Plan, fraction: float, memory: str) -> tuple[str, str]:
    """Heading of the search in a `memory`, such as ``of each GPU``, and those of its rows."""
    [study] = plan.studies
    workload, ranks, family = study.workload, plan.layout.world_size, study.workload.family
    arms, form = ", ".join(arm.name for arm in study.arms), [family.trained, workload.precision, family.form]
    many = f"{ranks} rank" if ranks == 1 else f"{ranks} ranks"
    what = f"{workload.name} ({', '.join(filter(None, form))}) on {many}, arms {arms}"
    rate = f"{plan.unit}/s per {plan.device}"
    return (
        f"{what}: within {percent(fraction)} of the memory {memory}",
        f"{'batch':>8}  {'fits':<4}  {'peak GiB':>8}  {'share':>6}  {rate:>13}",
    )


def row(trial: BatchTrial) -> str:
    """The row of one batch."""
    peak = "-" if trial.peak_bytes is None else f"{trial.peak_bytes / _GIB:.2f}"
    share = "-" if trial.share is None else percent(trial.share)
    rate = "-" if trial.samples_per_s is None else f"{trial.samples_per_s:.1f}"
    fits = "yes" if trial.fits else "no"
    return f"{trial.batch:8}  {fits:<4}  {peak:>8}  {share:>6}  {rate:>13}  {trial.why_not}".rstrip()


def fastest(tried: Sequence[BatchTrial]) -> BatchTrial | None:
    """The fitting batch with the highest throughput; None if none fits."""
    return max((one for one in tried if one.fits), key=lambda one: one.samples_per_s or 0.0, default=None)


def conclusion(plan: Plan, largest: int | None, tried: Sequence[BatchTrial], most: int) -> list[str]:
    """The result of the search, in sentences."""
    by_batch, rate = {trial.batch: trial for trial in tried}, f"{plan.unit}/s per {plan.device}"
    many = f"{plan.samples} per {plan.device}"
    if largest is None:
        return [f"No batch fits: with the smallest, {tried[0].batch} {many}, {tried[0].why_not}."]
    found, following = by_batch[largest], by_batch.get(largest + MULTIPLE)
    share = "" if found.share is None else f", {percent(found.share)}"
    memory = f" ({found.peak_bytes / _GIB:.2f} GiB{share})" if found.peak_bytes else ""
    beyond = f"no larger one was tried (--most {most})"
    if largest < most and following is not None:
        why = following.why_not if following.share is None else f"it took {percent(following.share)}"
        beyond = f"the next, {following.batch}, does not fit: {why}"
    lines, best = [f"The largest batch is {largest} {many}{memory}; {beyond}."], fastest(tried)
    if best is not None and found.samples_per_s and (best.samples_per_s or 0) > _NOTABLE * found.samples_per_s:
        rates = f"{best.samples_per_s:.1f} {rate}, against {found.samples_per_s:.1f} with {largest}"
        lines.append(f"The fastest batch was {best.batch}: {rates}. The largest is not the fastest.")
    return lines


def as_json(name: str, plan: Plan, largest: int | None, tried: Sequence[BatchTrial]) -> dict[str, Any]:
    """The search as JSON types; null means unknown."""
    best = fastest(tried)
    return {
        "workload": name, "ranks": plan.layout.world_size, "arms": [arm.name for arm in plan.studies[0].arms],
        "largest": largest, "fastest": best.batch if best else None,
        "trials": [
            {
                "batch": trial.batch, "fits": trial.fits, "why_not": trial.why_not, "peak_bytes": trial.peak_bytes,
                "limit_bytes": trial.limit_bytes, "samples_per_s_per_gpu": trial.samples_per_s,
            }
            for trial in tried
        ],
    }  # fmt: skip


def _print(*lines: str) -> None:
    """Print without buffering, because a batch takes from seconds to minutes."""
    for line in lines:
        print(line, flush=True)
