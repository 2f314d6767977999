"""Series of rounds: intervals that hold at every look, drift, correlation, and whether a verdict would last.

**Interval.** A confidence sequence: all means that an e-process has not ruled out. For a candidate mean m let
y = values - m. The e-process compares two explanations of y,

* the values have another mean than m: y = μ + σ·noise, independent, with μ/σ ~ Normal(0, EFFECT_SCALE²);
* m is right, and y is correlated noise: a stationary AR(1) process with mean zero and the correlation from
  CORRELATIONS that fits the data best,

each with σ integrated out under its right Haar prior 1/σ, so only ratios between the values count. This is
the scale-invariant mixture of Lai (1976), "On confidence sequences", Ann. Statist. 4(2), in the form of Wang and
Ramdas (2024), "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance",
Sequential Analysis 44(1); dividing by the best-fitting null makes it valid for every correlation of the grid:
Wasserman, Ramdas and Balakrishnan (2020), "Universal inference", PNAS 117(29). By Ville's inequality the chance that
the true mean is ever ruled out, at any of all rounds, is at most 1 - confidence. With Gaussian noise this holds for
any number of rounds; for heavier tails benchmarks/sequences.py shows it by simulation.

Correlation is allowed for because slow changes (room temperature, a neighbour's job) make successive rounds alike. The
random order of arms within a round removes only periodic effects. How much rounds correlate is estimated. If that is
more than 0.5, the interval is widened as the mean of AR(1) noise with the upper confidence limit of that estimate would
vary: eight rounds tell little about their correlation. Of many places some estimates are large by chance, so one place
alone is widened only for an estimate that is large for so many places, and all are if their mean is above 0.5.

**Whether a verdict would last.** A verdict after 8 of 32 rounds has seen a quarter of a trend, and perhaps no hiccup
yet. So before the last round a verdict must survive two things that the rounds so far cannot exclude:

* a straight trend that goes on to the last round. The least-squares line through the rounds is extrapolated with
  the one-sided Student-t confidence limit of its value there (Draper and Smith, "Applied Regression Analysis", 3rd
  ed., 1998, section 3.1).
* one more round that lies `HICCUP_SDS` standard deviations to the bad side.

At the last round both are skipped. Both can only delay a verdict, so the guarantee of the confidence sequence holds
unchanged. Their constants were chosen by simulation, for less than 10 % of wrong passes on ramps of -1 … -5 % and less
than 5 % if a few blocks take ten standard deviations longer (benchmarks/sequences.py).

Some conditions are settled once per launch (memory placement, cores, channels, other jobs), so the spread of its rounds
does not show them, however many there are. Rates on GPUs therefore have `OF_LAUNCH` in their intervals, as an
independent error: epochs of one launch of RetinaNet on eight systems with eight GPUs differ by 0.25 to 0.4 %. A ratio
of two arms, taken within rounds, does not: what slows down a launch slows down both.

Series have one row each, in the order of the rounds, (series, rounds), on the scale on which they err: logarithms if
values err by factors.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_ddpscale.plan.metric_catalogue import Scale
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, IntArray

# Lag-one correlations between rounds for which the interval is valid.
CORRELATIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
# Expected distance of a mean from a bound, in standard deviations of a round. Any value is valid; 3 decides soonest at
# the margins of benchmarks/sequences.py.
EFFECT_SCALE = 3.0
_DRIFT_CONFIDENCE = 0.98
# Factor by which AR(1) noise with the largest allowed correlation, 0.5, widens the spread of means of rounds
# compared with independent noise: sqrt((1 + ρ) / (1 - ρ)).
_INFLATION = math.sqrt(3)
# Standard errors to the upper limit of a correlation: with three, AR(1) noise of 0.9 passes wrongly in 5 %, and one in
# 15 series of eight independent rounds is widened (benchmarks/sequences.py).
_QUANTILE, _LARGEST = 3.0, 0.99
TREND_CONFIDENCE, HICCUP_SDS = 0.96, 3.0
# Relative: a tenth of the usual distance between bounds and values. No verdict depends on so small a drift, nor on
# the correlation of rounds that vary by so little.
NEGLIGIBLE_DRIFT = 0.001
OF_LAUNCH = 0.004  # half an interval of a rate's differences between launches on GPUs, relative
FAR = 2.0  # values all of which are as far from the bound need no interval
WIDEST = 1000.0  # an interval that reaches to so many times its value says nothing
PASSED, OPEN, FAILED, IMPOSSIBLE, ABSENT = 1, 0, -1, -2, -3  # codes of places


class Estimate(NamedTuple):
    """Value and interval from the rounds of one place; None if there are too few rounds for one."""

    value: float
    interval: tuple[float, float] | None


class Estimated(NamedTuple):
    """Values with their intervals of many series of rounds, one row each; NaN where there is none.

    Attributes:
        values: point estimates, (series,).
        low: lower limits; where a series drifts, the interval reaches to where that would lead, because the mean so
            far is not where it will end.
        high: upper limits.
        drifts: change from the first to the last third of the rounds, where it exceeds the noise, on the scale of the
            estimates.
        correlations: of successive rounds, which widen the interval.
        rounds: number of rounds.
        series: the values, each row's rounds first, (series, most rounds).
        scale: how they err.
        limit: largest number of rounds; 0 if no more will come.
        confidences: of the intervals, 0 … 1.
    """

    values: FloatArray
    low: FloatArray
    high: FloatArray
    drifts: FloatArray
    correlations: FloatArray
    rounds: IntArray
    series: FloatArray
    scale: Scale
    limit: int
    confidences: FloatArray

    @property
    def are_single(self) -> BoolArray:
        """Whether a series is one imported sample, whose interval comes from its error."""
        return np.asarray((self.rounds == 1) & ~np.isnan(self.low))

    @property
    def say_nothing(self) -> BoolArray:
        """Whether an interval is too wide to be told."""
        return (self.scale == "factors") & (self.high > WIDEST * self.values)

    def against(self, bound: float, side: int, least: float = -math.inf) -> tuple[IntArray, npt.NDArray[np.str_]]:
        """Codes of each series, and codes of reasons.

        Passed or failed if the whole interval is on that side of the bound and this would last, or each round is far
        beyond it; open if the bound lies inside or there are too few rounds; impossible if a value is.

        Args:
            bound: in the unit of the values.
            side: 1 if values are to lie above it, -1 below.
            least: the least value that is possible.
        """
        keeps = side * (self.values - bound) >= 0
        sides, to = np.where(keeps, side, -side), np.log if self.scale == "factors" else np.asarray
        good, bad = (self.low >= bound, self.high < bound) if side > 0 else (self.high <= bound, self.low > bound)
        will_last, are_far = self.are_single, np.zeros(len(keeps), np.bool_)
        with_interval = ~np.isnan(self.low) & ~will_last
        for count in np.unique(self.rounds[with_interval]).tolist():
            rows = np.flatnonzero(with_interval & (self.rounds == count))
            series, lines = to(self.series[rows, :count]), to(bound * FAR ** sides[rows].astype(np.float64))
            will_last[rows], are_far[rows] = is_stable(
                series, self.limit, float(to(bound)), lines, sides[rows], self.confidences[rows]
            )
        is_decided = (good | bad) & will_last
        is_far = are_far & ~is_decided & (bound > 0)
        why = np.select(
            [((self.rounds > 0) & np.isnan(self.values)) | (self.series < least).any(axis=1),
             (self.rounds < FEWEST_ROUNDS) & ~self.are_single, np.isnan(self.low), is_far, is_decided & keeps,
             is_decided, self.say_nothing, good | bad],
            ["impossible", "few", "unsure", "far", "kept", "missed", "varied", "early"], "inside",
        )  # fmt: skip
        code = np.where(np.isin(why, ("far", "kept", "missed")), np.where(keeps, PASSED, FAILED), OPEN)
        return np.where(why == "impossible", IMPOSSIBLE, code), why

    def why(self, row: int, code: str) -> Reason:
        """The reason of a code of `against`."""
        rounds = int(self.rounds[row])
        last = {"impossible": str(self.series[row, :rounds].tolist()), "unsure": float(self.confidences[row])}
        return because(code, rounds, last.get(code, self.limit if code == "early" else 0))

    def note(self, row: int) -> Reason:
        """For the reader: that a series with an interval drifts, or is a single sample."""
        if self.are_single[row]:
            return because("single-sample" if self.high[row] > self.low[row] else "single-value")
        change = float(self.drifts[row])
        is_factor = self.scale == "factors"
        shown = round(math.expm1(change), 3) if is_factor else float(f"{change:.3g}")  # as it is said
        return because("drift", shown, is_factor, int(self.rounds[row]))

    def estimate_at(self, row: int, possible: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
        """One of the series, its interval clipped to possible values and the value, which noise may put beyond."""
        value, low, high = (float(column[row]) for column in (self.values, self.low, self.high))
        inside = min(max(low, possible[0]), value), max(min(high, possible[1]), value)
        return Estimate(value, None if math.isnan(low) else inside)


def estimate(
    samples: FloatArray, scale: Scale, confidence: FloatArray | float, limit: int = 0,
    errors: FloatArray | float = math.nan, alike: int | None = None, launch_sd: FloatArray | float = 0.0,
) -> Estimated:  # fmt: skip
    """Values and intervals of many series, with fields of `Estimated` as arguments.

    Args:
        samples: in the order of the rounds, NaN where there is none, (series, rounds). A series with an impossible
            value has the value NaN, and one with fewer than `FEWEST_ROUNDS` its mean without an interval.
        scale: how they err.
        confidence: of all intervals or of each, (series,), valid for all rounds together, 0 … 1.
        limit: largest number of rounds; 0 if no more will come.
        errors: relative standard error of a series that may be a single imported sample, NaN for our own rounds,
            (series,).
        alike: number of series that one verdict rests on: all by default, 1 if each has a verdict of its own.
        launch_sd: half of the interval that differences between launches have by themselves, on the scale of the
            estimates, of all or of each, (series,).
    """
    series, missing, by_factors = samples, np.isnan(samples), scale == "factors"
    if missing.any():
        series = np.take_along_axis(series, np.argsort(missing, axis=1, kind="stable"), axis=1)
    rounds: IntArray = (~missing).sum(axis=1)
    are_possible = ~(np.isinf(series) | (by_factors & (series <= 0))).any(axis=1)
    columns, back = np.full((5, len(series)), np.nan), np.exp if by_factors else np.asarray
    confidences, spread = np.full(len(series), confidence), np.broadcast_to(launch_sd, len(series))
    for count in np.unique(rounds[are_possible & (rounds > 0)]).tolist():
        rows = np.flatnonzero(are_possible & (rounds == count))
        values = series[rows, :count]
        if count < FEWEST_ROUNDS:
            columns[0, rows] = values.mean(axis=1)
            continue
        logs = np.log(values) if by_factors else values
        negligible = NEGLIGIBLE_DRIFT * (np.ones(len(values)) if by_factors else np.abs(values).max(axis=1))
        rho = lag_one_correlations(logs)
        factors = np.where(fit_lines(logs)[2] > negligible, widening(rho, count, alike or len(rows)), 1.0)
        centres, low, high = intervals(logs, confidences[rows])
        drifts, gone_on = find_drifts(logs, negligible)
        gone_on = np.where(np.isnan(drifts), centres, gone_on)
        low = np.minimum(centres + factors * (low - centres), gone_on)
        high = np.maximum(centres + factors * (high - centres), gone_on)
        if spread.any():
            low = centres - np.hypot(centres - low, spread[rows])
            high = centres + np.hypot(high - centres, spread[rows])
        columns[:, rows] = back(centres), back(low), back(high), drifts, rho
    values, low, high, drifts, rho = columns
    # One long sample errs on the scale of logarithms.
    reach = np.where(rounds == 1, errors, np.nan)
    single = np.flatnonzero(~np.isnan(reach))
    reach[single] *= [NormalDist().inv_cdf(0.5 + one / 2) for one in confidences[single].tolist()]
    reach = np.exp(reach)
    low, high = np.fmin(low, values / reach), np.fmax(high, values * reach)
    return Estimated(values, low, high, drifts, rho, rounds, series, scale, limit, confidences)


def estimate_of(values: npt.ArrayLike, scale: Scale, confidence: float) -> Estimate:
    """`estimate` of one series, in the order of the rounds."""
    return estimate(np.array([values]), scale, confidence).estimate_at(0)


def intervals(series: FloatArray, confidences: FloatArray | float) -> FloatArray:
    """Means, and the smallest and largest mean that is not ruled out, (3, series); NaN if there are too few rounds.

    The likelihood of each explanation is a sum of squares, a parabola in s = m - mean of the values, to the power of
    -rounds/2: squares - 2·s·products + s²·weights ≥ 0. Of a correlation it is taken after a filter that whitens AR(1)
    noise, over the filter's determinant to the power of 2/rounds. The means that one correlation does not rule out lie
    between the two zeros of a parabola: that of the correlation less so many times that of another mean as the evidence
    needs.
    """
    # The mean of equals is exact; sums of squares of nearly equal values would lose precision.
    centres, rounds, right = series[:, 0] + (series - series[:, :1]).mean(axis=1), series.shape[1], []
    residuals = series - centres[:, np.newaxis]
    for correlation in CORRELATIONS:
        first, filtered = math.sqrt(1 - correlation**2), residuals.copy()
        filtered[:, 1:] -= correlation * residuals[:, :-1]
        filtered[:, 0] *= first
        ones = np.array([first, *[1 - correlation] * (rounds - 1)])
        # Not `@`, which adds in another order for other series beside it.
        sums = (filtered**2).sum(axis=1), (filtered * ones).sum(axis=1), np.full(len(residuals), (ones**2).sum())
        right.append(first ** (-2 / rounds) * np.stack(sums))
    spread, squares = 1 + EFFECT_SCALE**2 * rounds, (residuals**2).sum(axis=1)
    other = np.stack([squares, np.zeros_like(squares), np.full(len(squares), rounds / spread)])
    needed = np.exp(2 / rounds * (0.5 * math.log(spread) - np.log(1 - confidences)))
    a, b, c = np.moveaxis(np.stack(right) - needed * other, 1, 0)
    with np.errstate(invalid="ignore"):  # a correlation without zeros rules out all means
        reach = np.sqrt(b**2 - a * c)
    # The mean of the values, s = 0, is never ruled out.
    low, high = np.fmin.reduce((b - reach) / c, initial=0.0), np.fmax.reduce((b + reach) / c, initial=0.0)
    is_told = (c > 0).all(axis=0)  # else the farthest means are not ruled out
    return np.stack([centres, np.where(is_told, centres + low, np.nan), np.where(is_told, centres + high, np.nan)])


def fit_lines(series: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Least-squares lines, at least three rounds: means in the middle of the rounds, slopes per round, deviation of the
    residuals, (series,) each, and the residuals, (series, rounds)."""
    rounds = series.shape[1]
    numbers, means = np.arange(rounds) - (rounds - 1) / 2, series.mean(axis=1)
    about_mean = series - means[:, np.newaxis]
    slopes = about_mean @ numbers / (numbers @ numbers)
    residuals = about_mean - slopes[:, np.newaxis] * numbers
    return means, slopes, np.sqrt((residuals**2).sum(axis=1) / (rounds - 2)), residuals


