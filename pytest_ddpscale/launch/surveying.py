"""The supervisor's side of the nodes' surveys: clocks compared, silence written down."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from pytest_ddpscale.node.protocol import NodeSurvey
from pytest_ddpscale.results.survey_record import ClockSkew, PostMortem, Survey


@dataclass
class Surveys:
    """What the agents have said so far of what their nodes are, and of their clocks.

    Attributes:
        found: surveys, by node.
        clocks: by node, what its clock showed and when the answer arrived, on the supervisor's; unix seconds.
    """

    found: dict[int, Survey] = field(default_factory=dict)
    clocks: dict[int, tuple[float, float]] = field(default_factory=dict)

    def hear(self, news: NodeSurvey) -> None:
        """Take note of a survey; a node's first one counts."""
        self.found.setdefault(news.node, news.survey)

    def post_mortems(self) -> tuple[PostMortem, ...]:
        """What was found, as records of what GPUs were after ranks had failed, in the nodes' order."""
        return tuple(PostMortem(survey=found) for _, found in sorted(self.found.items()))

    def records(self, hosts: Mapping[int, str], asked_unix_s: float) -> list[Survey]:
        """One record per node, in the nodes' order.

        Args:
            hosts: names of the nodes that there are, by index.
            asked_unix_s: when the supervisor asked for their clocks, on its own.
        """
        records = []
        for node, host in sorted(hosts.items()):
            found = self.found.get(node) or Survey(host, time.time(), "its agent sent no survey in time")
            skew = clock_skew(asked_unix_s, *self.clocks[node]) if node in self.clocks else None
            records.append(replace(found, clock=skew))
        return records


def clock_skew(asked_unix_s: float, said_unix_s: float, heard_unix_s: float) -> ClockSkew | None:
    """How far a node's clock is ahead, from one question and its answer.

    The node read its clock between the two, whose times are the supervisor's: Cristian's algorithm
    (F. Cristian, Probabilistic clock synchronization, Distributed Computing 3, 1989), as an interval.

    Returns:
        None if the supervisor's own clock went back meanwhile.
    """
    if not heard_unix_s >= asked_unix_s or not math.isfinite(said_unix_s):
        return None
    return ClockSkew(said_unix_s - heard_unix_s, said_unix_s - asked_unix_s)
