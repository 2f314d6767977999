"""Whether a run's places still reach what they reached before: what `no_regression` is judged by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_ddpscale.history.baseline import Baseline
from pytest_ddpscale.history.key_values import KeyValue
from pytest_ddpscale.history.prediction import FEWEST_VALUES, Reference, exp, is_lower_better, shared_confidence
from pytest_ddpscale.history.versions import version_changes


@dataclass(frozen=True)
class Compared:
    """A value beside the past of its place.

    Attributes:
        value: of this run.
        past: of the same series.
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

    @cached_property
    def ratio(self) -> float | None:
        """The smallest ratio; None if nothing can be compared, which is never a pass."""
        return min((one.ratio for one in self.compared), default=None)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """Of the smallest ratio: above a bound if all places are, below it if any is; None if nothing compares."""
        if not self.compared:
            return None
        return min(one.interval[0] for one in self.compared), min(one.interval[1] for one in self.compared)

    def below(self, bound: float) -> list[Compared]:
        """Those whose whole interval lies below a bound: who is to blame."""
        return [one for one in self.compared if one.interval[1] < bound]

    @property
    def why_unknown(self) -> str:
        """Why nothing can be said; empty if anything was compared."""
        if self.compared:
            return ""
        if not self.without_past:
            return "the run has no value that could be compared with earlier runs"
        return f"none of its {len(self.without_past)} values has {FEWEST_VALUES} earlier runs to be compared with"


def regression_of(
    current: Sequence[KeyValue],
    baseline: Baseline,
    confidence: float = 0.95,
    versions: Mapping[str, Mapping[str, str]] | None = None,
) -> Regression:
    """Compare the values of a run with the past of the same places.

    The interval of a ratio is the prediction interval of `history.prediction` seen from the other side: as far from
    the ratio as a single run strays from the mean of those before. All intervals hold together with `confidence`.

    Args:
        current: key values of the run.
        baseline: of the same SKU and hosts.
        confidence: that no place is found worse that did not change, 0 … 1.
        versions: of the software in this run, by host and name, where it is known.
    """
    known = dict(baseline.past)
    pasts = [(value, known.get(value.series)) for value in current]
    enough = [(value, past) for value, past in pasts if past is not None and past.is_enough]
    each = shared_confidence(confidence, len(enough))
    compared = sorted((_compare(value, past, each) for value, past in enough), key=lambda one: one.interval[1])
    without = tuple(value for value, past in pasts if past is None or not past.is_enough)
    told = {host: version_changes(baseline.versions.get(host, {}), now) for host, now in (versions or {}).items()}
    return Regression(tuple(compared), without, {host: changes for host, changes in told.items() if changes})


def _compare(value: KeyValue, past: Reference, confidence: float) -> Compared:
    log_ratio = math.log(value.value) - past.log_mean
    if is_lower_better(value.metric):
        log_ratio = -log_ratio
    reach = past.reach(confidence)
    return Compared(value, past, exp(log_ratio), (exp(log_ratio - reach), exp(log_ratio + reach)))
