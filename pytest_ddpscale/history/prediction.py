"""Prediction of the next value of a series from the earlier ones, and values compared with it.

The prediction interval of one more value from a normal population, on logarithms because rates err by factors:
mean ± t(n - 1) · s · √(1 + 1/n) (Hahn & Meeker, Statistical Intervals, 1991, chapter 4). Unlike a confidence interval
of the mean, it includes the spread of the single new value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, NamedTuple

from msgspec import Meta

from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries
from pytest_ddpscale.judge.stats import t_quantile

CONFIDENCE = 0.95
FEWEST_VALUES = 5  # fewer do not show their spread
MOST_VALUES = 20  # only the latest, because a node's baseline may change for good reasons
# Relative. Five equal values do not prove a machine without noise: repeated trainings on one sound node range over a
# quarter of a per cent.
LEAST_SPREAD = 0.001
LARGE_LOSS = 0.05  # the loss that `no_regression` looks for
_MOST_LOG = 700.0
_quantile = lru_cache(maxsize=4096)(t_quantile)


class Reference(NamedTuple):
    """Number of the values with which a further one is compared, mean and standard deviation of their logarithms."""

    number: Annotated[int, Meta(ge=1)]
    log_mean: float
    log_sd: Annotated[float, Meta(ge=0)]

    @property
    def is_enough(self) -> bool:
        """Whether there are enough values to compare with."""
        return self.number >= FEWEST_VALUES

    @property
    def mean(self) -> float:
        """Geometric mean of the values."""
        return exp(self.log_mean)

    def reach(self, confidence: float) -> float:
        """Half the prediction interval of the next logarithm. Raises ValueError for a single value."""
        spread = max(self.log_sd, LEAST_SPREAD)
        return _quantile(0.5 + confidence / 2, self.number - 1) * spread * math.sqrt(1 + 1 / self.number)


def references(runs: Iterable[Iterable[KeyValue]]) -> dict[KeyValueSeries, Reference]:
    """Summary of the latest twenty values of each series; runs are oldest first."""
    logs: dict[KeyValueSeries, list[float]] = {}
    for values in runs:
        for value in values:
            logs.setdefault(value.series, []).append(math.log(value.value))
    return {series: reference_of(of_series[-MOST_VALUES:]) for series, of_series in logs.items()}


def reference_of(logs: Sequence[float]) -> Reference:
    """Summary of at least one logarithm."""
    mean = statistics.fmean(logs)
    # statistics.stdev computes with exact fractions, which would dominate the time for all nodes of a site.
    return Reference(
        len(logs), mean, math.sqrt(math.fsum((one - mean) ** 2 for one in logs) / max(len(logs) - 1, 1))
    )  # fmt: skip


class Compared(NamedTuple):
    """A value compared with the past of its place: their ratio, allowing for the spread of single runs."""

    value: KeyValue
    past: Reference
    ratio: float
    low: float
    high: float


def compared(
    values: Sequence[KeyValue], past: Mapping[KeyValueSeries, Reference], confidence: float = CONFIDENCE
) -> list[Compared]:
    """Every value with enough earlier ones, the most certain loss first.

    The interval of a ratio has the width of the prediction interval, placed about the ratio. All intervals hold jointly
    with `confidence`.
    """
    pairs = with_past(values, past)
    each, found = shared_confidence(confidence, len(pairs)), []
    for value, reference in pairs:
        lost, reach = reference.log_mean - math.log(value.value), reference.reach(each)
        found.append(Compared(value, reference, exp(-lost), exp(-lost - reach), exp(-lost + reach)))
    return sorted(found, key=lambda one: one.high)


def regressed_values(
    values: Sequence[KeyValue], past: Mapping[KeyValueSeries, Reference]
) -> set[KeyValueSeries]:  # fmt: skip
    """Series whose value is worse than the past of its place; it is stored but not used as a baseline.

    A value regressed if it is below the joint prediction intervals of all values. Single intervals would leave out one
    sound value in forty and so raise the baseline. A loss of at least 5 % counts as regressed if it is below its single
    interval: with a baseline steady enough to show such a loss, no sound value loses that much; and with few runs the
    joint interval is wider than the loss, which would enter the baseline unnoticed. With fewer than five earlier values
    nothing counts as regressed.
    """
    pairs, found = with_past(values, past), set()
    together = shared_confidence(CONFIDENCE, len(pairs))
    for value, reference in pairs:
        lost = reference.log_mean - math.log(value.value)
        large = max(reference.reach(CONFIDENCE), -math.log1p(-LARGE_LOSS))
        if lost > min(reference.reach(together), large):
            found.add(value.series)
    return found


def with_past(
    values: Sequence[KeyValue], past: Mapping[KeyValueSeries, Reference]
) -> list[tuple[KeyValue, Reference]]:  # fmt: skip
    """Values with enough earlier ones."""
    pairs = [(value, past.get(value.series)) for value in values]
    return [(value, reference) for value, reference in pairs if reference is not None and reference.is_enough]


def shared_confidence(confidence: float, number: int) -> float:
    """Confidence of each of `number` intervals so that all hold jointly with `confidence` (Bonferroni)."""
    return 1 - (1 - confidence) / max(number, 1)


def exp(logarithm: float) -> float:
    """e to the power of a logarithm, limited to a finite range of floats above 0."""
    return math.exp(max(-_MOST_LOG, min(_MOST_LOG, logarithm)))
