"""A network of nodes that is measured pair by pair, as the gang does it, without ranks."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from pytest_ddpscale.plan.pairing import NodePair, PairResult, next_round

FAST_GBPS = 10.0


@dataclass
class Network:
    """Nodes of which some, or some links between which, are slow.

    Attributes:
        nodes: how many.
        bad_nodes: slow with everybody.
        bad_links: slow pairs of nodes.
        factor: what is left of a slow one's bandwidth.
        noise: every measurement is off by up to this share.
        seed: of the noise.
    """

    nodes: int
    bad_nodes: Collection[int] = ()
    bad_links: Collection[NodePair] = ()
    factor: float = 0.4
    noise: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def gbps(self, pair: NodePair) -> float:
        """One measurement."""
        slow = pair in self.bad_links or not set(self.bad_nodes).isdisjoint(pair)
        noise = self._random.uniform(1 - self.noise, 1 + self.noise)
        return FAST_GBPS * noise * (self.factor if slow else 1.0)

    def search(self, slow_share: float = 0.7) -> list[PairResult]:
        """Measure round after round until there is nothing more to find out."""
        results: list[PairResult] = []
        number = 0
        while pairs := next_round(self.nodes, results, slow_share):
            results += [PairResult(number, pair, self.gbps(pair)) for pair in pairs]
            number += 1
        return results
