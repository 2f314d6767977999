"""Whether a verdict would survive the remaining rounds.

A verdict after 8 of 32 rounds has seen a quarter of a trend, and perhaps no hiccup yet. So before the last round a
verdict must survive two things that the rounds so far cannot exclude:

* a straight trend that goes on to the last round. The least-squares line through the rounds is extrapolated with
  the one-sided Student-t confidence limit of its value there (Draper and Smith, "Applied Regression Analysis", 3rd
  ed., 1998, section 3.1). Nothing is extrapolated if the confidence limit of the slope shows a trend of less than
  `LEAST_TREND` over all rounds: excluding so small a trend would take many rounds and hardly matters.
* one more round that lies `HICCUP_SDS` standard deviations to the bad side.

At the last round both are skipped. Both can only delay a verdict, so the guarantee of the confidence sequence holds
unchanged. Their constants were chosen by simulation, for less than 10 % of wrong passes on a ramp of -3 % and less
than 5 % if a few blocks take ten standard deviations longer (benchmarks/wrong_verdicts.py).
"""

from __future__ import annotations

import math

import numpy as np

from pytest_ddpscale.judge.intervals import t_quantile
from pytest_ddpscale.judge.sequential import BoolArray, EProcesses, FloatArray
from pytest_ddpscale.judge.steadiness import fit_lines

TREND_CONFIDENCE, SLOPE_CONFIDENCE = 0.96, 0.93
LEAST_TREND = 0.02
HICCUP_SDS = 3.0


def survive_a_trend(series: FloatArray, limit: int, bound: float, side: int, size: float) -> BoolArray:
    """Whether no relevant straight trend within the noise crosses the bound by the last round.

    Args:
        series: (series, rounds), at least three rounds.
        limit: largest number of rounds.
        bound: on the scale of the series.
        side: 1 if values are to lie above the bound, -1 below.
        size: value that `LEAST_TREND` is a share of.
    """
    rounds, lines = series.shape[1], fit_lines(series)
    # Sum of squares of the centred round numbers; distance of the last round from their centre.
    squares, ahead = rounds * (rounds**2 - 1) / 12, limit - 1 - (rounds - 1) / 2
    end_error = lines.noise * math.sqrt(1 / rounds + ahead**2 / squares)
    end = side * (lines.means + lines.slopes * ahead - bound) - t_quantile(TREND_CONFIDENCE, rounds - 2) * end_error
    slope_error = lines.noise / math.sqrt(squares)
    slope = side * lines.slopes - t_quantile(SLOPE_CONFIDENCE, rounds - 2) * slope_error
    return np.asarray((end >= 0) | (slope * (limit - 1) > -LEAST_TREND * size))


def survive_a_hiccup(series: FloatArray, bound: float, side: int, confidence: float) -> BoolArray:
    """Whether intervals still exclude the bound after one more round, `HICCUP_SDS` towards it.

    Args:
        series: (series, rounds).
        bound: on the scale of the series.
        side: 1 if values are to lie above the bound, -1 below.
        confidence: of the intervals, 0 … 1.
    """
    hiccups = series.mean(axis=1) - side * HICCUP_SDS * series.std(axis=1)
    processes = EProcesses(np.column_stack([series, hiccups]))
    evidence = processes.log_evidence(np.full(len(series), bound))
    return np.asarray((evidence >= -math.log(1 - confidence)) & (side * (processes.centres - bound) >= 0))


def are_final(
    series: FloatArray, limit: int, bound: float, side: int, confidence: float, size: float
) -> BoolArray:  # fmt: skip
    """Whether verdicts survive both, with the same arguments. Series without variation always do."""
    if series.shape[1] >= limit:
        return np.ones(len(series), np.bool_)
    # Rounding makes the deviation of equal values not quite zero.
    is_alike = series.std(axis=1) <= 1e-12 * np.abs(series).max(axis=1)
    goes_on = survive_a_trend(series, limit, bound, side, size)
    return np.asarray(is_alike | (goes_on & survive_a_hiccup(series, bound, side, confidence)))
