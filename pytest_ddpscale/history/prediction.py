"""Prediction of the next value of a series from the earlier ones.

The prediction interval of one more value from a normal population, on logarithms because rates err by factors:
mean ± t(n - 1) · s · √(1 + 1/n) (Hahn & Meeker, Statistical Intervals, 1991, chapter 4). Unlike a confidence interval
of the mean, it includes the spread of the single new value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pytest_ddpscale.judge.stats import t_quantile
from pytest_ddpscale.plan.metric_catalogue import METRICS

CONFIDENCE = 0.95
FEWEST_VALUES = 5  # fewer do not show their spread
MOST_VALUES = 20  # only the latest, because a node's baseline may change for good reasons
# Relative. Five equal values do not prove a machine without noise: repeated trainings on one sound node range over a
# quarter of a per cent.
LEAST_SPREAD = 0.001
_MOST_LOG = 700.0
_quantile = lru_cache(maxsize=4096)(t_quantile)
_MAD_TO_SD = 1 / statistics.NormalDist().inv_cdf(0.75)  # of a normal distribution


@dataclass(frozen=True)
class Reference:
    """Summary of the values with which a further one is compared.

    Attributes:
        number: of values.
        median: of the values, in their unit.
        log_mean: mean of their natural logarithms.
        log_sd: sample standard deviation of the logarithms; 0 for a single value.
        spread: robust relative spread: 1.4826 x the median absolute deviation of the logarithms from their median.
    """

    number: int
    median: float
    log_mean: float
    log_sd: float
    spread: float

    def __post_init__(self) -> None:
        numbers = (self.median, self.log_mean, self.log_sd, self.spread)
        is_possible = type(self.number) is int and self.number >= 1 and all(map(math.isfinite, numbers))
        if not (is_possible and self.median > 0 and self.log_sd >= 0 and self.spread >= 0):
            raise ValueError(f"{self}; expected a whole number from 1 up, a positive median, finite spreads from 0 up")

    @property
    def is_enough(self) -> bool:
        """Whether there are enough values to compare with."""
        return self.number >= FEWEST_VALUES

    def reach(self, confidence: float) -> float:
        """Half the prediction interval of the next logarithm. Raises ValueError for a single value."""
        spread = max(self.log_sd, LEAST_SPREAD)
        return _quantile(0.5 + confidence / 2, self.number - 1) * spread * math.sqrt(1 + 1 / self.number)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Prediction interval of the next value, in the unit of the values. Raises like `reach`."""
        reach = self.reach(confidence)
        return exp(self.log_mean - reach), exp(self.log_mean + reach)


def reference_of(values: Sequence[float]) -> Reference | None:
    """Summary of positive and finite values; None without any."""
    if not values:
        return None
    logs = [math.log(value) for value in values]
    mean, middle = statistics.fmean(logs), statistics.median(logs)
    deviation = statistics.median(abs(one - middle) for one in logs)
    # statistics.stdev computes with exact fractions, which would dominate the time for all nodes of a site.
    sd = math.sqrt(math.fsum((one - mean) ** 2 for one in logs) / max(len(logs) - 1, 1))
    return Reference(len(logs), statistics.median(values), mean, sd, _MAD_TO_SD * deviation)


def exp(logarithm: float) -> float:
    """e to the power of a logarithm, limited to a finite range of floats above 0."""
    return math.exp(max(-_MOST_LOG, min(_MOST_LOG, logarithm)))


def is_lower_better(metric: str) -> bool:
    """Whether a lower value is better, as for step times and memory."""
    return metric in METRICS and METRICS[metric].upper_bound


def shared_confidence(confidence: float, number: int) -> float:
    """Confidence of each of `number` intervals so that all hold jointly with `confidence` (Bonferroni)."""
    return 1 - (1 - confidence) / max(number, 1)
