"""Outliers among nodes.

The method follows SuperBench (Xiong et al., USENIX ATC 2024), which needs no criterion of health: take the centre of
all nodes, leave out those too different from it, and repeat until none is left out. In SuperBench a node is too
different if its similarity is below 0.95. Here it is an outlier if it is beyond the spread of the remaining nodes, at
the chance `FALSE_EXCLUSIONS`. With few nodes, whose spread is uncertain, it is also an outlier if it is both `UNLIKE`
the others and `FAR` beyond their spread. Differences below `ValueSet.least_gap` never count.

In one set of values, the number of outliers is the largest k such that, of the k values farthest from the median, the
nearest is still beyond the prediction interval of the others. This finds two bad nodes that hide each other by widening
the spread (Rosner 1983, Technometrics 25(2), the generalized ESD test).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.judge.stats import t_quantile

# Chance that any node of a sound cluster is left out, over all nodes and values.
FALSE_EXCLUSIONS = 0.01
FEWEST_OTHERS = 3  # nodes that a node is compared with
UNLIKE = 0.03  # relative to the others
FAR = 6.0  # standard deviations


@dataclass(frozen=True)
class ValueSet:
    """Values of nodes in one requirement.

    Attributes:
        name: of the requirement.
        values: one for each node.
        least_sd: least spread assumed.
        least_gap: nodes nearer than this to the others' median are never outliers.
        are_logs: whether differences of the values are relative.
        launch: of the values; empty for means over launches.
    """

    name: str
    values: Mapping[str, float]
    least_sd: float = 0.0
    least_gap: float = 0.0
    are_logs: bool = False
    launch: str = ""


@dataclass(frozen=True)
class Deviation:
    """An outlier.

    Attributes:
        node: its name.
        name: of the set of values in which it is farthest from the others.
        launch: of that set; empty for means over launches.
        value: the node's value.
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
    """Nodes to leave out, in the order in which they were found.

    Args:
        sets: of values; an outlier in any of them is left out of all.
        most: most outliers of one set at a time; the total may be larger.
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
    """Outliers of one set, at this chance of leaving out a node that belongs."""
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
