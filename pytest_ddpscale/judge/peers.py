"""Each place compared with its peers: the one rule that says who is slower, and the averages that it rests on.

Peers are places that should be alike: GPUs, nodes, host links, pairs of GPUs. A place is *beyond* its peers if its time
over the median of all others, averaged over rounds, is above 1 + limit with its whole interval, and it has
`FEWEST_PEERS`; of `FEWEST_PEERS_OF_FAR` it must be beyond twice the limit, because their median is less certain. It is
*within* if the whole interval is below 1 + limit, and so is the mean over rounds: a place that is far slower in a third
of the rounds has a harmless median. Otherwise it is open. Intervals hold for all places together, and reach to where a
place would be if it went on drifting as it does. With half of the places slow the median of others lies between both
groups, which then may be beyond, open or within: `stragglers.find_slow_group` tells them apart.

The average over rounds is the median: hiccups in less than half of the rounds do not move it. Its standard error is
that of a median of normal noise, √(π/2) times that of a mean. The noise is the median absolute deviation of the rank's
own rounds, or that about a line through the medians of their halves (Tukey 1977) if it is smaller, because a rank that
gets slower is not noisy. The typical rank's noise is used instead if it is larger: eight rounds of one rank are too few
to estimate its noise well. Successive rounds may correlate by up to 0.5, which widens the interval as in `steadiness`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.judge.stats import find_drifts, t_quantile
from pytest_ddpscale.run.column_record import BoolArray, FloatArray, IntArray

# Converts the median absolute deviation of normal noise to its standard deviation: 1 / Φ⁻¹(3/4).
MAD_TO_STDEV = 1.4826
MINIMUM_ROUNDS = 5  # of a place; with fewer nothing is said about it
FEWEST_PEERS, FEWEST_PEERS_OF_FAR = 4, 3
# Of a drift, on the scale of logarithms: no verdict depends on less.
_NEGLIGIBLE_DRIFT = 0.001
_ALPHA = 0.05  # two-sided, over all compared ranks together (Bonferroni)
# sqrt((1 + ρ) / (1 - ρ)) for the largest correlation allowed for, 0.5.
_INFLATION = math.sqrt(3)
_MOST_DEGREES = 100  # beyond this Student's distribution is close to normal


@dataclass(frozen=True, eq=False)
class Compared:
    """Places compared with their peers, (places,) each; NaN for a place with too few rounds or without a peer.

    Attributes:
        ratio: time over the median of its peers', averaged over the rounds; above 1 is slower.
        low: lower limit of that ratio, for all places together.
        high: upper limit.
        peers: number of other places that it is compared with, the least of any round.
        rounds: number of rounds in which it was.
        beyond: whether it is slower than its peers by more than the limit, by the rule of this module.
        within: whether it is not; neither is known of a place that is open.
    """

    ratio: FloatArray
    low: FloatArray
    high: FloatArray
    peers: IntArray
    rounds: IntArray
    beyond: BoolArray
    within: BoolArray

    @property
    def open(self) -> BoolArray:
        """Whether more rounds, or more peers, would have to tell."""
        return ~self.beyond & ~self.within


def compare(times_s: FloatArray, limit: float, labels: IntArray | None = None, looks: int = 1) -> Compared:
    """Compare each place with its peers by the rule of this module.

    Args:
        times_s: of places that should be alike, NaN where one was absent, (rounds, places); for a bandwidth its
            inverse, so that larger is slower.
        limit: by which a place may be slower than its peers, 0.05 for 5 %; infinite if no place is ever beyond.
        labels: peers are only places with the same label, (places,); all are without them.
        looks: number of times that such a comparison decides; intervals hold for all of them together.
    """
    logs = np.log(times_s / _medians_of_peers(times_s, labels))
    of_peers = np.where(np.isnan(logs), times_s.shape[1], _peers(times_s, labels))
    rounds: IntArray = (~np.isnan(logs)).sum(axis=0)
    told = np.flatnonzero(rounds >= MINIMUM_ROUNDS)
    ratio, low, high = np.full((3, logs.shape[1]), np.nan)
    mean, peers = np.full(logs.shape[1], np.nan), np.zeros(logs.shape[1], np.int64)
    if len(told):
        logs = logs[:, told]
        values, reaches = averages_of(logs, looks)
        drifts, gone_on = find_drifts(np.where(np.isnan(logs), values, logs).T, _NEGLIGIBLE_DRIFT)
        to = np.where(np.isnan(drifts), values, gone_on)
        ratio[told] = np.exp(values)
        low[told], high[told] = np.exp(np.minimum(values - reaches, to)), np.exp(np.maximum(values + reaches, to))
        mean[told] = np.exp(np.nanmean(logs, axis=0))
        peers[told] = of_peers[:, told].min(axis=0)
    line, far = 1 + limit, 1 + 2 * limit
    beyond = ((low > line) & (peers >= FEWEST_PEERS)) | ((low > far) & (peers >= FEWEST_PEERS_OF_FAR))
    within = (high < line) & (mean < line) & (peers >= FEWEST_PEERS_OF_FAR)
    return Compared(ratio, low, high, peers, rounds, beyond, within)


def _peers(times_s: FloatArray, labels: IntArray | None) -> IntArray:
    """Number of others of the same label in each round, (rounds, places)."""
    found = np.zeros(times_s.shape, np.int64)
    for columns in _alike(times_s.shape[1], labels):
        there = ~np.isnan(times_s[:, columns])
        found[:, columns] = there.sum(axis=2, keepdims=True) - 1
    return found


def _medians_of_peers(times_s: FloatArray, labels: IntArray | None) -> FloatArray:
    """`medians_of_others` among places of the same label, (rounds, places)."""
    found = np.full(times_s.shape, np.nan)
    for columns in _alike(times_s.shape[1], labels):
        values = times_s[:, columns]
        found[:, columns] = medians_of_others(values.reshape(-1, values.shape[2])).reshape(values.shape)
    return found


def _alike(places: int, labels: IntArray | None) -> Iterator[IntArray]:
    """Columns of the places of each label, (labels, places of one); labels with equally many places are together."""
    if labels is None:
        yield np.arange(places)[np.newaxis]
        return
    order, counts = np.argsort(labels, kind="stable"), np.unique(labels, return_counts=True)[1]
    ends = np.cumsum(counts)
    for size in np.unique(counts).tolist():
        first = (ends - counts)[counts == size]
        yield order[first[:, np.newaxis] + np.arange(size)]


def medians_of_others(values: FloatArray) -> FloatArray:
    """For each value the median of all others in its row, (rows, ranks); NaN where there is no value, or no other one.

    A slow rank cannot move the median it is compared with. Each row is sorted once: n ranks take O(n log n).
    """
    ordered = np.sort(values, axis=1)
    places = np.argsort(np.argsort(values, axis=1), axis=1)
    others = (~np.isnan(values)).sum(axis=1, keepdims=True) - 1

    def kept(i: IntArray) -> FloatArray:
        """The i-th value that remains after the value at each place is removed."""
        before, after = (np.take_along_axis(ordered, np.clip(i + k, 0, values.shape[1] - 1), axis=1) for k in (0, 1))
        return np.where(i < places, before, after)

    medians = (kept((others - 1) // 2) + kept(others // 2)) / 2
    return np.where(np.isnan(values) | (others < 1), np.nan, medians)


def averages_of(logs: FloatArray, looks: int = 1) -> tuple[FloatArray, FloatArray]:
    """Medians over the rounds of each rank, and half-widths of their joint interval at 95 % confidence, (ranks,).

    Args:
        logs: (rounds, ranks), NaN where a rank was absent; at least one round of each rank.
        looks: number of windows of rounds that are looked at; intervals hold for all of them together.
    """
    rounds, ranks = (~np.isnan(logs)).sum(axis=0), logs.shape[1]
    stdev = _robust_stdev(logs)
    own = np.minimum(stdev, _robust_stdev(_without_trend(logs)))
    error = np.maximum(own, np.median(stdev)) * math.sqrt(math.pi / 2) * _INFLATION / np.sqrt(rounds)
    degrees = min(max(1, int(rounds.min()) - 1) * max(1, ranks - 1), _MOST_DEGREES)
    return median_over_rounds(logs), t_quantile(1 - _ALPHA / (2 * looks * ranks), degrees) * error


def _robust_stdev(logs: FloatArray) -> FloatArray:
    return MAD_TO_STDEV * median_over_rounds(np.abs(logs - median_over_rounds(logs)))


def _without_trend(logs: FloatArray) -> FloatArray:
    """Residuals of a straight line, rank by rank; unchanged if a rank lacks either half of the rounds."""
    half = len(logs) // 2
    change = median_over_rounds(logs[-half:]) - median_over_rounds(logs[:half]) if half else np.zeros(logs.shape[1])
    slope = np.nan_to_num(change) / max(1, len(logs) - half)
    return np.asarray(logs - slope * np.arange(len(logs))[:, np.newaxis])


def relative_logs(times_s: FloatArray) -> FloatArray:
    """Logarithms of times relative to the median rank of the round, which cancels what slows down all ranks."""
    logs = np.log(times_s)
    return logs - median_over_rounds(logs.T)[:, np.newaxis]


def median_over_rounds(values: FloatArray) -> FloatArray:
    """Median of each column without NaN; NaN for empty columns. A few times faster than `numpy.nanmedian`."""
    ordered, count = np.sort(values, axis=0), (~np.isnan(values)).sum(axis=0)
    columns = np.arange(values.shape[1])
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(values) - 1)
    return np.asarray((ordered[low, columns] + ordered[high, columns]) / 2)
