"""`ddpscale find-max-batch`: the largest per-GPU batch that trains like a study within the available memory."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.find_batch import trial as trials
from pytest_ddpscale.find_batch.trial import STEPS_PER_BLOCK, BatchTrial, questions_of, trial_plan
from pytest_ddpscale.launch.environment import launch_here
from pytest_ddpscale.launch.supervisor import interrupted_by_termination
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.settings import AUTO, share_between, whole
from pytest_ddpscale.suites.engine import SuiteNodes, nodes_of
from pytest_ddpscale.suites.options import add_workloads, at_most, number, workloads_of
from pytest_ddpscale.suites.results import ON_CPU, Column, Drawn, Rows, cell
from pytest_ddpscale.thresholds.site_file import Overlay, refuse_unwritable, write_overlay
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import count_text
from pytest_ddpscale.util.owned_folder import owned_folder

MULTIPLE = 8  # suits tensor cores; a finer search is not worth the launches
_GIB, _PACE = 2**30, "samples_per_s_per_gpu"
_COLUMNS = [
    Column("workload", "Workload"), Column("batch", "Batch per device"), Column(_PACE, "Samples per second and device")
]  # fmt: skip
_DRAWN = Drawn("Throughput by batch", "batch", (_PACE,), "workload")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = adder(parser)
    add("--gpu-sku", "SKU", str, "a name or alias in the thresholds file", AUTO)
    add("--thresholds", "FILE", Path, "default: thresholds.yaml here, else the packaged one")
    add_workloads(parser, "+", "all")
    add("--least", "N", _batch, "first batch to try", MULTIPLE)
    add("--most", "N", _batch, "largest batch to try", 65_536)
    # A block of warm-up, and one that is timed.
    add("--steps", "N", whole(1000, 2 * STEPS_PER_BLOCK), "least steps of each arm at each batch", 12)
    add("--fraction", "F", share_between(0.05, 1.0), "share of the memory that may be used", 0.9)
    add("--ranks", "N", number, "ranks that train at once; default: all GPUs (CPU: cores) of this node")
    add("--json", "FILE", Path, "write the results as JSON, and beside it as .csv and .png")
    add("--write", "NEW.yaml", Path, "write a new thresholds file with the batches, which extends --thresholds; an "
        "existing file is never changed")  # fmt: skip
    parser.set_defaults(run=_find_max_batch)


def _batch(text: str) -> int:
    batch = whole(10**6, MULTIPLE)(text)
    if batch % MULTIPLE:
        raise ValueError(f"a multiple of {MULTIPLE}")
    return batch


def _find_max_batch(arguments: argparse.Namespace) -> int:
    """Try batches of each workload. Returns the exit code, 1 if no batch of one fits. Raises DdpscaleError."""
    json, new = arguments.json, arguments.write
    if arguments.least > arguments.most:
        raise OptionError("--least", f"found {arguments.least}", f"at most {arguments.most}, as --most says")
    nodes = nodes_of(argparse.Namespace(
        gpu_sku=arguments.gpu_sku, thresholds=arguments.thresholds, ddp_gpus_per_node=arguments.ranks,
        ddp_launcher="torchrun",
    ))  # fmt: skip
    at_most("--ranks", arguments.ranks or 1, nodes.ranks_per_node)
    thresholds, sku, results = nodes.subject.thresholds, nodes.subject.sku, list[dict[str, Any]]()
    workloads = workloads_of(arguments, thresholds.thresholds.skus[sku], nodes.subject.device_type)
    if new is not None:
        if arguments.model:
            raise OptionError("--write", "found beside --model, which may not be in the thresholds file", "one of them")
        refuse_unwritable(new, thresholds)
    if json is not None and json.suffix in (".csv", ".png"):
        raise OptionError("--json", f"found {json}", "FILE.json; .csv and .png are written beside it")
    if json is not None:  # an earlier result stays until there is a new one
        json.open("a").close()

    def keep() -> None:
        """All so far, because each batch may take a minute."""
        if json is not None:
            head = {"sku": sku, "ranks": nodes.world_size, "fraction": arguments.fraction, "steps": arguments.steps}
            json.write_text(strict_json(head | {"workloads": results}) + "\n", encoding="utf-8")
            json.with_suffix(".csv").write_text(table().csv(), encoding="utf-8")

    def table() -> Rows:
        rows = [{"workload": result["workload"], **vars(trial)} for result in results for trial in result["trials"]]
        return Rows("batches", "", _COLUMNS, rows, 2, drawn=_DRAWN)

    for gpu in nodes.machine.silent:
        print(f"{gpu}: the other GPUs train")
    for workload in workloads:
        _search(arguments, nodes, workload, results, keep)
    batches = {result["workload"]: {"per_gpu": result["largest"]} for result in results if result["largest"]}
    if new is not None and batches:
        text = write_overlay(new, Overlay("find-max-batch", thresholds, sku, {"batch": batches}))
        print(f"{text}\nWrote {new}. Next: pytest --gpu-sku={sku} --thresholds={new}")
    if json is not None and (picture := table().picture(ON_CPU * nodes.is_cpu)):
        json.with_suffix(".png").write_bytes(picture.png())
    return int(len(batches) < len(results))


def _search(
    arguments: argparse.Namespace, nodes: SuiteNodes, workload: Workload, results: list[dict[str, Any]],
    keep: Callable[[], None],
) -> None:  # fmt: skip
    """Try batches of one workload, print each, and keep all so far in `results`.

    Raises:
        GangError: something other than memory ended a trial.
    """
    empty, family, tried = nodes.plan(), workload.family, list[BatchTrial]()
    questions = questions_of(nodes.subject.thresholds, empty.sku, workload, nodes.world_size)
    limit, memory = None, "of each GPU"
    if nodes.is_cpu:
        limit = psutil.virtual_memory().available
        memory = f"that is free on this machine ({limit / _GIB:.2f} GiB)"
    [study] = trial_plan(empty, questions, arguments.least, arguments.steps).studies
    launch, arms = launch_here(empty.device_type), [arm.name for arm in study.arms]
    of: dict[str, Any] = {"workload": workload.name, "arms": arms, "largest": None, "fastest": None, "trials": tried}
    results.append(of)
    form = ", ".join(filter(None, [family.trained, workload.precision, family.form]))
    rate, many = f"{family.unit}/s per {empty.device}", f"{family.samples} per {empty.device}"
    print(f"{workload.name} ({form}) on {count_text(nodes.world_size, 'rank')}, arms {', '.join(arms)}: within "
          f"{percent(arguments.fraction)} of the memory {memory}\n"
          f"{'batch':>8}  {'fits':<4}  {'peak GiB':>8}  {'share':>6}  {rate:>13}", flush=True)  # fmt: skip

    def fits(batch: int) -> bool:
        plan, log = trial_plan(empty, questions, batch, arguments.steps), logs / f"gang-{len(tried)}.log"
        trial = trials.try_batch(plan, launch, arguments.fraction, limit, log)
        tried.append(trial)
        peak, is_fit = cell(trial.peak_bytes and trial.peak_bytes / _GIB, "{:.2f}"), "yes" if trial.fits else "no"
        share, pace = cell(trial.share, "{:.1%}"), cell(trial.samples_per_s_per_gpu, "{:.1f}")
        print(f"{batch:8}  {is_fit:<4}  {peak:>8}  {share:>6}  {pace:>13}  {trial.why_not}".rstrip(), flush=True)
        keep()
        return trial.fits

    with owned_folder("batch") as logs, interrupted_by_termination():
        largest = largest_fitting(fits, arguments.least, arguments.most)
    if largest is None:
        print(f"No batch fits, not even {arguments.least} {many}: {tried[0].why_not}.\n")
        return
    _, fastest = max((trial.samples_per_s_per_gpu or 0.0, trial.batch) for trial in tried if trial.fits)
    of |= {"largest": largest, "fastest": fastest}
    keep()
    beyond = f" (as --most {arguments.most} allows no larger one)" * (largest == arguments.most)
    print(f"The largest batch is {largest} {many}{beyond}; the fastest was {fastest}.\n")


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
    while too_large - largest > MULTIPLE:
        middle = (largest + too_large) // 2 // MULTIPLE * MULTIPLE
        batch = min(2 * largest, most) if too_large > most else middle
        largest, too_large = (batch, too_large) if fits(batch) else (largest, batch)
    return largest
