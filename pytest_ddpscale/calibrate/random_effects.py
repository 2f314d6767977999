"""Variance components of values by node and launch, and a prediction of the next value.

The model is y = mean + node + launch + rest, each part with its own variance. The variances come from mean squares
as in an analysis of variance (Searle, Casella and McCulloch, Variance Components, 1992, chapter 4); a part whose mean
square does not exceed the rest's counts as zero and is pooled with it. The variance of a new node in a new launch
about the mean of I nodes, J launches and N values is

    V = node · (1 + 1/I) + launch · (1 + 1/J) + rest · (1 + 1/N)

This is a sum of mean squares, with the degrees of freedom of Satterthwaite (1946), Biometrics Bulletin 2(6):
V² over the sum of (each term)² ÷ (its degrees). Unbalanced designs use the mean numbers of values per node and launch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ddpscale.judge.stats import t_quantile


@dataclass(frozen=True)
class NextValue:
    """Prediction of the value of a new node in a new launch.

    Attributes:
        mean: mean of the nodes' means.
        node_sd: standard deviation between nodes.
        launch_sd: standard deviation of one node between launches.
        sd: standard deviation of the new value about `mean`, including the error of `mean`.
        degrees: degrees of freedom of `sd`, rounded down.
    """

    mean: float
    node_sd: float
    launch_sd: float
    sd: float
    degrees: int

    def bound(self, chance: float, least_sd: float, *, upper: bool) -> float:
        """One-sided prediction bound, mean ± t · sd: the new value lies beyond it with this chance at most.

        Hahn and Meeker, Statistical Intervals, 1991, chapter 4.

        Args:
            chance: 0 … 0.5.
            least_sd: lower limit for `sd`: a few equal values do not prove that nothing varies.
            upper: whether the bound lies above the mean.
        """
        reach = t_quantile(1 - chance, self.degrees) * max(self.sd, least_sd)
        return self.mean + reach if upper else self.mean - reach


@dataclass(frozen=True)
class _MeanSquare:
    """A sum of squares over its degrees of freedom."""

    squares: float
    degrees: int

    @property
    def value(self) -> float:
        return self.squares / self.degrees if self.degrees else 0.0

    def pooled(self, other: _MeanSquare) -> _MeanSquare:
        return _MeanSquare(self.squares + other.squares, self.degrees + other.degrees)


def next_value(values: Mapping[str, Mapping[str, float]]) -> NextValue:
    """Predict the value of a new node in a new launch.

    Args:
        values: by node and launch, of at least two nodes; nodes may share launches or not.

    Raises:
        ValueError: fewer than two nodes, or no data on how much launches differ.
    """
    means = {node: statistics.fmean(of_node.values()) for node, of_node in values.items()}
    nodes, number = len(values), sum(map(len, values.values()))
    if nodes < 2 or number - nodes < 1:
        raise ValueError(f"{number} values of {nodes} nodes; expected at least 2 nodes and a node with 2 launches")
    mean = statistics.fmean(means.values())
    launches, of_launches, rest = _within_nodes(values, means)
    between = _MeanSquare(number / nodes * math.fsum((one - mean) ** 2 for one in means.values()), nodes - 1)
    return _predicted(mean, (nodes, len(launches), number), between, of_launches, rest)


def _predicted(
    mean: float, counts: tuple[int, int, int], between: _MeanSquare, of_launches: _MeanSquare, rest: _MeanSquare
) -> NextValue:
    """The prediction from mean squares; `counts` are those of nodes, launches and values."""
    nodes, launches, number = counts
    per_node, per_launch = number / nodes, number / launches
    if of_launches.value <= rest.value:
        rest, of_launches = rest.pooled(of_launches), _MeanSquare(0.0, 0)
    if between.value <= rest.value:
        rest, between = rest.pooled(between), _MeanSquare(0.0, 0)
    terms = []
    if between.degrees:
        terms.append(((1 + 1 / nodes) / per_node, between))
    if of_launches.degrees:
        terms.append(((1 + 1 / launches) / per_launch, of_launches))
    terms.append((max(0.0, 1 + 1 / number - sum(weight for weight, _ in terms)), rest))
    variance = math.fsum(weight * square.value for weight, square in terms)
    share = math.fsum((weight * square.value) ** 2 / square.degrees for weight, square in terms if square.degrees)
    node_variance = max(0.0, between.value - rest.value) / per_node
    common_variance = max(0.0, of_launches.value - rest.value) / per_launch
    return NextValue(
        mean,
        math.sqrt(node_variance),
        math.sqrt(common_variance + rest.value),
        math.sqrt(variance),
        max(1, math.floor(variance**2 / share)) if share > 0 else number - 1,
    )


def _within_nodes(
    values: Mapping[str, Mapping[str, float]], means: Mapping[str, float]
) -> tuple[list[str], _MeanSquare, _MeanSquare]:
    """Launches, the mean square between launches, and the mean square of the rest within nodes."""
    by_launch: dict[str, list[float]] = {}
    for node, of_node in values.items():
        for launch, value in of_node.items():
            by_launch.setdefault(launch, []).append(value - means[node])
    number = sum(map(len, by_launch.values()))
    whole = _MeanSquare(
        math.fsum(one * one for of_launch in by_launch.values() for one in of_launch), number - len(values)
    )
    common = _MeanSquare(
        math.fsum(len(of_launch) * statistics.fmean(of_launch) ** 2 for of_launch in by_launch.values()),
        len(by_launch) - 1,
    )
    if common.degrees < 1 or whole.degrees - common.degrees < 1 or len(by_launch) == number:
        return list(by_launch), _MeanSquare(0.0, 0), whole
    rest = _MeanSquare(max(0.0, whole.squares - common.squares), whole.degrees - common.degrees)
    return list(by_launch), common, rest
