"""The smallest loss that calibrated bounds find, now and with other numbers of nodes and launches.

A bound lies t · sd + reach from the mean (`calibration.py`), and 19 of 20 nodes with a loss of

    t · sd + 2 · reach + 1.645 · (standard deviation of a node in a launch)

fail it, because then their whole interval misses it. Both sd and the degrees of freedom of t depend on the numbers of
nodes and launches, the standard deviations themselves do not (`NextValue.with_design`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pytest_ddpscale.calibrate.random_effects import NextValue
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase

MOST_NODES = 64  # that `fewest_nodes` tries
_ONE_IN_TWENTY = statistics.NormalDist().inv_cdf(0.95)
TRAINING_SPEED = "training speed"
# In the order in which they are told.
GROUPS = (TRAINING_SPEED, "scaling efficiency", "probes of one GPU", "probes of links")


def group_of(case: AnyCase) -> str | None:
    """The group of a requirement whose value falls with the speed of a node; None for all others."""
    definition = case.requirement.definition
    if not definition.tells_speed:
        return None
    if isinstance(case, NodeCase):
        return GROUPS[2] if case.probe is not None and case.probe.operation.is_single_device else GROUPS[3]
    return TRAINING_SPEED if definition.baseline is None else GROUPS[1]


@dataclass(frozen=True)
class Foresight:
    """What determines the smallest loss that a bound on a requirement finds; all of it in logarithms.

    Attributes:
        name: of the requirement.
        group: one of `GROUPS`.
        spread: between nodes and launches, as far as they are known.
        chance: that a healthy node misses the bound.
        reach: half a confidence interval of the judge.
        least_sd: lower limit for the standard deviation.
        upper: whether its bound lies above the values.
        nodes: of the calibration.
        launches: mean number of launches of each node.
    """

    name: str
    group: str
    spread: NextValue
    chance: float
    reach: float
    least_sd: float
    upper: bool
    nodes: int
    launches: float

    def loss(self, nodes: int | None = None, launches: int | None = None) -> float:
        """The smallest loss of speed, a fraction, that 19 of 20 nodes with it fail by; by default as calibrated.

        A step that takes 1.25 times as long is a loss of 20 %.

        Args:
            nodes: of another calibration, at least 2.
            launches: of each of its nodes, at least 2.
        """
        spread = self.spread
        if nodes is not None or launches is not None:
            spread = spread.with_design(nodes or self.nodes, launches or self.usual_launches)
        beyond = abs(spread.bound(self.chance, self.least_sd, upper=self.upper) - spread.mean) + 2 * self.reach
        beyond += _ONE_IN_TWENTY * math.hypot(spread.node_sd, spread.launch_sd)
        return -math.expm1(-beyond)

    @property
    def usual_launches(self) -> int:
        """Number of launches of each node, rounded, for other numbers of nodes."""
        return max(2, round(self.launches))


@dataclass(frozen=True)
class GroupForesight:
    """A group of requirements; each loss is the one that its weakest bound finds.

    Attributes:
        group: one of `GROUPS`.
        members: its requirements whose spread is known, with a bound or without.
    """

    group: str
    members: tuple[Foresight, ...]

    def loss(self, nodes: int | None = None, launches: int | None = None) -> float:
        """As `Foresight.loss`."""
        return max(one.loss(nodes, launches) for one in self.members)

    def fewest_nodes(self, loss: float) -> int | None:
        """The fewest nodes from which this loss is found, with as many launches as now; None beyond `MOST_NODES`."""
        return _first(lambda nodes: self.loss(nodes) <= loss, range(3, MOST_NODES + 1))


def in_groups(found: Iterable[Foresight]) -> Iterator[GroupForesight]:
    """The groups that have any requirement, in order."""
    every = list(found)
    for group in GROUPS:
        members = tuple(one for one in every if one.group == group)
        if members:
            yield GroupForesight(group, members)


def _first(is_enough: Callable[[int], bool], numbers: range) -> int | None:
    """The first number that is enough, by bisection: more nodes never find less."""
    low, high = numbers.start, numbers.stop
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low if low < numbers.stop else None
