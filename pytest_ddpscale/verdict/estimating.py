"""From a requirement's per-round values to a value with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpscale.metrics.samples import Sample
from pytest_ddpscale.plan.metric import Scale
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.stats.intervals import Estimate, single_sample_estimate
from pytest_ddpscale.stats.sequential import EProcess
from pytest_ddpscale.stats.steadiness import RoundDrift, find_drift

SINGLE_SAMPLE_NOTE = (
    "one imported sample: the interval comes from the standard deviation of its steps, taken as independent"
)
SINGLE_VALUE_NOTE = "one imported value: it has no interval of its own"
# Relative. A tenth of what separates bounds from values: no verdict hangs on it.
NEGLIGIBLE_DRIFT = 0.001


@dataclass(frozen=True)
class Found:
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


def _of_rounds(values: Sequence[float], scale: Scale, confidence: float) -> Found:
    by_factors = scale == "factors"
    series = [math.log(value) for value in values] if by_factors else values
    back = math.exp if by_factors else float
    process = EProcess(series)
    interval = process.interval(confidence)
    value = back(process.centre)
    if interval is None:
        return Found(value, None, too_few=f"{len(values)} rounds are too few for a confidence of {confidence:g}")
    drift = find_drift(series, NEGLIGIBLE_DRIFT * (1 if by_factors else max(map(abs, values))))
    low, high = _widened(interval, drift)
    note = _drift_note(drift, by_factors, len(values)) if drift else ""
    return Found(value, Estimate(value, (back(low), back(high))), note)


def _widened(interval: tuple[float, float], drift: RoundDrift | None) -> tuple[float, float]:
    """What drifts may go on: its mean so far is not where it will be."""
    if drift is None:
        return interval
    return min(interval[0], drift.gone_on), max(interval[1], drift.gone_on)


def _drift_note(drift: RoundDrift, by_factors: bool, rounds: int) -> str:
    change = f"{math.expm1(drift.change):+.1%}" if by_factors else f"{drift.change:+.3g}"
    return f"not steady: {change} from the first to the last third of {rounds} rounds; judged as if that went on"
