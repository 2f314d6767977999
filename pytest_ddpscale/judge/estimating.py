"""From values of rounds to estimates: a value with its interval for each place, and why it may not decide yet.

Some conditions are settled once per launch (memory placement, cores, channels, other jobs), so the spread of its rounds
does not show them, however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_ddpscale.judge.intervals import single_sample_estimate
from pytest_ddpscale.judge.sequential import BoolArray, EProcesses, FloatArray
from pytest_ddpscale.judge.steadiness import (
    are_far,
    are_final,
    find_drifts,
    fit_lines,
    lag_one_correlations,
    widening,
)
from pytest_ddpscale.plan.metric_catalogue import Scale
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.column_record import IntArray
from pytest_ddpscale.util.digits import percent

SINGLE_SAMPLE_NOTE = (
    "one imported sample: the interval comes from the standard deviation of its steps, taken as independent"
)
SINGLE_VALUE_NOTE = "one imported value: it has no interval of its own"
# Relative: a tenth of the usual distance between bounds and values. No verdict depends on so small a drift, nor on
# the correlation of rounds that vary by so little.
NEGLIGIBLE_DRIFT = 0.001
# Values all of which are as far from the bound need no interval.
FAR = 2.0


class Found(NamedTuple):
    """Value and interval from the rounds of a place.

    Attributes:
        value: point estimate.
        interval: lower and upper limit; None if there are too few rounds for one.
        note: note for the reader; may be empty.
        too_few: why there is no interval; empty if there is one.
        correlation: of successive rounds; None if unknown.
        series: from which further rounds may depart, the only row; None without an interval from rounds.
    """

    value: float
    interval: tuple[float, float] | None
    note: str = ""
    too_few: str = ""
    correlation: float | None = None
    series: Estimated | None = None


@dataclass(frozen=True, eq=False)
class Estimated:
    """Values with their intervals of many series of rounds, one row each; NaN where there is none.

    Attributes:
        values: point estimates, (series,).
        low: lower limits; where a series drifts, the interval reaches to where that would lead, because the mean so
            far is not where it will end.
        high: upper limits.
        drifts: change from the first to the last third of the rounds, where it exceeds the noise, on the scale of the
            estimates.
        correlations: of successive rounds, which widen the interval.
        errors: relative error of a series that is one imported sample.
        rounds: number of rounds.
        series: the values, each row's rounds first, (series, most rounds).
        scale: how they err.
        limit: largest number of rounds; 0 if no more will come.
        confidence: of the intervals, 0 … 1.
    """

    values: FloatArray
    low: FloatArray
    high: FloatArray
    drifts: FloatArray
    correlations: FloatArray
    errors: FloatArray
    rounds: IntArray
    series: FloatArray
    scale: Scale
    limit: int
    confidence: float

    def leave(self, bound: float, side: int) -> BoolArray:
        """Whether values of each series with an interval would stay above the bound (side 1) or below (-1).

        As `are_final` says; False for the others.
        """
        on_scale = math.log(bound) if self.scale == "factors" else bound
        return self._of_series(lambda series: are_final(series, self.limit, on_scale, side, self.confidence))

    def are_far(self, bound: float, side: int) -> BoolArray:
        """Whether no round of each series comes within a factor of `FAR` of the bound, nor would if it drifted on."""
        if bound <= 0:
            return np.zeros(len(self.values), np.bool_)
        if self.scale == "factors":
            return self._of_series(lambda series: are_far(series, self.limit, math.log(bound), side, math.log(FAR)))
        distance = bound * (FAR - 1) if side > 0 else bound * (1 - 1 / FAR)
        return self._of_series(lambda series: are_far(series, self.limit, bound, side, distance))

    def _of_series(self, rule: Callable[[FloatArray], BoolArray]) -> BoolArray:
        """What a rule says of each series with an interval, on the scale of the estimates; False of the others."""
        found = np.zeros(len(self.values), np.bool_)
        with_interval = ~np.isnan(self.low) & (self.rounds >= FEWEST_ROUNDS)
        for count in np.unique(self.rounds[with_interval]).tolist():
            rows = np.flatnonzero(with_interval & (self.rounds == count))
            series = self.series[rows, :count]
            found[rows] = rule(np.log(series) if self.scale == "factors" else series)
        return found

    def found(self, row: int) -> Found:
        """One of the series."""
        value, low, high = float(self.values[row]), float(self.low[row]), float(self.high[row])
        rounds, error = int(self.rounds[row]), float(self.errors[row])
        if rounds == 1 and not math.isnan(error):
            return Found(value, (low, high), SINGLE_SAMPLE_NOTE if error > 0 else SINGLE_VALUE_NOTE)
        if math.isnan(value):
            return Found(value, None, too_few=f"an impossible value was measured: {self.series[row, :rounds].tolist()}")
        if rounds < FEWEST_ROUNDS:
            return Found(value, None, too_few=f"{rounds} rounds; expected at least {FEWEST_ROUNDS}")
        if math.isnan(low):
            return Found(value, None, too_few=f"{rounds} rounds are too few for a confidence of {self.confidence:g}")
        change, correlation, note = float(self.drifts[row]), float(self.correlations[row]), ""
        if not math.isnan(change):
            text = percent(math.expm1(change), 1, signed=True) if self.scale == "factors" else f"{change:+.3g}"
            note = f"not steady: {text} from the first to the last third of {rounds} rounds"
            note += "; judged as if this continued"
        names = (one.name for one in fields(self) if one.name not in ("scale", "limit", "confidence"))
        only = replace(self, **{name: getattr(self, name)[row : row + 1] for name in names})
        known = None if math.isnan(correlation) else correlation
        return Found(value, (low, high), note, correlation=known, series=only)


def estimate(
    samples: FloatArray, scale: Scale, confidence: float, limit: int = 0, errors: FloatArray | None = None,
    alike: int | None = None,
) -> Estimated:  # fmt: skip
    """Values and intervals of many series, with fields of `Estimated` as arguments.

    Args:
        samples: in the order of the rounds, NaN where there is none, (series, rounds). A series with an impossible
            value has the value NaN, and one with fewer than `FEWEST_ROUNDS` its mean without an interval.
        scale: how they err.
        confidence: of the interval, valid for all rounds together, 0 … 1.
        limit: largest number of rounds; 0 if no more will come.
        errors: relative standard error of a series that may be a single imported sample, NaN for our own rounds,
            (series,).
        alike: number of series that one verdict rests on: all by default, 1 if each has a verdict of its own.
    """
    series, missing, by_factors = samples, np.isnan(samples), scale == "factors"
    rounds: IntArray = (~missing).sum(axis=1)
    if missing.any():
        series = np.take_along_axis(series, np.argsort(missing, axis=1, kind="stable"), axis=1)
    are_possible = ~(np.isinf(series) | (by_factors & (series <= 0))).any(axis=1)
    found = {name: np.full(len(series), np.nan) for name in ("values", "low", "high", "drifts", "correlations")}
    errors = np.full(len(series), np.nan) if errors is None else errors
    for count in np.unique(rounds[are_possible & (rounds > 0)]).tolist():
        rows = np.flatnonzero(are_possible & (rounds == count))
        if count < FEWEST_ROUNDS:
            found["values"][rows] = series[rows, :count].mean(axis=1)
            continue
        of_rows = _with_interval(series[rows, :count], alike or len(rows), by_factors=by_factors, confidence=confidence)
        for name, of_name in of_rows.items():
            found[name][rows] = of_name
    for row in np.flatnonzero(are_possible & (rounds == 1) & ~np.isnan(errors)).tolist():
        single = single_sample_estimate(float(found["values"][row]), float(errors[row]), confidence)
        found["low"][row], found["high"][row] = single.interval
    return Estimated(
        **found, errors=errors, rounds=rounds, series=series, scale=scale, limit=limit, confidence=confidence,
    )  # fmt: skip


def _with_interval(values: FloatArray, alike: int, *, by_factors: bool, confidence: float) -> dict[str, FloatArray]:
    """Fields of `Estimated` for series with equally many rounds, so many of which one verdict rests on."""
    series = np.log(values) if by_factors else values
    processes, correlations = EProcesses(series), lag_one_correlations(series)
    negligible = NEGLIGIBLE_DRIFT * (np.ones(len(values)) if by_factors else np.abs(values).max(axis=1))
    factors = np.where(fit_lines(series).noise > negligible, widening(correlations, series.shape[1], alike), 1.0)
    centres = processes.centres
    low, high = (centres + factors * (limit - centres) for limit in processes.intervals(confidence).T)
    drifts = find_drifts(series, negligible)
    low = np.where(drifts.are_seen, np.minimum(low, drifts.gone_on), low)
    high = np.where(drifts.are_seen, np.maximum(high, drifts.gone_on), high)
    back = np.exp if by_factors else np.asarray
    return {
        "values": back(centres), "low": back(low), "high": back(high),
        "drifts": np.where(drifts.are_seen, drifts.changes, np.nan), "correlations": correlations,
    }  # fmt: skip


def estimate_of(
    values: npt.ArrayLike, scale: Scale, confidence: float, limit: int = 0, error: float = math.nan
) -> Found:
    """`estimate` of one series, in the order of the rounds."""
    return estimate(np.array([values]), scale, confidence, limit, np.array([error])).found(0)


def why_not_decided(found: Found, bound: float, side: int) -> str:
    """The reason if further rounds may still change the result; else empty.

    The interval excludes the bound: with side 1 it lies above, with -1 below.
    """
    series = found.series
    if series is None or series.leave(bound, side).all():
        return ""
    return (
        f"not final after {series.rounds[0]} of {series.limit} rounds: a trend within the noise or one odd round "
        f"may still cross the bound"
    )
