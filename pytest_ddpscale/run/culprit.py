"""Who is at fault: a GPU, a node or a link, as verdicts and causes name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_ddpscale.run.place import Place


@dataclass(frozen=True)
class Culprit:
    """A culprit.

    Attributes:
        places: the GPU, or the node, or both ends of the link. A node that communicates slowly has the only slow GPU.
        evidence: the finding, in numbers.
        is_certain: False if either of two may be the odd one, if it stands out by too little to explain the failure, or
            if most nodes fail alike. Only certain culprits are a reason to drain.
        computed_wrong: whether it is named for wrong data, whatever its speed.
        slowdown: step time without communication over that of its peers; None if it is not named for slow computation.
        peers: number of ranks that `slowdown` is relative to; None without `slowdown`, and for a whole node.
        slow_rounds: number of rounds in `slowdown`; None without `peers`.
        rounds: number of all rounds.
    """

    kind: Literal["gpu", "node", "link"]
    places: tuple[Place, ...]
    evidence: str
    is_certain: bool = True
    computed_wrong: bool = False
    slowdown: float | None = None
    peers: int | None = None
    slow_rounds: int | None = None
    rounds: int | None = None

    @property
    def place(self) -> Place:
        """The GPU or node; of a link the first end."""
        return self.places[0]

    @property
    def host(self) -> str:
        """Of that."""
        return self.place.host

    @property
    def hosts(self) -> tuple[str, ...]:
        """The node, or both of a link between nodes."""
        return tuple(dict.fromkeys(place.host for place in self.places))

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for culprits that are the same GPU, node or link: GPUs go by UUID, whatever their numbers."""
        return self.kind, *(place.identity for place in self.places)
