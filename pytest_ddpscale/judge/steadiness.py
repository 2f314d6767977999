"""Drift and correlation of series of rounds, and whether a verdict would survive the remaining rounds.

A verdict after 8 of 32 rounds has seen a quarter of a trend, and perhaps no hiccup yet. So before the last round a
verdict must survive two things that the rounds so far cannot exclude:

* a straight trend that goes on to the last round. The least-squares line through the rounds is extrapolated with
  the one-sided Student-t confidence limit of its value there (Draper and Smith, "Applied Regression Analysis", 3rd
  ed., 1998, section 3.1).
* one more round that lies `HICCUP_SDS` standard deviations to the bad side.

At the last round both are skipped. Both can only delay a verdict, so the guarantee of the confidence sequence holds
unchanged. Their constants were chosen by simulation, for less than 10 % of wrong passes on ramps of -1 … -5 % and less
than 5 % if a few blocks take ten standard deviations longer (benchmarks/wrong_verdicts.py).

The confidence sequence holds for rounds that correlate by up to 0.5. How much they do is estimated. If that is more,
the interval is widened as the mean of AR(1) noise with the upper confidence limit of that estimate would vary: eight
rounds tell little about their correlation. Of many places some estimates are large by chance, so one place alone is
widened only for an estimate that is large for so many places, and all are if their mean is above 0.5.
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.intervals import t_quantile
from pytest_ddpscale.judge.sequential import CORRELATIONS, BoolArray, EProcesses, FloatArray

# One round at either end and three between them. With fewer, a straight line leaves too little noise to compare with.
FEWEST_ROUNDS_TO_SEE_DRIFT = 5
_CONFIDENCE = 0.98
# Factor by which AR(1) noise with the largest allowed correlation, 0.5, widens the spread of means of rounds
# compared with independent noise: sqrt((1 + ρ) / (1 - ρ)).
_INFLATION = math.sqrt(3)
# The confidence sequence is valid up to this correlation.
MOST_CORRELATION = max(CORRELATIONS)
# Standard errors to the upper limit of a correlation: with three, AR(1) noise of 0.9 passes wrongly in 5 %, and one in
# 15 series of eight independent rounds is widened (benchmarks/wrong_verdicts.py).
_QUANTILE = 3.0
_LARGEST = 0.99
TREND_CONFIDENCE = 0.96
HICCUP_SDS = 3.0


class Drifts(NamedTuple):
    """Whether changes from the first to the last third of the rounds exceed the noise, and means of the last third."""

    are_seen: BoolArray
    changes: FloatArray
    lasts: FloatArray

    @property
    def gone_on(self) -> FloatArray:
        """Extrapolated values if each drift went on for as long again."""
        return self.lasts + self.changes


class FittedLines(NamedTuple):
    """Least-squares lines: means in the middle of the rounds, slopes per round; `noise` is the residuals' deviation."""

    means: FloatArray
    slopes: FloatArray
    residuals: FloatArray
    noise: FloatArray


def fit_lines(values: FloatArray) -> FittedLines:
    """Fit a line to each of many series, (series, rounds), of at least three rounds."""
    rounds = values.shape[1]
    numbers = np.arange(rounds) - (rounds - 1) / 2
    means = values.mean(axis=1)
    about_mean = values - means[:, np.newaxis]
    slopes = about_mean @ numbers / (numbers @ numbers)
    residuals = about_mean - slopes[:, np.newaxis] * numbers
    return FittedLines(means, slopes, residuals, np.sqrt((residuals**2).sum(axis=1) / (rounds - 2)))


def find_drifts(values: FloatArray, negligible: FloatArray | float = 0.0) -> Drifts:
    """The drift of each series between the first and the last third of its rounds.

    The noise is the residual of a straight line through all rounds. The t statistic of the change is compared with
    Student's distribution at 2 % false alarms, widened for correlated noise.

    Smaller changes than `negligible`, of all or of each series, are ignored, however little noise there is. Values are
    in the order of the rounds, (series, rounds); logarithms for ratios.
    """
    rounds = values.shape[1]
    if rounds < FEWEST_ROUNDS_TO_SEE_DRIFT:
        return Drifts(np.zeros(len(values), np.bool_), *np.zeros((2, len(values))))
    third = rounds // 3
    first, last = values[:, :third].mean(axis=1), values[:, -third:].mean(axis=1)
    limit = t_quantile(0.5 + _CONFIDENCE / 2, rounds - 2) * _INFLATION * fit_lines(values).noise * math.sqrt(2 / third)
    # Rounding makes the differences of equal values not quite zero.
    rounding = 1e-9 * np.abs(values).max(axis=1)
    are_seen = np.abs(last - first) > np.maximum(np.maximum(limit, negligible), rounding)
    return Drifts(np.asarray(are_seen), last - first, last)


