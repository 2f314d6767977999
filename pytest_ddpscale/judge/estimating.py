"""From a requirement's per-round values to a value with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from pytest_ddpscale.judge.correlation import are_beyond_the_method, lag_one_correlations
from pytest_ddpscale.judge.intervals import Estimate, single_sample_estimate
from pytest_ddpscale.judge.outlook import are_final
from pytest_ddpscale.judge.per_place import Alike, PerPlace
from pytest_ddpscale.judge.sequential import BoolArray, EProcesses, FloatArray
from pytest_ddpscale.judge.steadiness import Drifts, find_drifts, fit_lines
from pytest_ddpscale.plan.metric import Scale
from pytest_ddpscale.plan.per_round import PerRound, Sample
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.thresholds.model import Requirement

SINGLE_SAMPLE_NOTE = (
    "one imported sample: the interval comes from the standard deviation of its steps, taken as independent"
)
SINGLE_VALUE_NOTE = "one imported value: it has no interval of its own"
# Relative: a tenth of the usual distance between bounds and values. No verdict depends on so small a drift, nor on
# the correlation of rounds that vary by so little.
NEGLIGIBLE_DRIFT = 0.001
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

    def of(self, row: int) -> Outlook:
        """That of one of the series."""
        return self._replace(series=self.series[[row]])

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


@dataclass(frozen=True, eq=False)
class Estimated:
    """Values with their intervals of series of rounds, one row each.

    Attributes:
        values: point estimates, (series,).
        low: lower limits; where a series drifts, the interval reaches to where that would lead, because the mean so
            far is not where it will end. NaN if there are too few rounds for an interval.
        high: upper limits.
        drifts: on the scale of the estimates.
        correlations: of successive rounds; NaN if unknown.
        exceed: whether rounds certainly correlate by more than the interval allows for, and vary enough for that to
            matter.
        outlook: possible effect of further rounds.
    """

    values: FloatArray
    low: FloatArray
    high: FloatArray
    drifts: Drifts
    correlations: FloatArray
    exceed: BoolArray
    outlook: Outlook

    def found(self, row: int) -> Found:
        """One of the series."""
        outlook = self.outlook.of(row)
        value, low, high = float(self.values[row]), float(self.low[row]), float(self.high[row])
        if math.isnan(low):
            rounds = outlook.series.shape[1]
            return Found(value, None, too_few=f"{rounds} rounds are too few for a confidence of {outlook.confidence:g}")
        correlation = float(self.correlations[row])
        return Found(
            value, Estimate(value, (low, high)), self._drift_note(row),
            correlation=None if math.isnan(correlation) else correlation, exceeds=bool(self.exceed[row]),
            outlook=outlook,
        )  # fmt: skip

    def _drift_note(self, row: int) -> str:
        if not self.drifts.are_seen[row]:
            return ""
        change, rounds = float(self.drifts.changes[row]), self.outlook.series.shape[1]
        text = f"{math.expm1(change):+.1%}" if self.outlook.scale == "factors" else f"{change:+.3g}"
        return f"not steady: {text} from the first to the last third of {rounds} rounds; judged as if this continued"


def estimate(values: FloatArray, scale: Scale, confidence: float, limit: int = 0) -> Estimated:
    """Values and intervals of many series.

    Args:
        values: in the order of the rounds, at least `FEWEST_ROUNDS` of them, (series, rounds).
        scale: how they err.
        confidence: of the interval, valid for all rounds together, 0 … 1.
        limit: largest number of rounds; 0 if no more will come.

    Raises:
        ValueError: a value is impossible.
    """
    by_factors = scale == "factors"
    if not _are_possible(values, scale).all():
        raise ValueError(f"a value is not finite, or not positive; it is impossible for {scale}")
    series = np.log(values) if by_factors else values
    processes = EProcesses(series)
    low, high = processes.intervals(confidence).T
    negligible = NEGLIGIBLE_DRIFT * (np.ones(len(values)) if by_factors else np.abs(values).max(axis=1))
    drifts, correlations = find_drifts(series, negligible), lag_one_correlations(series)
    exceed = are_beyond_the_method(correlations, series.shape[1]) & (fit_lines(series).noise > negligible)
    low = np.where(drifts.are_seen, np.minimum(low, drifts.gone_on), low)
    high = np.where(drifts.are_seen, np.maximum(high, drifts.gone_on), high)
    back = np.exp if by_factors else np.asarray
    outlook = Outlook(series, scale, limit, confidence)
    return Estimated(back(processes.centres), back(low), back(high), drifts, correlations, exceed, outlook)


def _are_possible(values: FloatArray, scale: Scale) -> BoolArray:
    """Whether the values of each series are finite and, if they err by factors, positive."""
    return np.asarray((np.isfinite(values) & ((values > 0) | (scale != "factors"))).all(axis=1))


def estimate_of(samples: Sequence[Sample], scale: Scale, confidence: float, limit: int = 0) -> Found:
    """Value and interval of one series, which may be a single imported sample.

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
    return estimate(np.array([values]), scale, confidence, limit).found(0)


