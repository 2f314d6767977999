"""From a requirement's per-round values to a value with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from pytest_ddpscale.plan.metric import Scale
from pytest_ddpscale.plan.per_round import PerRound, Sample
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.stats.intervals import Estimate, single_sample_estimate
from pytest_ddpscale.stats.sequential import EProcess, EProcesses, FloatArray
from pytest_ddpscale.stats.steadiness import RoundDrift, find_drift, find_drifts

SINGLE_SAMPLE_NOTE = (
    "one imported sample: the interval comes from the standard deviation of its steps, taken as independent"
)
SINGLE_VALUE_NOTE = "one imported value: it has no interval of its own"
# Relative. A tenth of what separates bounds from values: no verdict hangs on it.
NEGLIGIBLE_DRIFT = 0.001
# Of fewer series numpy takes longer than Python.
_WORTH_AN_ARRAY = 8
P = TypeVar("P", bound=Hashable)


class Found(NamedTuple):
    """What the rounds say.

    Attributes:
        value: point estimate.
        estimate: with its interval; None if there are too few rounds for one.
        note: what the reader should know about it; may be empty.
        too_few: why there is no interval; empty if there is one.
    """

    value: float
    estimate: Estimate | None
    note: str = ""
    too_few: str = ""


def estimate_of(samples: Sequence[Sample], scale: Scale, confidence: float) -> Found:
    """Value and interval.

    Args:
        samples: at least one, in the order of the rounds; for ``factors`` positive.
        scale: how they err.
        confidence: of the interval at all rounds together, 0 … 1.
    """
    values = [sample.value for sample in samples]
    error = samples[0].relative_error
    if len(samples) == 1 and error is not None:
        note = SINGLE_SAMPLE_NOTE if error > 0 else SINGLE_VALUE_NOTE
        return Found(values[0], single_sample_estimate(values[0], error, confidence), note)
    if len(values) < FEWEST_ROUNDS:
        reason = f"{len(values)} rounds; expected at least {FEWEST_ROUNDS}"
        return Found(statistics.fmean(values), None, too_few=reason)
    return _of_rounds(values, scale, confidence)


class Estimates(Generic[P]):
    """What the rounds of many places say, each by itself; found out for all at once when the first is asked for.

    Args:
        samples: of each place, at least one, in the order of the rounds.
        scale: how they err.
    """

    def __init__(self, samples: Mapping[P, PerRound], scale: Scale) -> None:
        self.samples = samples
        self._scale: Scale = scale
        self._found: dict[float, dict[P, Found]] = {}

    def at(self, place: P, confidence: float) -> Found:
        """As `estimate_of` of that place."""
        if confidence not in self._found:
            self._found[confidence] = self._all(confidence)
        known = self._found[confidence].get(place)
        return estimate_of(list(self.samples[place]), self._scale, confidence) if known is None else known

    def _all(self, confidence: float) -> dict[P, Found]:
        """Of those places that have an ordinary series of rounds; series of one length make an array."""
        series: dict[int, list[P]] = {}
        for place, samples in self.samples.items():
            if len(samples) >= FEWEST_ROUNDS:
                series.setdefault(len(samples), []).append(place)
        found: dict[P, Found] = {}
        for alike in series.values():
            if len(alike) >= _WORTH_AN_ARRAY:
                values = np.array([self.samples[place].values for place in alike])
                usual = np.isfinite(values).all(axis=1) & (np.ptp(values, axis=1) > 0)
                usual &= (values > 0).all(axis=1) | (self._scale != "factors")
                places = [place for place, is_usual in zip(alike, usual.tolist(), strict=True) if is_usual]
                found.update(zip(places, _of_series(values[usual], self._scale, confidence), strict=True))
        return found


def _of_series(values: FloatArray, scale: Scale, confidence: float) -> list[Found]:
    """As `_of_rounds`, of each series, (series, rounds)."""
    by_factors = scale == "factors"
    series = np.log(values) if by_factors else values
    processes = EProcesses(series)
    intervals, largest = processes.intervals(confidence).tolist(), np.abs(values).max(axis=1)
    drifts = find_drifts(series, NEGLIGIBLE_DRIFT * (np.ones(len(values)) if by_factors else largest))
    of_each = zip(processes.centres.tolist(), intervals, drifts, strict=True)
    return [
        _found(centre, None if math.isnan(low) else (low, high), drift, scale, values.shape[1], confidence)
        for centre, (low, high), drift in of_each
    ]


def _of_rounds(values: Sequence[float], scale: Scale, confidence: float) -> Found:
    by_factors = scale == "factors"
    series = [math.log(value) for value in values] if by_factors else values
    process = EProcess(series)
    interval = process.interval(confidence)
    drift = find_drift(series, NEGLIGIBLE_DRIFT * (1 if by_factors else max(map(abs, values))))
    return _found(process.centre, interval, drift, scale, len(values), confidence)


def _found(
    centre: float,
    interval: tuple[float, float] | None,
    drift: RoundDrift | None,
    scale: Scale,
    rounds: int,
    confidence: float,
) -> Found:
    by_factors = scale == "factors"
    back = math.exp if by_factors else float
    value = back(centre)
    if interval is None:
        return Found(value, None, too_few=f"{rounds} rounds are too few for a confidence of {confidence:g}")
    low, high = _widened(interval, drift)
    note = _drift_note(drift, by_factors, rounds) if drift else ""
    return Found(value, Estimate(value, (back(low), back(high))), note)


def _widened(interval: tuple[float, float], drift: RoundDrift | None) -> tuple[float, float]:
    """What drifts may go on: its mean so far is not where it will be."""
    if drift is None:
        return interval
    return min(interval[0], drift.gone_on), max(interval[1], drift.gone_on)


def _drift_note(drift: RoundDrift, by_factors: bool, rounds: int) -> str:
    change = f"{math.expm1(drift.change):+.1%}" if by_factors else f"{drift.change:+.3g}"
    return f"not steady: {change} from the first to the last third of {rounds} rounds; judged as if that went on"