def find_drifts(series: FloatArray, negligible: FloatArray | float = 0.0) -> tuple[FloatArray, FloatArray]:
    """Changes from the first to the last third of the rounds, NaN where none is seen, and where they would lead if they
    went on for as long again, (series,) each.

    The noise is the residual of a straight line through all rounds. The t statistic of the change is compared with
    Student's distribution at 2 % false alarms, widened for correlated noise. Smaller changes than `negligible`, of all
    or of each series, are ignored, however little noise there is. There must be five rounds: one at either end and
    three between them, because a straight line through fewer leaves too little noise to compare with.
    """
    rounds = series.shape[1]
    third = rounds // 3
    first, last = series[:, :third].mean(axis=1), series[:, -third:].mean(axis=1)
    quantile = t_quantile(0.5 + _DRIFT_CONFIDENCE / 2, rounds - 2)
    limit = quantile * _INFLATION * fit_lines(series)[2] * math.sqrt(2 / third)
    # Rounding makes the differences of equal values not quite zero.
    least = np.maximum(np.maximum(limit, negligible), 1e-9 * np.abs(series).max(axis=1))
    return np.where(np.abs(last - first) > least, last - first, np.nan), 2 * last - first


def lag_one_correlations(series: FloatArray) -> FloatArray:
    """Estimates from residuals of a straight line, -0.99 … 0.99, (series,), of (series, rounds) with at least 4 rounds.

    A drift does not count. NaN for a series of equal values, and for a straight line.

    Residuals about a line correlate by about (2 + 4ρ) / n less than the noise does: Tanaka (1984), "An asymptotic
    expansion associated with the maximum likelihood estimators in ARMA models", J. R. Statist. Soc. B 46; after
    Marriott and Pope (1954), "Bias in the estimation of autocorrelations", Biometrika 41, for those about a mean. That
    bias is added back, with the estimate in place of ρ.
    """
    rounds, residuals = series.shape[1], fit_lines(series)[3]
    squares = (residuals**2).sum(axis=1)
    # Rounding makes the residuals of a straight line not quite zero.
    is_known = np.sqrt(squares / rounds) > 1e-12 * np.abs(series).max(axis=1)
    products = (residuals[:, 1:] * residuals[:, :-1]).sum(axis=1)
    raw = np.where(is_known, products / np.where(is_known, squares, 1.0), np.nan)
    return np.asarray(np.clip(raw + (2 + 4 * raw) / rounds, -_LARGEST, _LARGEST))