class Clear(NamedTuple):
    """Summary of a place that passes and needs no full verdict.

    Attributes:
        value: point estimate.
        margin: `pytest_ddpscale.run.verdicts.Verdict.margin`.
        rounds: number of rounds.
        notes: notes that the verdict would have.
    """

    value: float
    margin: float
    rounds: int
    notes: tuple[str, ...] = ()


class _Rows(NamedTuple):
    """Places with equally many rounds, all possible, and their estimates."""

    places: Sequence[Any]
    row: Mapping[Any, int]
    least: FloatArray
    estimated: Estimated


class Estimates(Generic[P]):
    """Value and interval of each of many places, computed for all of them on first access.

    Args:
        samples: by place.
        scale: how they err.
        limit: largest number of rounds; 0 if no more will come.

    Attributes:
        samples: the argument.
        scale: the argument.
    """

    def __init__(self, samples: Mapping[P, PerRound], scale: Scale, limit: int = 0) -> None:
        self.samples, self._limit = samples, limit
        self.scale: Scale = scale
        self._found: dict[float, list[_Rows]] = {}

    def at(self, place: P, confidence: float) -> Found:
        """Value and interval of a place; NaN without an interval if it has an impossible value."""
        for rows in self._rows(confidence):
            if place in rows.row:
                return rows.estimated.found(rows.row[place])
        values = self.samples[place].values
        if not _are_possible(values[np.newaxis], self.scale).all():
            return Found(math.nan, None, too_few=f"an impossible value was measured: {values.tolist()}")
        return estimate_of(list(self.samples[place]), self.scale, confidence, self._limit)

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
        definition, bound, clear = requirement.definition, requirement.bound, dict[P, Clear]()
        for rows in self._rows(confidence):
            found = rows.estimated
            rounds, value = found.outlook.series.shape[1], found.values
            if rounds < fewest_rounds:
                continue
            is_clear = found.high <= bound if definition.upper_bound else found.low >= bound
            is_clear &= (credible[0] <= value) & (value <= credible[1]) & ~found.drifts.are_seen & ~found.exceed
            is_clear &= found.outlook.leave(bound, -1 if definition.upper_bound else 1)
            if definition.scale == "differences" and definition.baseline is None:
                is_clear &= rows.least >= 0
            margin = (bound - value if definition.upper_bound else value - bound) / bound
            of_each = zip(rows.places, is_clear.tolist(), value.tolist(), margin.tolist(), strict=True)
            clear |= {place: Clear(one, of_one, rounds) for place, is_one, one, of_one in of_each if is_one}
        return clear

    def _rows(self, confidence: float) -> list[_Rows]:
        """Results of places with an ordinary series of rounds; one array for each length."""
        if confidence not in self._found:
            if isinstance(self.samples, PerPlace):
                alike = self.samples.by_rounds
            else:
                alike = [Alike([place], one.values[np.newaxis]) for place, one in self.samples.items()]
            many = [one for one in alike if one.values.shape[1] >= FEWEST_ROUNDS]
            self._found[confidence] = [self._estimated(one, confidence) for one in many]
        return self._found[confidence]

    def _estimated(self, alike: Alike[P], confidence: float) -> _Rows:
        """Estimates of places without impossible values."""
        usual = _are_possible(alike.values, self.scale)
        places = [place for place, is_usual in zip(alike.places, usual.tolist(), strict=True) if is_usual]
        values, row = alike.values[usual], {place: number for number, place in enumerate(places)}
        return _Rows(places, row, values.min(axis=1), estimate(values, self.scale, confidence, self._limit))
