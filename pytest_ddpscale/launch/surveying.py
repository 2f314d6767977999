"""The supervisor's side of the nodes' surveys: pieces put together, clocks compared, silence written down."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_ddpscale.node.chunks import MOST_PIECES, joined
from pytest_ddpscale.results.survey_record import ClockSkew, Survey


@dataclass
class Surveys:
    """What the agents have said so far of what their nodes are, and of their clocks.

    Attributes:
        found: surveys as JSON types, by node.
        pieces: of those that are still coming, by node and number.
        clocks: by node, what its clock showed and when the answer arrived, on the supervisor's; unix seconds.
    """

    found: dict[int, dict[str, Any]] = field(default_factory=dict)
    pieces: dict[int, dict[int, str]] = field(default_factory=dict)
    clocks: dict[int, tuple[float, float]] = field(default_factory=dict)

    def hear_piece(self, message: Mapping[str, Any]) -> None:
        """Take note of a ``survey`` message; one that no agent makes is passed over."""
        node, part, parts, data = (message.get(name) for name in ("node", "part", "parts", "data"))
        if type(node) is not int or type(part) is not int or type(parts) is not int or not isinstance(data, str):
            return
        if node in self.found or not 0 <= part < parts <= MOST_PIECES:
            return
        pieces = self.pieces.setdefault(node, {})
        pieces[part] = data
        if all(number in pieces for number in range(parts)):
            del self.pieces[node]
            self.found[node] = _survey([pieces[number] for number in range(parts)], str(message.get("host")))

    def hear_clock(self, message: Mapping[str, Any]) -> None:
        """Take note of a ``clock`` message; one that no agent makes is passed over."""
        node, said, heard = (message.get(name) for name in ("node", "unix_s", "heard_unix_s"))
        if type(node) is int and isinstance(said, float) and isinstance(heard, float):
            self.clocks[node] = said, heard

    def post_mortems(self) -> tuple[dict[str, Any], ...]:
        """What was found, as records of what GPUs were after ranks had failed, in the nodes' order."""
        return tuple(Survey.from_json(found).as_post_mortem() for _, found in sorted(self.found.items()))

    def records(self, hosts: Mapping[int, str], asked_unix_s: float) -> list[dict[str, Any]]:
        """One record per node, in the nodes' order.

        Args:
            hosts: names of the nodes that there are, by index.
            asked_unix_s: when the supervisor asked for their clocks, on its own.
        """
        records = []
        for node, host in sorted(hosts.items()):
            record = self.found.get(node) or Survey(host, time.time(), "its agent sent no survey in time").as_json()
            skew = clock_skew(asked_unix_s, *self.clocks[node]) if node in self.clocks else None
            records.append({**record, "clock": asdict(skew) if skew else None})
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


def _survey(pieces: list[str], host: str) -> dict[str, Any]:
    try:
        return Survey.from_json(joined(pieces)).as_json()
    except (AttributeError, TypeError, ValueError) as error:
        return Survey(host, time.time(), f"its survey could not be read ({error})").as_json()
