"""Whether a run's places still reach what they reached before: what `no_regression` and the norm go by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.history.baseline import Baseline, version_changes
from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries
from pytest_ddpscale.history.prediction import CONFIDENCE, Reference, exp, is_lower_better, shared_confidence

LARGE_LOSS = 0.05  # what `no_regression` looks for


@dataclass(frozen=True)
class Compared:
    """A value beside the past of its place.

    Attributes:
        ratio: value over geometric mean of the past; turned over where a lower value is better, so that below 1 is
            always worse.
        interval: of the ratio, allowing for the spread of single runs.
    """

    value: KeyValue
    past: Reference
    ratio: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Regression:
    """A run beside the past of its places.

    Attributes:
        compared: every value that has a past, that which fell most surely first.
        without_past: every value with fewer than five earlier runs: nothing can be said of it.
        changes: of the software since then, by host: what may explain a difference.
    """

    compared: tuple[Compared, ...]
    without_past: tuple[KeyValue, ...]
    changes: Mapping[str, tuple[str, ...]]

    @property
    def ratio(self) -> float | None:
        """The smallest ratio; None if nothing can be compared, which is never a pass."""
        return min((one.ratio for one in self.compared), default=None)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the smallest ratio: above a bound if all places are, below it if any is; None if nothing compares."""
        if not self.compared:
            return None
        return min(one.interval[0] for one in self.compared), min(one.interval[1] for one in self.compared)

    def below(self, bound: float) -> list[Compared]:
        """Those whose whole interval lies below a bound: who is to blame."""
        return [one for one in self.compared if one.interval[1] < bound]


def regression_of(
    current: Sequence[KeyValue],
    baseline: Baseline,
    confidence: float = CONFIDENCE,
    versions: Mapping[str, Mapping[str, str]] | None = None,
) -> Regression:
    """Compare the values of a run with the past of the same places, of the same SKU and hosts.

    The interval of a ratio is the prediction interval of `history.prediction` seen from the other side: as far from
    the ratio as a single run strays from the mean of those before. All intervals hold together with `confidence`.
    """
    pairs = _with_past(current, dict(baseline.past))
    each = shared_confidence(confidence, len(pairs))
    compared = sorted((_compare(value, past, each) for value, past in pairs), key=lambda one: one.interval[1])
    known = {value for value, _ in pairs}
    told = {host: version_changes(baseline.versions.get(host, {}), now) for host, now in (versions or {}).items()}
    return Regression(
        tuple(compared),
        tuple(value for value in current if value not in known),
        {host: changes for host, changes in told.items() if changes},
    )


def regressed_values(values: Sequence[KeyValue], past: Mapping[KeyValueSeries, Reference]) -> set[KeyValue]:
    """Those that are worse than the past of their place: they are kept, and are no norm for later runs.

    Beyond the prediction intervals that hold together for all values of the run: were every single interval to do,
    one sound value in forty would be left out, and the norm rise by what it lost. A loss of 5 % and more is left out if
    it lies beyond its single interval. Where the norm is so steady that it could find such a loss, no sound value loses
    that much; and while it is young, the intervals of all together are wider than the loss, which would become the norm
    before anybody could find it. With fewer than five earlier values none has fallen.
    """
    pairs = _with_past(values, past)
    together = shared_confidence(CONFIDENCE, len(pairs))
    return {value for value, reference in pairs if _has_fallen(-_log_ratio(value, reference), reference, together)}


def _with_past(
    values: Sequence[KeyValue], past: Mapping[KeyValueSeries, Reference]
) -> list[tuple[KeyValue, Reference]]:  # fmt: skip
    pairs = [(value, past.get(value.series)) for value in values]
    return [(value, reference) for value, reference in pairs if reference is not None and reference.is_enough]


def _log_ratio(value: KeyValue, past: Reference) -> float:
    """Of value and past; below 0 is always worse."""
    ratio = math.log(value.value) - past.log_mean
    return -ratio if is_lower_better(value.metric) else ratio


def _has_fallen(lost: float, past: Reference, together: float) -> bool:
    return lost > past.reach(together) or lost > max(past.reach(CONFIDENCE), -math.log1p(-LARGE_LOSS))


def _compare(value: KeyValue, past: Reference, confidence: float) -> Compared:
    log_ratio, reach = _log_ratio(value, past), past.reach(confidence)
    return Compared(value, past, exp(log_ratio), (exp(log_ratio - reach), exp(log_ratio + reach)))
