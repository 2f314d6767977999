"""How step times are spread: percentiles and the coefficient of variation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pytest_ddpscale.metrics.rounds import ArmRound, Rounds, mean_step_s
from pytest_ddpscale.results.records import Measurement

PERCENTS = (50, 75, 90, 95, 99)
_MS_PER_S = 1000.0


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed, interpolated linearly between neighbours.

    Of n ordered values the one at position (n - 1) * percent / 100, counted from 0: definition 7 of
    Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50 (1996),
    which is numpy's default.

    Args:
        values: at least one, in any order.
        percent: 0 … 100.

    Raises:
        ValueError: there are no values, or `percent` is out of range.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"percentile {percent:g} of {len(values)} values; expected 0 to 100 of at least 1")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def raw_steps_s(arm_round: ArmRound) -> list[float]:
    """Duration of every step of every rank, in seconds; empty if any rank kept none, as imported results do."""
    if not all(rank.step_s for rank in arm_round.ranks):
        return []
    return [step_s for rank in arm_round.ranks for step_s in rank.step_s]


def step_time_percentiles_ms(measured: Rounds) -> dict[int, float]:
    """p50, p75, p90, p95 and p99 of an arm's step time over the raw steps of all ranks and rounds.

    Returns:
        Milliseconds by per cent; empty if no round kept its raw steps.
    """
    steps_s = [step_s for arm_round in measured.values() for step_s in raw_steps_s(arm_round)]
    return {percent: _MS_PER_S * percentile(steps_s, percent) for percent in PERCENTS} if steps_s else {}


def round_percentile_ms(arm_round: ArmRound, percent: float) -> float | None:
    """A percentile of the step time over the raw steps of all ranks in a round, in ms; None without raw steps."""
    steps_s = raw_steps_s(arm_round)
    return _MS_PER_S * percentile(steps_s, percent) if steps_s else None


def step_time_cv(arm_round: ArmRound) -> float | None:
    """Standard deviation of the step time over its mean, on the rank where it is largest; None if any is unknown.

    Each rank against its own mean: a rank that is slow throughout is no less steady for that.
    """
    found = [_cv(rank) for rank in arm_round.ranks]
    known = [cv for cv in found if cv is not None]
    return max(known) if len(known) == len(found) else None


def _cv(rank: Measurement) -> float | None:
    """Of the raw steps; of the summary that imported results keep in their place where there are none."""
    if len(rank.step_s) > 1:
        mean_s = statistics.fmean(rank.step_s)
        return statistics.stdev(rank.step_s) / mean_s if mean_s > 0 else None
    return None if rank.step_stdev_s is None else rank.step_stdev_s / mean_step_s(rank)
