"""Upper limit for a performance loss that is common to all GPUs.

Comparing ranks with each other, or many GPUs with one, cannot show a loss common to all. Only a published throughput
can, within the margin of its bound. The undetected loss is limited by the distance from the published value to the
lower limit of the measured interval.

A common loss shows in each workload, so the workload with the smallest distance limits it. The smallest of several
distances holds with the requested confidence if each is taken at 1 - (1 - confidence) / workloads (Bonferroni). This
assumes that healthy GPUs reach each published value equally: newer software that speeds up one workload would hide the
loss in the others. So the largest distance is reported too. One requirement of each workload is used, independent of
the measurements: the throughput of the most GPUs, else the ratio to an earlier generation, which is the same throughput
divided by a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.run.verdicts import UniformLoss, Verdict


def uniform_loss(
    verdicts: Iterable[Verdict], confidence: float, judge_at: Callable[[str, float], Verdict]
) -> UniformLoss | None:
    """The largest loss common to all GPUs that cannot be excluded.

    Args:
        verdicts: of the run.
        confidence: that the loss is no larger, 0 … 1.
        judge_at: judges the requirement with an id again, at another confidence.

    Returns:
        None if no requirement that would show the loss passed.
    """
    chosen: dict[str, Verdict] = {}
    shown = (one for one in verdicts if one.shows_uniform_loss)
    for one in sorted(shown, key=lambda one: (one.metric != THROUGHPUT_PER_GPU.name, -one.world_size)):
        chosen.setdefault(one.workload, one)
    together = 1 - (1 - confidence) / max(len(chosen), 1)
    losses = {one.id: _largest_loss(judge_at(one.id, together)) for one in chosen.values() if one.passed}
    known = {name: loss for name, loss in losses.items() if loss is not None}
    if not known:
        return None
    name = min(known, key=lambda name: known[name])
    return UniformLoss(known[name], max(known.values()), confidence, name, len(known))


def _largest_loss(verdict: Verdict) -> float | None:
    """Distance from the published value down to the lower limit, relative to the published value."""
    if verdict.interval is None or not verdict.published:
        return None
    return max(0.0, 1 - verdict.interval[0] / verdict.published)
