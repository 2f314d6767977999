"""Ranks against all the others, in one round."""

from __future__ import annotations

import numpy as np

from pytest_ddpscale.metrics.rounds import ArmRounds
from pytest_ddpscale.results.column_record import FloatArray

# Makes the median absolute deviation of normal noise its standard deviation: 1 / Φ⁻¹(3/4).
MAD_TO_STDEV = 1.4826


class Peers:
    """The step times of one round, of which each rank is compared with those of all others.

    Sorted once, so that a round of n ranks takes n log n: simulated clusters have 100,000.

    Args:
        times_s: of all ranks that took part, at least two, (ranks,).
    """

    def __init__(self, times_s: FloatArray) -> None:
        if len(times_s) < 2:
            raise ValueError(f"{len(times_s)} rank has no peers; expected at least 2 ranks")
        self._ordered_s = np.sort(times_s)

    def median_s(self, times_s: FloatArray) -> FloatArray:
        """Median step time, in seconds, of all ranks but one that took that time, for each of `times_s`."""
        return median_without(self._ordered_s, times_s)

    def stdev_s(self, times_s: FloatArray) -> FloatArray:
        """Robust standard deviation, from the median absolute deviation, of all ranks but one that took that time."""
        medians_s = self.median_s(times_s)
        found = np.empty(len(times_s))
        for median_s in np.unique(medians_s):  # all ranks share two or three medians of their peers
            sharing = medians_s == median_s
            deviations_s = np.sort(np.abs(self._ordered_s - median_s))
            found[sharing] = median_without(deviations_s, np.abs(times_s[sharing] - median_s))
        return MAD_TO_STDEV * found


def slowest_to_peers(measured: ArmRounds) -> FloatArray:
    """Of each round, mean step time of the slowest rank over the median of all others'; at least two ranks."""
    found = np.empty(len(measured))
    for row, there in enumerate(measured.present):
        times_s = measured.mean_step_s[row, there]
        found[row] = times_s.max() / Peers(times_s).median_s(times_s.max(keepdims=True))[0]
    return found


def median_without(ordered: FloatArray, left_out: FloatArray) -> FloatArray:
    """Median of a sorted array of two or more without one occurrence of a value, for each of these of its values."""
    place = np.searchsorted(ordered, left_out)
    count = len(ordered) - 1

    def kept(i: int) -> FloatArray:
        return ordered[np.where(i < place, i, i + 1)]

    return kept(count // 2) if count % 2 else (kept(count // 2 - 1) + kept(count // 2)) / 2