def widening(correlations: FloatArray, rounds: int, alike: int = 1) -> FloatArray:
    """Factors, at least 1, by which intervals of means widen because rounds may correlate by more than 0.5, (series,).

    A mean of AR(1) noise varies sqrt((1 + ρ) / (1 - ρ)) times as much as one of independent noise. The factor is that
    at the upper limit of a correlation over that at the largest of `CORRELATIONS`, for which the interval holds anyway.
    Limits come from Fisher's z transformation (1921), standard error 1 / sqrt(rounds - 3).

    Args:
        correlations: estimates, NaN for series of equal values, which are not widened, (series,).
        rounds: number of rounds, at least 4.
        alike: number of series that one verdict rests on. If more than one, all of them are given.
    """
    is_known, least = ~np.isnan(correlations), math.atanh(max(CORRELATIONS))
    transformed, error = np.arctanh(np.where(is_known, correlations, 0.0)), 1 / math.sqrt(rounds - 3)
    is_large = is_known & (transformed > least + NormalDist().inv_cdf(1 - 0.5 / alike) * error)
    highest = np.where(is_large, transformed + _QUANTILE * error, least)
    if alike > 1 and is_known.any() and (mean := float(transformed[is_known].mean())) > least:
        highest = np.maximum(highest, mean + _QUANTILE * error / math.sqrt(is_known.sum()))
    rho = np.minimum(np.tanh(highest), _LARGEST)
    return np.where(is_known & (highest > least), np.sqrt((1 + rho) / (1 - rho)) / _INFLATION, 1.0)