def lag_one_correlations(series: FloatArray) -> FloatArray:
    """Estimates from residuals of a straight line, -0.99 … 0.99, (series,), of (series, rounds) with at least 4 rounds.

    A drift does not count. NaN for a series of equal values, and for a straight line.

    Residuals about a line correlate by about (2 + 4ρ) / n less than the noise does: Tanaka (1984), "An asymptotic
    expansion associated with the maximum likelihood estimators in ARMA models", J. R. Statist. Soc. B 46; after
    Marriott and Pope (1954), "Bias in the estimation of autocorrelations", Biometrika 41, for those about a mean. That
    bias is added back, with the estimate in place of ρ.
    """
    rounds, residuals = series.shape[1], fit_lines(series).residuals
    squares = (residuals**2).sum(axis=1)
    # Rounding makes the residuals of a straight line not quite zero.
    is_told = np.sqrt(squares / rounds) > 1e-12 * np.abs(series).max(axis=1)
    products = (residuals[:, 1:] * residuals[:, :-1]).sum(axis=1)
    raw = np.where(is_told, products / np.where(is_told, squares, 1.0), np.nan)
    return np.asarray(np.clip(raw + (2 + 4 * raw) / rounds, -_LARGEST, _LARGEST))


def widening(correlations: FloatArray, rounds: int, alike: int = 1) -> FloatArray:
    """Factors, at least 1, by which intervals of means widen because rounds may correlate by more than 0.5, (series,).

    A mean of AR(1) noise varies sqrt((1 + ρ) / (1 - ρ)) times as much as one of independent noise. The factor is that
    at the upper limit of a correlation over that at `MOST_CORRELATION`, for which the interval holds anyway. Limits
    come from Fisher's z transformation (1921), standard error 1 / sqrt(rounds - 3).

    Args:
        correlations: estimates, NaN for series of equal values, which are not widened, (series,).
        rounds: number of rounds, at least 4.
        alike: number of series that one verdict rests on. If more than one, all of them are given.
    """
    is_known, least = ~np.isnan(correlations), math.atanh(MOST_CORRELATION)
    transformed, error = np.arctanh(np.where(is_known, correlations, 0.0)), 1 / math.sqrt(rounds - 3)
    is_large = is_known & (transformed > least + statistics.NormalDist().inv_cdf(1 - 0.5 / alike) * error)
    highest = np.where(is_large, transformed + _QUANTILE * error, least)
    if alike > 1 and is_known.any() and (mean := float(transformed[is_known].mean())) > least:
        highest = np.maximum(highest, mean + _QUANTILE * error / math.sqrt(is_known.sum()))
    rho = np.minimum(np.tanh(highest), _LARGEST)
    return np.where(is_known & (highest > least), np.sqrt((1 + rho) / (1 - rho)) / _INFLATION, 1.0)


def survive_a_trend(series: FloatArray, limit: int, bound: float, side: int) -> BoolArray:
    """Whether no straight trend within the noise crosses the bound by the last round.

    Args:
        series: (series, rounds), at least three rounds.
        limit: largest number of rounds.
        bound: on the scale of the series.
        side: 1 if values are to lie above the bound, -1 below.
    """
    rounds, lines = series.shape[1], fit_lines(series)
    # Sum of squares of the centred round numbers; distance of the last round from their centre.
    squares, ahead = rounds * (rounds**2 - 1) / 12, limit - 1 - (rounds - 1) / 2
    end_error = lines.noise * math.sqrt(1 / rounds + ahead**2 / squares)
    end = side * (lines.means + lines.slopes * ahead - bound) - t_quantile(TREND_CONFIDENCE, rounds - 2) * end_error
    return np.asarray(end >= 0)


def survive_a_hiccup(series: FloatArray, bound: float, side: int, confidence: float) -> BoolArray:
    """Whether intervals still exclude the bound after one more round, `HICCUP_SDS` towards it."""
    hiccups = series.mean(axis=1) - side * HICCUP_SDS * series.std(axis=1)
    processes = EProcesses(np.column_stack([series, hiccups]))
    evidence = processes.log_evidence(np.full(len(series), bound))
    return np.asarray((evidence >= -math.log(1 - confidence)) & (side * (processes.centres - bound) >= 0))


def are_far(series: FloatArray, limit: int, bound: float, side: int, distance: float) -> BoolArray:
    """Whether each round is beyond the bound by a distance, and a drift followed to the last round would be, too.

    That holds whatever the interval is, which correlation may make arbitrarily wide.
    """
    is_beyond = np.all(side * (series - bound) >= distance, axis=1)
    lines, drifts = fit_lines(series), find_drifts(series)
    ends = lines.means + lines.slopes * (max(limit, series.shape[1]) - 1 - (series.shape[1] - 1) / 2)
    return np.asarray(is_beyond & (~drifts.are_seen | (side * (ends - bound) >= distance)))


def are_final(series: FloatArray, limit: int, bound: float, side: int, confidence: float) -> BoolArray:
    """Whether verdicts survive both, with the same arguments. Series without variation always do."""
    if series.shape[1] >= limit:
        return np.ones(len(series), np.bool_)
    # Rounding makes the deviation of equal values not quite zero.
    is_alike = series.std(axis=1) <= 1e-12 * np.abs(series).max(axis=1)
    goes_on = survive_a_trend(series, limit, bound, side)
    return np.asarray(is_alike | (goes_on & survive_a_hiccup(series, bound, side, confidence)))
