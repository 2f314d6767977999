"""Search for the largest batch of each workload on this machine: tries batches, prints a row for each, concludes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.find_batch.batch_trial import (
    BatchTrial,
    host_memory,
    percent,
    questions_of,
    trial_plan,
    try_batch,
    workload_of,
)
from pytest_ddpscale.find_batch.find_max_batch import MULTIPLE
from pytest_ddpscale.launch.environment import launch_here
from pytest_ddpscale.launch.supervisor import interrupted_by_termination
from pytest_ddpscale.node.survey import GpusHere, refuse_missing_torch
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.settings import AUTO
from pytest_ddpscale.sku.matching import resolve_sku
from pytest_ddpscale.thresholds.cases import device_type
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import Sku
from pytest_ddpscale.thresholds.site_file import Overlay, refuse_unwritable, write_overlay
from pytest_ddpscale.util.owned_folder import owned_folder
from pytest_ddpscale.util.packaged import usual_thresholds

NOTHING_FITS = 1  # exit code
_GIB = 2**30
# Throughput is of a few steps, so smaller ratios do not count.
_NOTABLE = 1.01


def find_max_batch(arguments: argparse.Namespace, gpus_here: Callable[[], GpusHere]) -> int:
    """Try batches of each workload. Returns the exit code. Raises DdpscaleError."""
    refuse_missing_torch()
    file = load_thresholds(arguments.thresholds or usual_thresholds())
    skus = file.thresholds.skus
    asked = arguments.gpu_sku if arguments.gpu_sku == AUTO else file.sku_name(arguments.gpu_sku)
    is_cpu = asked != AUTO and skus[asked].detect.device == "cpu"
    here = GpusHere() if is_cpu else gpus_here()
    name = resolve_sku(file, asked, here.gpus, why_none=here.why_none)
    kind, gpus = device_type(skus[name]), len(here.gpus)
    if kind == "cuda" and (arguments.ranks or 0) > gpus:
        raise OptionError("--ranks", f"found {arguments.ranks}, but {gpus} GPUs are visible", f"at most {gpus}")
    ranks = arguments.ranks or (gpus if kind == "cuda" else len(os.sched_getaffinity(0)))
    workloads = _workloads(arguments, skus[name], kind)
    questions = [questions_of(file, name, workload, ranks) for workload in workloads]
    result = {"sku": name, "ranks": ranks, "fraction": arguments.fraction, "steps": arguments.steps}
    found: list[dict[str, Any]] = []

    def keep(latest: dict[str, Any]) -> None:
        if arguments.json is not None:
            text = strict_json({**result, "workloads": [*found, latest] if latest else found})
            arguments.json.write_text(text + "\n", encoding="utf-8")

    # Fail before an hour's work if it cannot be written; an earlier result stays until there is a new one.
    if arguments.json is not None and arguments.json.exists():
        arguments.json.open("a").close()
    else:
        keep({})
    if arguments.write is not None:
        refuse_unwritable(arguments.write, file)
    for asked_of in questions:
        found.append(_search(Plan(name, kind, ()), asked_of, arguments, keep))
        print()
    batches = {one["workload"]: {"per_gpu": one["largest"]} for one in found if one["largest"] is not None}
    if arguments.write is not None and batches:
        text = write_overlay(arguments.write, Overlay("find-max-batch", file, name, {"batch": batches}))
        print(f"{text}\nWrote {arguments.write}. Next: pytest --gpu-sku={name} --thresholds={arguments.write}")
    return 0 if len(batches) == len(found) else NOTHING_FITS


def _workloads(arguments: argparse.Namespace, sku: Sku, kind: DeviceType) -> list[Workload]:
    """The requested workloads. Raises OptionError."""
    if arguments.model is not None:
        return [workload_of(sku, arguments.model, arguments.precision, arguments.image_size, kind)]
    unknown = [name for name in arguments.workload if name not in sku.workloads]
    if unknown or not sku.workloads:
        known = f"some of {', '.join(sku.workloads)}" if sku.workloads else "--model: the SKU has no workloads"
        raise OptionError("--workload", f"found {unknown[0] if unknown else 'nothing'!r}", known)
    return [sku.workloads[name] for name in dict.fromkeys(arguments.workload or sku.workloads)]


def _search(
    empty: Plan, questions: Sequence[Question], arguments: argparse.Namespace, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Try batches of one workload, print each, and keep all so far, because each may take a minute.

    Raises:
        GangError: something other than memory ended a trial.
    """
    least, most, fraction = arguments.least, arguments.most, arguments.fraction
    host_bytes, memory = None, "of each GPU"
    if empty.device_type == "cpu":
        host_bytes, which = host_memory()
        memory = f"{which} ({host_bytes / _GIB:.2f} GiB)"
    first, launch = trial_plan(empty, questions, least, arguments.steps), launch_here(empty.device_type)
    print("\n".join(heading(first, fraction, memory)), flush=True)
    trials: list[BatchTrial] = []

    def fits(batch: int) -> bool:
        plan, log = trial_plan(empty, questions, batch, arguments.steps), logs / f"gang-{len(trials)}.log"
        trials.append(try_batch(plan, launch, fraction, host_bytes, log))
        print(row(trials[-1]), flush=True)
        keep(as_json(first, None, trials))
        return trials[-1].fits

    with owned_folder("batch") as logs, interrupted_by_termination():
        largest = largest_fitting(fits, least, most)
    print("\n".join(conclusion(first, largest, trials, most)), flush=True)
    keep(found := as_json(first, largest, trials))
    return found


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


