"""Which of some nodes do not belong to the others.

After SuperBench (Xiong et al., USENIX ATC 2024), which finds what is healthy without being told a criterion: take the
centre of all nodes, leave out those that are too unlike it, and repeat until nobody is left out any more. There a node
is unlike the centre if its similarity is below 0.95. Here it is if it lies beyond what the spread of the remaining
nodes explains, so that the constant is a chance, `FALSE_EXCLUSIONS`; of few nodes, whose spread says little, also if it
is both `UNLIKE` in itself and `FAR` beyond that spread. What differs by less than matters is no reason whatever the
spread: `ValueSet.least_gap`.

How many are left out of one set of values is found from inside: of the values farthest from the median the largest
number k is taken of which the innermost still lies beyond the prediction interval of those that remain. Two bad nodes
that hide each other by widening the spread are found so (Rosner 1983, Technometrics 25(2), the generalized ESD test).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.stats.intervals import t_quantile

# Of all nodes and values together: how often anybody is left out of a cluster that is sound.
FALSE_EXCLUSIONS = 0.01
FEWEST_OTHERS = 3  # nodes that a node is compared with
UNLIKE = 0.03  # relative to the others
FAR = 6.0  # standard deviations


@dataclass(frozen=True)
class ValueSet:
    """What nodes reached in one thing.

    Attributes:
        name: of what they did.
        values: one for each node.
        least_sd: spread that nodes are granted however alike they are.
        least_gap: from the others' median: nearer nodes belong whatever the spread.
        are_logs: whether differences of the values are relative ones.
        launch: in which they did it; empty if values are means over launches.
    """

    name: str
    values: Mapping[str, float]
    least_sd: float = 0.0
    least_gap: float = 0.0
    are_logs: bool = False
    launch: str = ""


@dataclass(frozen=True)
class Deviation:
    """A node that does not belong.

    Attributes:
        name: of the set of values in which it lies farthest from the others.
        launch: of that set; empty for means over launches.
        value: its own.
        centre: median of the nodes that remain.
        distance: from their mean, in standard deviations of one more of them.
    """

    node: str
    name: str
    launch: str
    value: float
    centre: float
    distance: float


def deviating_nodes(sets: Sequence[ValueSet], most: int) -> list[Deviation]:
    """Nodes to leave out, those found first in front.

    Args:
        sets: of values; a node that lies outside in any of them is left out of all.
        most: how many may be left out of one set at a time; what is found may be more in all.
    """
    number = max(1, sum(len(one.values) for one in sets))
    found: dict[str, Deviation] = {}
    while True:
        more: dict[str, Deviation] = {}
        for one in sets:
            remaining = {node: value for node, value in one.values.items() if node not in found}
            for deviation in _deviating(one, remaining, most, FALSE_EXCLUSIONS / number):
                known = more.get(deviation.node)
                if known is None or deviation.distance > known.distance:
                    more[deviation.node] = deviation
        if not more:
            return list(found.values())
        found |= dict(sorted(more.items(), key=lambda one: -one[1].distance))


def _deviating(one: ValueSet, values: Mapping[str, float], most: int, chance: float) -> list[Deviation]:
    """Of one set, at a chance of leaving out a node that belongs."""
    if not values:
        return []
    middle = statistics.median(values.values())
    inside_out = sorted(values, key=lambda node: abs(values[node] - middle))
    for number in range(min(most, len(values) - FEWEST_OTHERS), 0, -1):
        core = [values[node] for node in inside_out[:-number]]
        sd = max(statistics.stdev(core), one.least_sd) * math.sqrt(1 + 1 / len(core))
        distances = {
            node: abs(values[node] - statistics.fmean(core)) / sd if sd else math.inf for node in inside_out[-number:]
        }
        nearest, centre = inside_out[-number], statistics.median(core)
        gap, reach = abs(values[nearest] - centre), t_quantile(1 - chance / 2, len(core) - 1)
        is_unlike = one.are_logs and gap > UNLIKE
        if gap > one.least_gap and distances[nearest] > (min(FAR, reach) if is_unlike else reach):
            return [
                Deviation(node, one.name, one.launch, values[node], centre, distances[node])
                for node in inside_out[-number:]
            ]
    return []
