"""The value of each of two runs with its interval, on shared nodes if the runs have any."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from pytest_ddpscale.compare.asked_of_run import TOGETHER, AskedOfRun, ByHost, Series
from pytest_ddpscale.history.launch_deviation import launch_deviation_of
from pytest_ddpscale.judge.estimating import Found, estimate_of, over_launches
from pytest_ddpscale.judge.intervals import Estimate
from pytest_ddpscale.plan.metric import Metric, Scale
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU

# With several nodes: the worst of each round; the mean if the runs share no nodes, because the worst of many nodes is
# worse than the worst of few.
Of = Literal["worst", "mean"]
_LEAST_SHARE = 1e-6  # smallest lower limit relative to the value, for values that err by factors


class Estimated(NamedTuple):
    """A run's estimate of a value.

    Attributes:
        limits: value and interval; None without an interval.
        rounds: in all launches.
        launches: number of measured launches.
        knows_launches: whether the interval includes differences between launches.
        why_not: why there is no interval; empty if there is one.
        value: in the metric's unit, also without an interval; None if nothing was measured.
    """

    limits: Estimate | None
    rounds: int = 0
    launches: int = 1
    knows_launches: bool = False
    why_not: str = ""
    value: float | None = None


def shared_hosts(a: Sequence[ByHost], b: Sequence[ByHost]) -> list[str]:
    """Nodes with values in each launch of both runs."""
    everywhere = [set(launch) for launch in (*a, *b)]
    return sorted(set.intersection(*everywhere)) if everywhere else []


def estimated(
    asked: AskedOfRun, launches: Sequence[ByHost], hosts: Sequence[str], metric: Metric, scale: Scale, confidence: float
) -> Estimated:
    """Estimate the value of one run.

    Args:
        asked: the question to it.
        launches: its per-round values.
        hosts: the worst of these nodes counts; if empty, the mean of all nodes.
        metric: of the values.
        scale: whether they err by factors or differences.
        confidence: of the interval, 0 … 1.
    """
    series = [_one_series(launch, hosts, metric, scale) for launch in launches]
    rounds = sum(len(one.values) for one in series)
    if not series or not all(len(one.values) for one in series):
        return Estimated(None, rounds, len(series), why_not=asked.why_not or "no complete round")
    values = np.concatenate([one.values for one in series])
    if not np.isfinite(values).all() or (scale == "factors" and values.min() <= 0):
        return Estimated(None, rounds, len(series), why_not="an impossible value was measured")
    of_launches = [estimate_of(one.values, scale, confidence, error=one.error) for one in series]
    found = over_launches(of_launches, scale, confidence) if len(series) > 1 else of_launches[0]
    if found.interval is None:
        return Estimated(None, rounds, len(series), why_not=found.too_few, value=found.value)
    low, high = found.interval
    limits = Estimate(found.value, (max(low, _LEAST_SHARE * found.value) if scale == "factors" else low, high))
    if len(series) > 1:
        return Estimated(limits, rounds, len(series), knows_launches=True, value=found.value)
    return _with_earlier_launches(asked, Estimated(limits, rounds, value=found.value), found, metric, confidence)


def _with_earlier_launches(
    asked: AskedOfRun, single: Estimated, found: Found, metric: Metric, confidence: float
) -> Estimated:
    """Widen the interval by the deviation between earlier launches of the same places, if known, as in verdicts."""
    question, limits = asked.question, single.limits
    if question is None or limits is None or metric is not THROUGHPUT_PER_GPU or asked.run.record.is_imported:
        return single
    deviation = launch_deviation_of(question, asked.run.evidence, asked.run.past)
    if deviation is None:
        return single
    reach = deviation.reach(confidence)
    down, up = (math.hypot(math.log(end / found.value), reach) for end in limits.interval)
    wider = Estimate(found.value, (found.value * math.exp(-down), found.value * math.exp(up)))
    return single._replace(limits=wider, knows_launches=True)


def _one_series(launch: ByHost, hosts: Sequence[str], metric: Metric, scale: Scale) -> Series:
    """One value per round, for the rounds that all places have."""
    chosen = [values for host in hosts or launch for values in launch.get(host, ())]
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        return Series(np.zeros(0))
    fewest = min(len(one.values) for one in chosen)
    table = np.stack([one.values[:fewest] for one in chosen])
    if hosts or set(launch) == {TOGETHER}:
        values = table.max(axis=0) if metric.upper_bound else table.min(axis=0)
    elif scale == "factors" and (table > 0).all():
        values = np.exp(np.log(table).mean(axis=0))
    else:
        values = table.mean(axis=0)
    return Series(np.asarray(values))