def heading(plan: Plan, fraction: float, memory: str) -> list[str]:
    """Heading of the search, and of its columns.

    Args:
        plan: with the study, at any batch.
        fraction: of the memory that ranks may use.
        memory: which memory, such as ``of each GPU``.
    """
    [study] = plan.studies
    workload, ranks = study.workload, plan.layout.world_size
    form = ", ".join(filter(None, [workload.family.trained, workload.precision, workload.family.form]))
    where = f"{ranks} {'rank' if ranks == 1 else 'ranks'}, arms {', '.join(arm.name for arm in study.arms)}"
    return [
        f"{workload.name} ({form}) on {where}: within {percent(fraction)} of the memory {memory}",
        f"{'batch':>8}  {'fits':<4}  {'peak GiB':>8}  {'share':>6}  {f'{plan.unit}/s per {plan.device}':>13}",
    ]


def row(trial: BatchTrial) -> str:
    """The row of one batch."""
    peak = "-" if trial.peak_bytes is None else f"{trial.peak_bytes / _GIB:.2f}"
    share = "-" if trial.share is None else percent(trial.share)
    rate = "-" if trial.samples_per_s is None else f"{trial.samples_per_s:.1f}"
    fits = "yes" if trial.fits else "no"
    return f"{trial.batch:8}  {fits:<4}  {peak:>8}  {share:>6}  {rate:>13}  {trial.why_not}".rstrip()


def conclusion(plan: Plan, largest: int | None, trials: Sequence[BatchTrial], most: int) -> list[str]:
    """The result of the search, in sentences."""
    if largest is None:
        smallest = f"{trials[0].batch} {plan.samples} per {plan.device}"
        return [f"No batch fits: with the smallest, {smallest}, {trials[0].why_not}."]
    by_batch = {trial.batch: trial for trial in trials}
    found, following = by_batch[largest], by_batch.get(largest + MULTIPLE)
    memory = [] if found.peak_bytes is None else [f"{found.peak_bytes / _GIB:.2f} GiB"]
    memory += [] if found.share is None else [percent(found.share)]
    of_memory = f" ({', '.join(memory)})" if memory else ""
    beyond = f"no larger one was tried (--most {most})"
    if following is not None:
        why = following.why_not if following.share is None else f"it took {percent(following.share)}"
        beyond = f"the next, {following.batch}, does not fit: {why}"
    lines = [f"The largest batch is {largest} {plan.samples} per {plan.device}{of_memory}; {beyond}."]
    best = fastest(trials)
    if best is not None and (best.samples_per_s or 0) > _NOTABLE * (found.samples_per_s or float("inf")):
        rates = f"{best.samples_per_s:.1f} {plan.unit}/s per {plan.device}, against {found.samples_per_s:.1f}"
        lines.append(f"The fastest batch was {best.batch}: {rates} with {largest}. The largest is not the fastest.")
    return lines


def as_json(plan: Plan, largest: int | None, trials: Sequence[BatchTrial]) -> dict[str, Any]:
    """The search as JSON types; null means unknown."""
    best, [study] = fastest(trials), plan.studies
    rows = [{**vars(trial), "samples_per_s_per_gpu": trial.samples_per_s} for trial in trials]
    for one in rows:
        del one["samples_per_s"]
    return {
        "workload": study.workload.name,
        "ranks": plan.layout.world_size,
        "arms": [arm.name for arm in study.arms],
        "largest": largest,
        "fastest": best.batch if best else None,
        "trials": rows,
    }


def fastest(trials: Sequence[BatchTrial]) -> BatchTrial | None:
    """The fitting batch with the highest throughput; None if none fits."""
    fitting = [trial for trial in trials if trial.fits and trial.samples_per_s is not None]
    return max(fitting, key=lambda trial: trial.samples_per_s or 0.0, default=None)
