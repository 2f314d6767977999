"""Whether a run's places still reach their earlier values, for `no_regression` and the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.history.baseline import Baseline, version_changes
from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries
from pytest_ddpscale.history.prediction import CONFIDENCE, Reference, exp, is_lower_better, shared_confidence

LARGE_LOSS = 0.05  # the loss that `no_regression` looks for


@dataclass(frozen=True)
class Compared:
    """A value compared with the past of its place.

    Attributes:
        ratio: value over geometric mean of the past, inverted if a lower value is better, so that below 1 is always
            worse.
        interval: of the ratio, allowing for the spread of single runs.
    """

    value: KeyValue
    past: Reference
    ratio: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Regression:
    """A run compared with the past of its places.

    Attributes:
        compared: every value with enough earlier runs, the most certain loss first.
        without_past: every value with fewer than five earlier runs, which cannot be compared.
        changes: of the software since then, by host, which may explain a difference.
    """

    compared: tuple[Compared, ...]
    without_past: tuple[KeyValue, ...]
    changes: Mapping[str, tuple[str, ...]]

    @property
    def ratio(self) -> float | None:
        """The smallest ratio; None if no value can be compared, which never passes."""
        return min((one.ratio for one in self.compared), default=None)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the smallest ratio: above a bound if all places are, below it if any is; None without values."""
        if not self.compared:
            return None
        return min(one.interval[0] for one in self.compared), min(one.interval[1] for one in self.compared)

    def below(self, bound: float) -> list[Compared]:
        """Values whose whole interval is below a bound; their places are at fault."""
        return [one for one in self.compared if one.interval[1] < bound]


def regression_of(
    current: Sequence[KeyValue],
    baseline: Baseline,
    confidence: float = CONFIDENCE,
    versions: Mapping[str, Mapping[str, str]] | None = None,
) -> Regression:
    """Compare the values of a run with the past of the same places, of the same SKU and hosts.

    The interval of a ratio has the width of the prediction interval of `history.prediction`, placed about the ratio.
    All intervals hold jointly with `confidence`.
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
    """Values that are worse than the past of their place; they are stored but not used as a baseline.

    A value regressed if it is beyond the joint prediction intervals of all values of the run. Single intervals would
    leave out one sound value in forty and so raise the baseline. A loss of at least 5 % counts as regressed if it is
    beyond its single interval: with a baseline steady enough to show such a loss, no sound value loses that much; and
    with few runs the joint interval is wider than the loss, which would enter the baseline unnoticed. With fewer than
    five earlier values nothing counts as regressed.
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
    """Logarithm of value over past; below 0 is always worse."""
    ratio = math.log(value.value) - past.log_mean
    return -ratio if is_lower_better(value.metric) else ratio


def _has_fallen(lost: float, past: Reference, together: float) -> bool:
    return lost > past.reach(together) or lost > max(past.reach(CONFIDENCE), -math.log1p(-LARGE_LOSS))


def _compare(value: KeyValue, past: Reference, confidence: float) -> Compared:
    log_ratio, reach = _log_ratio(value, past), past.reach(confidence)
    return Compared(value, past, exp(log_ratio), (exp(log_ratio - reach), exp(log_ratio + reach)))
