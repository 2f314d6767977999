"""Places that should be alike: who is slower than its peers, by the one rule.

Peers are places that should be alike: GPUs, nodes, host links, pairs of GPUs. A place is *beyond* its peers if its time
over the median of all others, averaged over rounds, is above 1 + limit with its whole interval, and it has
`FEWEST_PEERS`; of `FEWEST_PEERS_OF_FAR` it must be beyond twice the limit, because their median is less certain. It is
*within* if the whole interval is below 1 + limit, and so is the mean over rounds: a place that is far slower in a third
of the rounds has a harmless median. Otherwise it is open. Intervals hold for all places together, and reach to where a
place would be if it went on drifting as it does.

The average over rounds is the median: hiccups in less than half of the rounds do not move it. Its standard error is
that of a median of normal noise, √(π/2) times that of a mean. The noise is the median absolute deviation of the place's
own rounds, or that about a line through the medians of their halves (Tukey 1977) if it is smaller, because a place that
gets slower is not noisy. The typical place's noise is used instead if it is larger: eight rounds of one are too few to
estimate its noise well. Successive rounds may correlate by up to 0.5, which widens the interval as in `steadiness`.

*Slow* (`find_slow`) is who is beyond, in all rounds or in the last half and not before, and who is slower by twice the
limit in a quarter of the rounds or more while its peers hardly ever are. With fewer peers than the rule needs a place
above the limit is slow, too, but not certain. With half of the places slow the median of the others lies between both
groups. So places are also sorted by their averages and split at the largest gap. They are two groups if

- each has at least two places and a quarter of all,
- the medians of the groups differ by 0.6 of the limit, clear of noise, and
- the slowest fast place and the fastest slow place differ by most of that, and by half of the distance of the medians:
  an even spread has no such gap.

If at least half of the places are slow, it is unknown which group is normal; and groups closer than the limit accuse
nobody. Found: up to half of an even number of places, up to (k - 1)/2 of an odd number from 5 up, one of three. More
than that are the baseline here, and absolute bounds such as ``throughput_per_gpu`` find them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.stats import find_drifts, t_quantile
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, IntArray

# Converts the median absolute deviation of normal noise to its standard deviation: 1 / Φ⁻¹(3/4).
MAD_TO_STDEV = 1.4826
MINIMUM_ROUNDS = 5  # of a place; with fewer nothing is said about it
FEWEST_PEERS, FEWEST_PEERS_OF_FAR = 4, 3
WATCHED_SHARE = 0.6  # of the limit
# Of a drift, on the scale of logarithms: no verdict depends on less.
_NEGLIGIBLE_DRIFT = 0.001
_ALPHA = 0.05  # two-sided, over all compared places together (Bonferroni)
# sqrt((1 + ρ) / (1 - ρ)) for the largest correlation allowed for, 0.5.
_INFLATION = math.sqrt(3)
_MOST_DEGREES = 100  # beyond this Student's distribution is close to normal
_FAR = 2.0  # limits by which a place that is slow at times must be slower in those rounds
_CHANCE = 0.005  # share of runs in which noise alone may name a place as slow at times
# Least share and number of rounds in which it must be, so that no hiccup is taken for a fault.
_AT_TIMES, _FEWEST_TIMES = 0.25, 3
MOSTLY = 0.9  # share of rounds that reports call "all"
_LEAST_SHARE = 0.25  # of all places, in each of two groups
# Least gap between the nearest places of the groups: share of the least distance of the medians, and of the distance.
_LEAST_GAP, _LEAST_SHARE_OF_DISTANCE = 0.8, 0.5


class Compared(NamedTuple):
    """Places compared with their peers, (places,) each; NaN for a place with too few rounds or without a peer.

    Attributes:
        logs: logarithms of times over the median of the peers', (rounds, places).
        ratio: time over the median of its peers', averaged over the rounds; above 1 is slower.
        low: lower limit of that ratio, for all places together.
        high: upper limit.
        peers: number of other places that it is compared with, the least of any round.
        rounds: number of rounds in which it was.
        beyond: whether it is slower than its peers by more than the limit, by the rule of this module.
        within: whether it is not; neither is known of a place that is open.
    """

    logs: FloatArray
    ratio: FloatArray
    low: FloatArray
    high: FloatArray
    peers: IntArray
    rounds: IntArray
    beyond: BoolArray
    within: BoolArray


def compare(times_s: FloatArray, limit: float, labels: IntArray | int = 0, looks: int = 1) -> Compared:
    """Compare each place with its peers by the rule of this module.

    Args:
        times_s: of places that should be alike, NaN where one was absent, (rounds, places); for a bandwidth its
            inverse, so that larger is slower.
        limit: by which a place may be slower than its peers, 0.05 for 5 %; infinite if no place is ever beyond.
        labels: peers are only places with the same label, (places,); all are without them.
        looks: number of times that such a comparison decides; intervals hold for all of them together.
    """
    base, others = np.full(times_s.shape, np.nan), np.zeros(times_s.shape, np.int64)
    labels = np.broadcast_to(labels, times_s.shape[1:])
    for label in np.unique(labels):
        alike = labels == label
        base[:, alike] = medians_of_others(times_s[:, alike])
        others[:, alike] = (~np.isnan(times_s[:, alike])).sum(axis=1, keepdims=True) - 1
    logs = np.log(times_s / base)
    rounds: IntArray = (~np.isnan(logs)).sum(axis=0)
    is_enough, averages = rounds >= MINIMUM_ROUNDS, np.full((4, len(rounds)), np.nan)
    peers = np.min(others, axis=0, where=~np.isnan(logs), initial=len(labels))
    if is_enough.any():
        own = logs[:, is_enough]
        values, reaches = averages_of(own, looks)
        drifts, gone_on = find_drifts(np.where(np.isnan(own), values, own).T, _NEGLIGIBLE_DRIFT)
        to = np.where(np.isnan(drifts), values, gone_on)
        ends = np.minimum(values - reaches, to), np.maximum(values + reaches, to)
        averages[:, is_enough] = np.exp([values, *ends, np.nanmean(own, axis=0)])
    (ratio, low, high, mean), line = averages, 1 + limit
    beyond = ((low > line) & (peers >= FEWEST_PEERS)) | ((low > line + limit) & (peers >= FEWEST_PEERS_OF_FAR))
    within = (high < line) & (mean < line) & (peers >= FEWEST_PEERS_OF_FAR)
    return Compared(np.where(is_enough, logs, np.nan), ratio, low, high, peers, rounds, beyond, within)


def medians_of_others(values: FloatArray) -> FloatArray:
    """For each value the median of all others in its row, (rows, places); NaN where there is no value, or no other one.

    A slow place cannot move the median it is compared with. Each row is sorted once: n places take O(n log n).
    """
    ordered = np.sort(values, axis=1)
    places = np.argsort(np.argsort(values, axis=1), axis=1)
    others = (~np.isnan(values)).sum(axis=1, keepdims=True) - 1

    def kept(i: IntArray) -> FloatArray:
        """The i-th value that remains after the value at each place is removed."""
        return np.take_along_axis(ordered, np.clip(i + (i >= places), 0, values.shape[1] - 1), axis=1)

    medians = (kept((others - 1) // 2) + kept(others // 2)) / 2
    return np.where(np.isnan(values) | (others < 1), np.nan, medians)


def averages_of(logs: FloatArray, looks: int = 1) -> tuple[FloatArray, FloatArray]:
    """Medians over the rounds of each place, and half-widths of their joint interval at 95 % confidence, (places,).

    Args:
        logs: (rounds, places), NaN where a place was absent; at least `MINIMUM_ROUNDS` of each place.
        looks: number of windows of rounds that are looked at; intervals hold for all of them together.
    """

    def stdev(values: FloatArray) -> FloatArray:
        return MAD_TO_STDEV * median_over_rounds(np.abs(values - median_over_rounds(values)))

    (rounds, places), half, count = logs.shape, len(logs) // 2, (~np.isnan(logs)).sum(axis=0)
    change = median_over_rounds(logs[-half:]) - median_over_rounds(logs[:half])
    slope = np.nan_to_num(change) / (rounds - half)  # none of a place that lacks either half of the rounds
    noise = stdev(logs)
    own = np.minimum(noise, stdev(logs - slope * np.arange(rounds)[:, np.newaxis]))
    error = np.maximum(own, np.median(noise)) * math.sqrt(math.pi / 2) * _INFLATION / np.sqrt(count)
    degrees = min((int(count.min()) - 1) * max(1, places - 1), _MOST_DEGREES)
    return median_over_rounds(logs), t_quantile(1 - _ALPHA / (2 * looks * places), degrees) * error


def relative_logs(times_s: FloatArray) -> FloatArray:
    """Logarithms of times relative to the median place of the round, which cancels what slows down all places."""
    logs = np.log(times_s)
    return logs - median_over_rounds(logs.T)[:, np.newaxis]


def median_over_rounds(values: FloatArray) -> FloatArray:
    """Median of each column without NaN; NaN for empty columns. A few times faster than `numpy.nanmedian`."""
    if not len(values):
        return np.full(values.shape[1], np.nan)
    count, ordered, columns = (~np.isnan(values)).sum(axis=0), np.sort(values, axis=0), np.arange(values.shape[1])
    middle: FloatArray = ordered[np.maximum(count - 1, 0) // 2, columns] + ordered[count // 2, columns]
    return middle / 2


class Slow(NamedTuple):
    """Places that are slower than their peers, the slowest first, (slow,) each.

    Attributes:
        at: their columns.
        are_certain: False if the others may be the unusual ones: they are few, or no majority.
        ratio: median over all rounds of its time over that of its peers.
        mean: the mean instead: what it costs those who wait for it, also if it is slow at times.
        slowdown: the median of the rounds in which it was slow.
        peers: number of others that it is compared with, the least of any round.
        slow_rounds: number of rounds in which it was slow.
        rounds: number of all.
        are_throughout: whether these are nearly all; 0.7 of 10 is 7, although the product is slightly more.
        are_last: whether they are the last ones.
        faster: columns of the faster group if these are the slower of two, (fast,); else empty.
    """

    at: IntArray
    are_certain: BoolArray
    ratio: FloatArray
    mean: FloatArray
    slowdown: FloatArray
    peers: IntArray
    slow_rounds: IntArray
    rounds: IntArray
    are_throughout: BoolArray
    are_last: BoolArray
    faster: IntArray

    def of(self, rows: BoolArray) -> Slow:
        """Some of them."""
        return Slow._make([*(one[rows] for one in self[:-1]), self.faster])


def of_enough_rounds(times_s: FloatArray) -> FloatArray:
    """The times, NaN for places with a peer in fewer than `MINIMUM_ROUNDS` rounds, (rounds, places)."""
    present = ~np.isnan(times_s)
    beside = present & (present.sum(axis=1, keepdims=True) > 1)
    return np.where(beside.sum(axis=0) >= MINIMUM_ROUNDS, times_s, np.nan)


def find_slow(times_s: FloatArray, compared: Compared, limit: float) -> Slow:
    """Places that are slow by the rule of this module, each by itself.

    Args:
        times_s: of places that should be alike, NaN where one was absent, (rounds, places).
        compared: these, all with each other.
        limit: as of `compare`.
    """
    logs, line, half = compared.logs, math.log1p(limit), len(times_s) // 2
    windows = [(compared, np.ones(logs.shape[1], np.bool_))]
    if half >= MINIMUM_ROUNDS:
        # Without the condition, and at one look, ordinary differences would have two chances to look large.
        got_slower = median_over_rounds(logs[half:]) - median_over_rounds(logs[:half]) >= line / 2
        windows.append((compare(times_s[half:], limit, looks=2), got_slower))
    are_slow = find_slow_at_times(compared, limit)
    are_certain = are_slow & (compared.peers >= FEWEST_PEERS_OF_FAR)
    for part, where in windows:
        is_norm = 2 * (part.low > 1).sum() > (~np.isnan(part.low)).sum()  # what most do is the norm
        few = (part.peers < FEWEST_PEERS) & (part.low > 1 + limit) & (not is_norm)
        are_slow, are_certain = are_slow | (where & (part.beyond | few)), are_certain | (where & part.beyond)
    return _described(logs, np.flatnonzero(are_slow), are_certain, compared.peers, line)


def _described(logs: FloatArray, at: IntArray, are_certain: BoolArray, peers: IntArray, line: float) -> Slow:
    """Places that are slow, given by their columns.

    Args:
        logs: of times over their peers', (rounds, places); a place was slow where they are over half of the line.
        are_certain, peers: of all places, (places,).
    """
    at = at[np.argsort(-median_over_rounds(logs[:, at]), kind="stable")]
    own = logs[:, at]
    are_slow, present = own > line / 2, ~np.isnan(own)
    times, rounds = are_slow.sum(axis=0), present.sum(axis=0)
    are_late = np.cumsum(present[::-1], axis=0)[::-1] <= times  # as many of the last rounds
    return Slow(
        at, are_certain[at], np.exp(median_over_rounds(own)), np.exp(np.nanmean(own, axis=0)),
        np.exp(median_over_rounds(np.where(are_slow, own, np.nan))), peers[at], times, rounds,
        times >= np.ceil(MOSTLY * rounds - 1e-9), (are_slow & are_late).sum(axis=0) >= MOSTLY * times,
        np.zeros(0, np.int64),
    )  # fmt: skip


def find_slow_at_times(compared: Compared, limit: float) -> BoolArray:
    """Whether each place is far over the limit in `_AT_TIMES` of the rounds or more, though not in all, (places,).

    A binomial test of each with Bonferroni correction; the chance is the share of rounds in which its peers are over
    the limit, with one added.
    """
    logs, line = compared.logs, math.log1p(limit)
    is_slow, rounds = logs > line, (~np.isnan(logs)).sum(axis=0)
    times, far = is_slow.sum(axis=0), median_over_rounds(np.where(is_slow, logs, np.nan)) >= _FAR * line
    by_chance = (1 + times.sum() - times) / (1 + rounds.sum() - rounds)
    are_odd: BoolArray = far & (times >= _AT_TIMES * rounds) & (times >= _FEWEST_TIMES) & (times < MOSTLY * rounds)
    for i in np.flatnonzero(are_odd).tolist():
        n, p = int(rounds[i]), float(by_chance[i])
        tail = math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(int(times[i]), n + 1))
        are_odd[i] = tail <= _CHANCE / np.count_nonzero(rounds)
    return are_odd


def find_groups(times_s: FloatArray, limit: float) -> Slow:
    """The slower of two groups of places; nobody if there are not two by the rule of this module."""
    logs, line = relative_logs(times_s), math.log1p(WATCHED_SHARE * limit)
    values = np.where((~np.isnan(logs)).sum(axis=0) >= MINIMUM_ROUNDS, median_over_rounds(logs), np.nan)
    order, below, distance, gap = (of_all[0] for of_all in split_at_gap(values[np.newaxis]))
    fast, slow = np.split(order, [below, np.count_nonzero(~np.isnan(values))])[:2]
    is_apart = bool(
        distance >= line
        and gap >= max(_LEAST_GAP * line, _LEAST_SHARE_OF_DISTANCE * distance)
        # That is the reach of two single places; that of medians is smaller.
        and distance > math.sqrt(2) * np.median(averages_of(logs[:, np.append(fast, slow)])[1])
    )
    fast, slow = (one[: is_apart * len(one)] for one in (fast, slow))
    is_minority = len(slow) < len(fast) and distance >= math.log1p(limit)
    certain, peers = np.full(len(values), is_minority), np.full(len(values), len(fast))
    logs -= median_over_rounds(values[fast, np.newaxis])
    return _described(logs, slow, certain, peers, distance)._replace(faster=fast)


def split_at_gap(values: FloatArray) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """The places of each set, least first; how many are below its largest gap; how far apart the medians are; the gap.

    Both parts have at least two places and a quarter of all; the medians are NaN apart where there are fewer.
    `values` are (sets, places), NaN of places that do not count.
    """
    order = np.argsort(values, kind="stable")
    ordered = np.pad(np.take_along_axis(values, order, axis=1), ((0, 0), (1, 1)), constant_values=np.nan)
    counts = np.count_nonzero(~np.isnan(values), axis=1)
    least, below = np.maximum(2, np.ceil(_LEAST_SHARE * counts)), np.arange(ordered.shape[1] - 1)
    may_split = (below >= least[:, np.newaxis]) & (below <= (counts - least)[:, np.newaxis])
    gaps = np.where(may_split, np.diff(ordered), -1.0)
    below = gaps.argmax(axis=1)

    def median(first: IntArray, last: IntArray) -> FloatArray:
        middle = np.stack([(first + last) // 2, (first + last + 1) // 2], axis=1)
        return np.asarray(np.take_along_axis(ordered, middle, axis=1).mean(axis=1))

    distance = np.where(below > 0, median(below + 1, counts) - median(np.ones_like(below), below), np.nan)
    return order, below, distance, gaps.max(axis=1)
