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
        lossy_nodes: with anybody, messages stall in `lossy_share` of the measurements, as fast as the fastest is.
        lossy_links: pairs of nodes with such messages.
        lossy_share: as measured in the Slurm lab, with 5 % of the packets lost both ways.
        restless_share: of the measurements of any pair that stall, because the machine is busy.
        factor: what is left of a slow one's bandwidth.
        noise: every measurement is off by up to this share.
        seed: of the noise.
    """

    nodes: int
    bad_nodes: Collection[int] = ()
    bad_links: Collection[NodePair] = ()
    lossy_nodes: Collection[int] = ()
    lossy_links: Collection[NodePair] = ()
    lossy_share: float = 0.93
    restless_share: float = 0.0
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

    def is_stalled(self, pair: NodePair) -> bool:
        """Whether a message of one measurement stalls."""
        is_lossy = pair in self.lossy_links or not set(self.lossy_nodes).isdisjoint(pair)
        share = max(self.restless_share, self.lossy_share * is_lossy)
        return share > 0 and self._random.random() < share

    def search(self, slow_share: float = 0.7) -> list[PairResult]:
        """Measure round after round until there is nothing more to find out."""
        results: list[PairResult] = []
        number = 0
        while pairs := next_round(self.nodes, results, slow_share):
            results += [PairResult(number, pair, self.gbps(pair), self.is_stalled(pair)) for pair in pairs]
            number += 1
        return results
