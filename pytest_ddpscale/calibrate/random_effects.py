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
    by_launch: dict[str, list[float]] = {}
    for node, of_node in values.items():
        for launch, value in of_node.items():
            by_launch.setdefault(launch, []).append(value - means[node])
    launches = len(by_launch)
    # Sums of squares and their degrees of freedom: between nodes, between launches, and the rest.
    sums = [
        number / nodes * math.fsum((one - mean) ** 2 for one in means.values()),
        math.fsum(len(of_launch) * statistics.fmean(of_launch) ** 2 for of_launch in by_launch.values()),
        math.fsum(one * one for of_launch in by_launch.values() for one in of_launch),
    ]
    degrees = [nodes - 1, launches - 1, number - nodes]
    if launches < 2 or degrees[2] <= degrees[1] or launches == number:
        sums[1], degrees[1] = 0.0, 0
    else:
        sums[2], degrees[2] = max(0.0, sums[2] - sums[1]), degrees[2] - degrees[1]
    for part in (1, 0):  # pooled with the rest if it does not exceed it
        if not degrees[part] or sums[part] / degrees[part] <= sums[2] / degrees[2]:
            sums[2], degrees[2] = sums[2] + sums[part], degrees[2] + degrees[part]
            sums[part], degrees[part] = 0.0, 0
    between, common, rest = squares = [one / of if of else 0.0 for one, of in zip(sums, degrees, strict=True)]
    weights = [(1 + one) / each * bool(of) for one, each, of in (
        (1 / nodes, number / nodes, degrees[0]), (1 / launches, number / launches, degrees[1]))]  # fmt: skip
    weights.append(max(0.0, 1 + 1 / number - sum(weights)))
    terms = [weight * square for weight, square in zip(weights, squares, strict=True)]
    variance = math.fsum(terms)
    share = math.fsum(term**2 / of for term, of in zip(terms, degrees, strict=True) if of)
    return NextValue(
        mean,
        math.sqrt(max(0.0, between - rest) / (number / nodes)),
        math.sqrt(max(0.0, common - rest) / (number / launches) + rest),
        math.sqrt(variance),
        max(1, math.floor(variance**2 / share)) if share > 0 else number - 1,
    )
