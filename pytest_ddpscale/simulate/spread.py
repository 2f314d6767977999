"""Differences between the sound nodes of a cluster, and of a node between launches."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import operation_of

COMPUTING = "computing"  # shared by training and matrix products


@dataclass(frozen=True)
class NodeSpread:
    """Relative standard deviations of the time that sound ranks take for the same work.

    Attributes:
        node_sd: between nodes, the same in all launches.
        gpu_sd: between GPUs of a node, the same in all launches. Not in what they do together: the bandwidth that a
            sound node reaches is that of its slowest GPU already.
        launch_sd: of each node between launches.
        seed: of the cluster; the same seed gives the same nodes and GPUs.
    """

    node_sd: float = 0.0
    gpu_sd: float = 0.0
    launch_sd: float = 0.0
    seed: int = 0

    def factors(self, what: str, layout: Layout, launch: int) -> NDArray[np.float64]:
        """Factor on each rank's time, (ranks,).

        Args:
            what: `COMPUTING` or the name of a probe; each has its own slow nodes.
            layout: of the ranks.
            launch: number of the launch.
        """
        if not (self.node_sd or self.gpu_sd or self.launch_sd):
            return np.ones(layout.world_size)
        same = np.random.default_rng([self.seed, zlib.crc32(what.encode())])
        this = np.random.default_rng([self.seed, zlib.crc32(what.encode()), launch])
        # Drawn node by node, so that a node's values do not depend on the number of nodes.
        shape = layout.nodes, layout.ranks_per_node
        lasting = same.standard_normal((layout.nodes, layout.ranks_per_node + 1))
        logs = self.node_sd * lasting[:, :1] + (0.0 if _is_shared(what) else self.gpu_sd) * lasting[:, 1:]
        logs = logs + self.launch_sd * this.standard_normal((layout.nodes, 1))
        return np.exp(logs.reshape(shape)).ravel()


def _is_shared(what: str) -> bool:
    probe = operation_of(what)
    return probe is not None and not probe.is_single_device


ALIKE = NodeSpread()
