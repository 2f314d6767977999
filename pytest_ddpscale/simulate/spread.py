"""How much the sound nodes of a cluster differ, and one node from launch to launch."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_ddpscale.plan.layout import Layout

COMPUTING = "computing"  # what training and matrix products share


@dataclass(frozen=True)
class NodeSpread:
    """Relative standard deviations of what sound ranks take for the same work.

    Attributes:
        node_sd: between nodes, in all launches alike.
        gpu_sd: between GPUs of a node, in all launches alike.
        launch_sd: of each node from launch to launch.
        seed: of the cluster: with the same one its nodes and GPUs are the same.
    """

    node_sd: float = 0.0
    gpu_sd: float = 0.0
    launch_sd: float = 0.0
    seed: int = 0

    def factors(self, what: str, layout: Layout, launch: int) -> NDArray[np.float64]:
        """Factor on the time that each rank takes, (ranks,).

        Args:
            what: is done: `COMPUTING`, or the name of a probe, in which other nodes are slow than in others.
            layout: of the ranks.
            launch: number of the launch.
        """
        if not (self.node_sd or self.gpu_sd or self.launch_sd):
            return np.ones(layout.world_size)
        same = np.random.default_rng([self.seed, zlib.crc32(what.encode())])
        this = np.random.default_rng([self.seed, zlib.crc32(what.encode()), launch])
        # One after the other for each node, so that a node is the same however many there are.
        shape = layout.nodes, layout.ranks_per_node
        lasting = same.standard_normal((layout.nodes, layout.ranks_per_node + 1))
        logs = self.node_sd * lasting[:, :1] + self.gpu_sd * lasting[:, 1:]
        logs = logs + self.launch_sd * this.standard_normal((layout.nodes, 1))
        return np.exp(logs.reshape(shape)).ravel()


ALIKE = NodeSpread()
