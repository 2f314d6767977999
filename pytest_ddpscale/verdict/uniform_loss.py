"""How large a loss could hide that strikes all GPUs alike.

Ranks are compared with each other, and many GPUs with one: neither sees it when all are slow alike. Only a throughput
that somebody published does, within the margin of its bound. What is left is the distance from the published value to
the lower limit of what was measured.

A loss of all GPUs shows in each workload, so the workload with the smallest distance limits it. The smallest of several
distances is right with the confidence asked for if each is taken at 1 - (1 - confidence) / workloads (Bonferroni). That
supposes that sound GPUs reach each published value alike: where newer software lifts one workload, that one would hide
what the others show. So the largest distance is told beside it. Of each workload one requirement is taken, whatever was
measured: the throughput of the most GPUs, else the ratio to an earlier generation, which is the same throughput divided
by a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.results.verdicts import UniformLoss, Verdict


def uniform_loss(
    verdicts: Iterable[Verdict], confidence: float, judge_at: Callable[[str, float], Verdict]
) -> UniformLoss | None:
    """The loss of all GPUs alike that cannot be excluded.

    Args:
        verdicts: of the run.
        confidence: that the loss is no larger, 0 … 1.
        judge_at: judges the requirement of an id again, at another confidence.

    Returns:
        None if no requirement that would show it passed.
    """
    chosen: dict[str, Verdict] = {}
    for one in sorted((one for one in verdicts if one.shows_uniform_loss), key=_preference):
        chosen.setdefault(one.workload, one)
    together = 1 - (1 - confidence) / max(len(chosen), 1)
    losses = {one.id: _largest_loss(judge_at(one.id, together)) for one in chosen.values() if one.passed}
    known = {name: loss for name, loss in losses.items() if loss is not None}
    if not known:
        return None
    name = min(known, key=lambda name: known[name])
    return UniformLoss(known[name], max(known.values()), confidence, name, len(known))


def _preference(verdict: Verdict) -> tuple[bool, int]:
    return verdict.metric != THROUGHPUT_PER_GPU.name, -verdict.world_size


def _largest_loss(verdict: Verdict) -> float | None:
    """From the published value to the lower limit, relative to the published value."""
    if verdict.interval is None or not verdict.published:
        return None
    return max(0.0, 1 - verdict.interval[0] / verdict.published)
