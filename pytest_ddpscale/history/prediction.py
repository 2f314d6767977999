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
        return math.exp(self.log_mean)

    def reach(self, confidence: float) -> float:
        """Half the prediction interval of the next logarithm. Raises ValueError for a single value."""
        spread = max(self.log_sd, LEAST_SPREAD)
        return _quantile(0.5 + confidence / 2, self.number - 1) * spread * math.sqrt(1 + 1 / self.number)


def references(runs: Iterable[Iterable[KeyValue]]) -> dict[KeyValueSeries, Reference]:
    """Summary of the latest twenty values of each series; runs are oldest first."""
    logs, by_series = dict[KeyValueSeries, list[float]](), dict[KeyValueSeries, Reference]()
    for values in runs:
        for value in values:
            logs.setdefault(value.series, []).append(math.log(value.value))
    for series, numbers in logs.items():
        latest = numbers[-MOST_VALUES:]
        mean = statistics.fmean(latest)
        # statistics.stdev computes with exact fractions, which would dominate the time for all nodes of a site.
        squares = math.fsum((number - mean) ** 2 for number in latest)
        by_series[series] = Reference(len(latest), mean, math.sqrt(squares / max(len(latest) - 1, 1)))
    return by_series


class Compared(NamedTuple):
    """A value compared with the past of its place: their ratio, allowing for the spread of single runs.

    `has_regressed` tells a value that is worse than the past of its place; it is stored but not used as a baseline.
    """

    value: KeyValue
    past: Reference
    ratio: float
    low: float
    high: float
    has_regressed: bool


def compared(
    values: Sequence[KeyValue], past: Mapping[KeyValueSeries, Reference], confidence: float = CONFIDENCE
) -> tuple[list[Compared], list[KeyValue]]:
    """Every value with enough earlier ones, the most certain loss first; and the other values.

    The interval of a ratio has the width of the prediction interval, placed about the ratio. All intervals hold jointly
    with `confidence`.

    A value regressed if it is below the joint prediction intervals of all values. Single intervals would leave out one
    sound value in forty and so raise the baseline. A loss of at least 5 % counts as regressed if it is below its single
    interval: with a baseline steady enough to show such a loss, no sound value loses that much; and with few runs the
    joint interval is wider than the loss, which would enter the baseline unnoticed. With fewer than five earlier values
    nothing counts as regressed.
    """
    known = {value.series for value in values if value.series in past and past[value.series].is_enough}
    confidence_of_each, comparisons = shared_confidence(confidence, len(known)), list[Compared]()
    for value in values:
        if value.series in known:
            reference = past[value.series]
            lost, reach = reference.log_mean - math.log(value.value), reference.reach(confidence_of_each)
            large = max(reference.reach(CONFIDENCE), -math.log1p(-LARGE_LOSS))
            ratio, low, high = map(math.exp, (-lost, -lost - reach, -lost + reach))
            comparisons.append(Compared(value, reference, ratio, low, high, lost > min(reach, large)))
    return sorted(comparisons, key=lambda comparison: comparison.high), [
        value for value in values if value.series not in known
    ]


def shared_confidence(confidence: float, number: int) -> float:
    """Confidence of each of `number` intervals so that all hold jointly with `confidence` (Bonferroni)."""
    return 1 - (1 - confidence) / max(number, 1)
