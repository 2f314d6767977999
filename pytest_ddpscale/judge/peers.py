"""Each rank compared with all others."""

from __future__ import annotations

import numpy as np

from pytest_ddpscale.judge.rounds import ArmRounds
from pytest_ddpscale.run.column_record import FloatArray, IntArray

# Converts the median absolute deviation of normal noise to its standard deviation: 1 / Φ⁻¹(3/4).
MAD_TO_STDEV = 1.4826
# Correction of its bias for 2, 3 … 9 values (Croux and Rousseeuw, COMPSTAT 1992); n / (n - 0.8) beyond.
_FEW_VALUES = (1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107)


def medians_of_others(values: FloatArray) -> FloatArray:
    """For each value the median of all others in its row, (rows, ranks).

    A slow rank cannot move the median it is compared with. Each row is sorted once: n ranks take O(n log n).

    Args:
        values: NaN where there is none, (rows, ranks).

    Returns:
        NaN where there is no value, or no other one.
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


def stdevs_of_others(values: FloatArray) -> FloatArray:
    """For each value the robust standard deviation, from the median absolute deviation, of all others, (ranks,).

    Args:
        values: at least two, none of them NaN; with two, the deviation is 0.
    """
    others = len(values) - 1
    correction = _FEW_VALUES[max(0, others - 2)] if others < 10 else others / (others - 0.8)
    medians = medians_of_others(values[np.newaxis])[0]
    found = np.empty(len(values))
    for median in np.unique(medians):  # all ranks share two or three medians of their peers
        sharing = medians == median
        found[sharing] = medians_of_others(np.abs(values - median)[np.newaxis])[0][sharing]
    return MAD_TO_STDEV * correction * found


def slowest_to_peers(measured: ArmRounds) -> FloatArray:
    """Mean step time of the slowest rank over the median of all others', (rounds,); needs at least two ranks."""
    if not len(measured):
        return np.zeros(0)
    ratios: FloatArray = np.nanmax(measured.mean_step_s / medians_of_others(measured.mean_step_s), axis=1)
    return ratios
