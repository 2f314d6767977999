"""Output of a search for the largest batch: a row for each batch, then a conclusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_ddpscale.find_batch.batch_search import MULTIPLE
from pytest_ddpscale.find_batch.batch_trial import BatchTrial, fastest, percent
from pytest_ddpscale.plan.study import Plan

_GIB = 2**30
# Throughput is of a few steps, so smaller ratios do not count.
_NOTABLE = 1.01


def heading(plan: Plan, fraction: float, memory: str) -> str:
    """Heading of the search.

    Args:
        plan: with the study, at any batch.
        fraction: of the memory that ranks may use.
        memory: which memory, such as ``of each GPU``.
    """
    [study] = plan.studies
    workload, ranks = study.workload, plan.layout.world_size
    arms = ", ".join(arm.name for arm in study.arms)
    family = workload.family
    form = ", ".join(filter(None, [family.trained, workload.precision, family.form]))
    many = "rank" if ranks == 1 else "ranks"
    return f"{workload.name} ({form}) on {ranks} {many}, arms {arms}: within {percent(fraction)} of the memory {memory}"


def header(plan: Plan) -> str:
    """Headings of the rows."""
    rate = f"{plan.unit}/s per {plan.device}"
    return f"{'batch':>8}  {'fits':<4}  {'peak GiB':>8}  {'share':>6}  {rate:>13}"


def row(trial: BatchTrial) -> str:
    """The row of one batch."""
    peak = "-" if trial.peak_bytes is None else f"{trial.peak_bytes / _GIB:.2f}"
    share = "-" if trial.share is None else percent(trial.share)
    rate = "-" if trial.samples_per_s is None else f"{trial.samples_per_s:.1f}"
    fits = "yes" if trial.fits else "no"
    return f"{trial.batch:8}  {fits:<4}  {peak:>8}  {share:>6}  {rate:>13}  {trial.why_not}".rstrip()


def conclusion(plan: Plan, largest: int | None, trials: Sequence[BatchTrial], least: int, most: int) -> list[str]:
    """The result of the search, in sentences."""
    by_batch, rate = {trial.batch: trial for trial in trials}, f"{plan.unit}/s per {plan.device}"
    if largest is None:
        why = by_batch[least].why_not
        return [f"No batch fits: with the smallest, {least} {plan.samples} per {plan.device}, {why}."]
    found = by_batch[largest]
    asked = f"{largest} {plan.samples} per {plan.device}{_of_memory(found)}"
    lines = [f"The largest batch is {asked}; {_beyond(largest, by_batch, most)}."]
    best = fastest(trials)
    if (
        best is not None
        and found.samples_per_s
        and best.samples_per_s
        and best.samples_per_s > _NOTABLE * found.samples_per_s
    ):
        rates = f"{best.samples_per_s:.1f} {rate}, against {found.samples_per_s:.1f} with {largest}"
        lines.append(f"The fastest batch was {best.batch}: {rates}. The largest is not the fastest.")
    return lines


def as_json(name: str, plan: Plan, largest: int | None, trials: Sequence[BatchTrial]) -> dict[str, Any]:
    """The search as JSON types; null means unknown."""
    best = fastest(trials)
    return {
        "workload": name,
        "ranks": plan.layout.world_size,
        "arms": [arm.name for arm in plan.studies[0].arms],
        "largest": largest,
        "fastest": best.batch if best else None,
        "trials": [
            {
                "batch": trial.batch, "fits": trial.fits, "why_not": trial.why_not, "peak_bytes": trial.peak_bytes,
                "limit_bytes": trial.limit_bytes, "samples_per_s_per_gpu": trial.samples_per_s,
            }
            for trial in trials
        ],
    }  # fmt: skip


def _of_memory(found: BatchTrial) -> str:
    if found.peak_bytes is None:
        return ""
    share = "" if found.share is None else f", {percent(found.share)}"
    return f" ({found.peak_bytes / _GIB:.2f} GiB{share})"


def _beyond(largest: int, by_batch: dict[int, BatchTrial], most: int) -> str:
    following = by_batch.get(largest + MULTIPLE)
    if largest == most or following is None:
        return f"no larger one was tried (--most {most})"
    took = "" if following.share is None else f": it took {percent(following.share)}"
    return f"the next, {following.batch}, does not fit{took or f': {following.why_not}'}"