def is_stable(
    series: FloatArray, limit: int, bound: float, lines: FloatArray, side: IntArray, confidences: FloatArray
) -> tuple[BoolArray, BoolArray]:  # fmt: skip
    """Whether verdicts would survive a trend within the noise to the last round, and one odd round.

    Series without variation always do. And whether each round lies beyond a line, and so would a drift that went on to
    the last round: that holds whatever the interval is, which correlation may make arbitrarily wide. (series,) each.

    Args:
        series: (series, rounds), at least three rounds.
        limit: largest number of rounds.
        bound: on the scale of the series.
        lines: as far from the bound as needs no interval, (series,).
        side: 1 if values lie above the bound, -1 below, (series,).
        confidences: of the interval that excludes the bound, also after one more round, (series,).
    """
    rounds, (means, slopes, noise, _) = series.shape[1], fit_lines(series)
    # Sum of squares of the centred round numbers; distance of the last round from their centre.
    squares, ahead = rounds * (rounds**2 - 1) / 12, max(limit, rounds) - 1 - (rounds - 1) / 2
    ends, is_near = means + slopes * ahead, (side[:, np.newaxis] * (series - lines[:, np.newaxis]) < 0).any(axis=1)
    are_far = ~is_near & (np.isnan(find_drifts(series)[0]) | (side * (ends - lines) >= 0))
    if rounds >= limit:
        return np.ones(len(series), np.bool_), are_far
    error = noise * math.sqrt(1 / rounds + ahead**2 / squares)
    goes_on = side * (ends - bound) >= t_quantile(TREND_CONFIDENCE, rounds - 2) * error
    longer = np.column_stack([series, means - side * HICCUP_SDS * series.std(axis=1)])
    _, low, high = intervals(longer, confidences)
    # Rounding makes the deviation of equal values not quite zero.
    is_alike = series.std(axis=1) <= 1e-12 * np.abs(series).max(axis=1)
    return is_alike | (goes_on & np.where(side > 0, low >= bound, high <= bound)), are_far


@cache
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution, for probabilities from 0.5 up and at least one degree of freedom.

    By bisection; the distribution function is Abramowitz & Stegun 26.7.3 and 26.7.4.
    """

    def central(t: float) -> float:
        """P(-t ≤ T ≤ t)."""
        theta, odd = math.atan(t / math.sqrt(degrees)), degrees % 2
        total, term = 0.0, math.cos(theta) if odd else 1.0
        for k in range(1, (degrees - odd) // 2 + 1):
            total += term
            term *= math.cos(theta) ** 2 * (2 * k - 1 + odd) / (2 * k + odd)
        return 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total

    low, high = 0.0, 1e9
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 + central(middle) / 2 < probability else (low, middle)
    return (low + high) / 2
