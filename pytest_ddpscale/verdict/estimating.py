"""From a requirement's per-round values to a value with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from pytest_ddpscale.metrics.per_place import Alike, PerPlace
from pytest_ddpscale.plan.metric import Scale
from pytest_ddpscale.plan.per_round import PerRound, Sample
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.stats.correlation import are_beyond_the_method, lag_one_correlations
from pytest_ddpscale.stats.intervals import Estimate, single_sample_estimate
from pytest_ddpscale.stats.outlook import are_final
from pytest_ddpscale.stats.sequential import BoolArray, EProcess, EProcesses, FloatArray
from pytest_ddpscale.stats.steadiness import RoundDrift, find_drift, find_drifts, fit_lines
from pytest_ddpscale.thresholds.model import Requirement

SINGLE_SAMPLE_NOTE = (
    "one imported sample: the interval comes from the standard deviation of its steps, taken as independent"
)
SINGLE_VALUE_NOTE = "one imported value: it has no interval of its own"
# Relative: a tenth of the usual distance between bounds and values. No verdict depends on so small a drift, nor on
# the correlation of rounds that vary by so little.
NEGLIGIBLE_DRIFT = 0.001
# With fewer series numpy is slower than Python.
_WORTH_AN_ARRAY = 8
P = TypeVar("P", bound=Hashable)


class Outlook(NamedTuple):
    """Data to tell whether the remaining rounds may change a verdict.

    Attributes:
        series: of places, (series, rounds); logarithms if values are factors.
        scale: how the values err.
        limit: largest number of rounds; 0 if no more will come.
        confidence: of the interval, 0 … 1.
    """

    series: FloatArray
    scale: Scale
    limit: int
    confidence: float

    def leave(self, bound: float, side: int) -> BoolArray:
        """Whether values of each place would stay above the bound (side 1) or below (-1): `are_final`."""
        on_scale, size = (math.log(bound), 1.0) if self.scale == "factors" else (bound, abs(bound))
        return are_final(self.series, self.limit, on_scale, side, self.confidence, size)


class Found(NamedTuple):
    """Value and interval from the rounds of a place.

    Attributes:
        value: point estimate.
        estimate: with its interval; None if there are too few rounds for one.
        note: note for the reader; may be empty.
        too_few: why there is no interval; empty if there is one.
        launch_sd: relative standard deviation between launches; None with one launch.
        launch_values: value of each launch; empty with one.
        correlation: of successive rounds; None if unknown.
        exceeds: whether they certainly correlate by more than the interval allows for.
        outlook: possible effect of further rounds; None without an interval from rounds.
    """

    value: float
    estimate: Estimate | None
    note: str = ""
    too_few: str = ""
    launch_sd: float | None = None
    launch_values: tuple[float, ...] = ()
    correlation: float | None = None
    exceeds: bool = False
    outlook: Outlook | None = None


def estimate_of(samples: Sequence[Sample], scale: Scale, confidence: float, limit: int = 0) -> Found:
    """Value and interval.

    Args:
        samples: at least one, in the order of the rounds; for ``factors`` positive.
        scale: how they err.
        confidence: of the interval, valid for all rounds together, 0 … 1.
        limit: largest number of rounds; 0 if no more will come.
    """
    values = [sample.value for sample in samples]
    error = samples[0].relative_error
    if len(samples) == 1 and error is not None:
        note = SINGLE_SAMPLE_NOTE if error > 0 else SINGLE_VALUE_NOTE
        return Found(values[0], single_sample_estimate(values[0], error, confidence), note)
    if len(values) < FEWEST_ROUNDS:
        reason = f"{len(values)} rounds; expected at least {FEWEST_ROUNDS}"
        return Found(statistics.fmean(values), None, too_few=reason)
    return _of_rounds(values, scale, confidence, limit)


@dataclass(frozen=True, eq=False)
class _Series(Generic[P]):
    """Results of series with equally many rounds at one confidence, on their scale; NaN where there is no limit."""

    row: dict[P, int]
    rounds: int
    least: FloatArray  # of each series
    centre: FloatArray
    low: FloatArray
    high: FloatArray
    drifts: list[RoundDrift | None]
    values: FloatArray  # on the scale of the estimates, (series, rounds)
    correlations: FloatArray
    exceed: BoolArray


class Clear(NamedTuple):
    """Summary of a place that passes and needs no full verdict.

    Attributes:
        value: point estimate.
        margin: `pytest_ddpscale.results.verdicts.Verdict.margin`.
        rounds: number of rounds.
        notes: notes that the verdict would have.
    """

    value: float
    margin: float
    rounds: int
    notes: tuple[str, ...] = ()


class Estimates(Generic[P]):
    """Value and interval of each of many places, computed for all of them on first access.

    Args:
        samples: by place.
        scale: how they err.
        limit: largest number of rounds; 0 if no more will come.
    """

    def __init__(self, samples: Mapping[P, PerRound], scale: Scale, limit: int = 0) -> None:
        self.samples, self._limit = samples, limit
        self._scale: Scale = scale
        self._found: dict[float, list[_Series[P]]] = {}

    def at(self, place: P, confidence: float) -> Found:
        """`estimate_of` for that place."""
        for series in self._series(confidence):
            row = series.row.get(place)
            if row is not None:
                low, high = float(series.low[row]), float(series.high[row])
                interval = None if math.isnan(low) else (low, high)
                centre, drift = float(series.centre[row]), series.drifts[row]
                outlook = Outlook(series.values[[row]], self._scale, self._limit, confidence)
                alike = _Alikeness(float(series.correlations[row]), bool(series.exceed[row]))
                return _found(centre, interval, drift, outlook, alike)
        return estimate_of(list(self.samples[place]), self._scale, confidence, self._limit)

    def clear_passes(
        self, requirement: Requirement, credible: tuple[float, float], fewest_rounds: int, confidence: float
    ) -> dict[P, Clear]:
        """Places that pass in `against_bound`, with possible, credible, steady and complete values, and finally.

        Args:
            requirement: with the bound.
            credible: smallest and largest credible value.
            fewest_rounds: number of rounds that are due.
            confidence: of the intervals, 0 … 1.
        """
        definition, bound, found = requirement.definition, requirement.bound, dict[P, Clear]()
        back = np.exp if self._scale == "factors" else np.asarray
        for series in self._series(confidence):
            if series.rounds < fewest_rounds:
                continue
            value = back(series.centre)
            is_clear = back(series.high) <= bound if definition.upper_bound else back(series.low) >= bound
            is_clear &= (credible[0] <= value) & (value <= credible[1])
            is_clear &= np.array([drift is None for drift in series.drifts], np.bool_) & ~series.exceed
            side = -1 if definition.upper_bound else 1
            outlook = Outlook(series.values, self._scale, self._limit, confidence)
            is_clear &= outlook.leave(bound, side)
            if definition.scale == "differences" and definition.baseline is None:
                is_clear &= series.least >= 0
            margin = (bound - value if definition.upper_bound else value - bound) / bound
            of_each = zip(series.row, is_clear.tolist(), value.tolist(), margin.tolist(), strict=True)
            found |= {place: Clear(one, of_one, series.rounds) for place, is_one, one, of_one in of_each if is_one}
        return found

    def _series(self, confidence: float) -> list[_Series[P]]:
        """Results of places with an ordinary series of rounds; one array for each length."""
        if confidence not in self._found:
            alike = self.samples.by_rounds if isinstance(self.samples, PerPlace) else []
            many = [one for one in alike if len(one.places) >= _WORTH_AN_ARRAY and one.values.shape[1] >= FEWEST_ROUNDS]
            self._found[confidence] = [_of_series(one, self._scale, confidence) for one in many]
        return self._found[confidence]


def _of_series(alike: Alike[P], scale: Scale, confidence: float) -> _Series[P]:
    """`_of_rounds` of each place; places with impossible values are left out and judged one by one."""
    values, by_factors = alike.values, scale == "factors"
    usual: BoolArray = np.asarray(np.isfinite(values).all(axis=1))
    if by_factors:
        usual &= (values > 0).all(axis=1)
    values = values[usual]
    places = [place for place, is_usual in zip(alike.places, usual.tolist(), strict=True) if is_usual]
    series, largest = np.log(values) if by_factors else values, np.abs(values).max(axis=1, initial=0.0)
    processes = EProcesses(series)
    drifts = find_drifts(series, NEGLIGIBLE_DRIFT * (np.ones(len(values)) if by_factors else largest))
    low, high = processes.intervals(confidence).T
    rows = {place: row for row, place in enumerate(places)}
    least, correlations = values.min(axis=1, initial=np.inf), lag_one_correlations(series)
    exceed = _exceed(series, correlations, np.ones(len(values)) if by_factors else largest)
    centres, rounds = processes.centres, values.shape[1]
    return _Series(rows, rounds, least, centres, low, high, drifts, series, correlations, exceed)


def _exceed(series: FloatArray, correlations: FloatArray, sizes: FloatArray) -> BoolArray:
    """Whether series certainly correlate by more than the interval allows for, and vary enough for that to matter."""
    is_told = fit_lines(series).noise > NEGLIGIBLE_DRIFT * sizes
    return np.asarray(is_told & are_beyond_the_method(correlations, series.shape[1]))


def _of_rounds(values: Sequence[float], scale: Scale, confidence: float, limit: int) -> Found:
    by_factors = scale == "factors"
    series = [math.log(value) for value in values] if by_factors else values
    process = EProcess(series)
    interval = process.interval(confidence)
    size = 1.0 if by_factors else max(map(abs, values))
    drift = find_drift(series, NEGLIGIBLE_DRIFT * size)
    row = np.array([series])
    correlations = lag_one_correlations(row)
    alike = _Alikeness(float(correlations[0]), bool(_exceed(row, correlations, np.array([size]))[0]))
    return _found(process.centre, interval, drift, Outlook(row, scale, limit, confidence), alike)


class _Alikeness(NamedTuple):
    """Correlation of successive rounds, NaN if unknown, and whether it certainly is too large."""

    correlation: float
    exceeds: bool


def _found(
    centre: float,
    interval: tuple[float, float] | None,
    drift: RoundDrift | None,
    outlook: Outlook,
    alike: _Alikeness,
) -> Found:
    by_factors, rounds = outlook.scale == "factors", outlook.series.shape[1]
    back = math.exp if by_factors else float
    value = back(centre)
    if interval is None:
        return Found(value, None, too_few=f"{rounds} rounds are too few for a confidence of {outlook.confidence:g}")
    low, high = _widened(interval, drift)
    note = _drift_note(drift, by_factors, rounds) if drift else ""
    correlation = None if math.isnan(alike.correlation) else alike.correlation
    estimate = Estimate(value, (back(low), back(high)))
    return Found(value, estimate, note, correlation=correlation, exceeds=alike.exceeds, outlook=outlook)


def _widened(interval: tuple[float, float], drift: RoundDrift | None) -> tuple[float, float]:
    """The interval extended to where a drift would lead, because the mean so far is not where it will end."""
    if drift is None:
        return interval
    return min(interval[0], drift.gone_on), max(interval[1], drift.gone_on)


def _drift_note(drift: RoundDrift, by_factors: bool, rounds: int) -> str:
    change = f"{math.expm1(drift.change):+.1%}" if by_factors else f"{drift.change:+.3g}"
    return f"not steady: {change} from the first to the last third of {rounds} rounds; judged as if this continued"
