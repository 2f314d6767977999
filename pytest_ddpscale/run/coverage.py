"""Coverage of a run's machine: which nodes, GPUs and paths between nodes were tested, and by which measurements.

To accept a machine one has to know what was measured. So excluded, lost and idle parts are listed too, with the reason
if it is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from msgspec import Struct

from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import Why

# Kinds of tests, in the order of display.
SURVEY, PROBES, TRAINING, INFERENCE, PAIRS = "survey", "probes", "training", "inference", "pairs"


@dataclass(frozen=True)
class GpuCoverage:
    """One GPU.

    Attributes:
        tested_by: ``probes``, ``training``, ``inference``: those that decided requirements with it.
        problem: why it does not answer; empty if it does.
        rounds_missing: largest number of rounds of one arm or probe in which its peers were measured and it was not.
        missing_in: ids of the undecided requirements that were measured while it was missing.
    """

    place: Place
    tested_by: tuple[str, ...] = ()
    problem: str = ""
    rounds_missing: int = 0
    missing_in: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeCoverage:
    """One node: its GPUs that ranks may use or that do not answer; `left_out` says why nothing was launched on it."""

    host: str
    tested_by: tuple[str, ...]
    left_out: str = ""
    gpus: tuple[GpuCoverage, ...] = ()


class PathCoverage(Struct, frozen=True, array_like=True):
    """Two nodes that were measured as a pair; in JSON ``[node, other, GB/s, rounds]``.

    The smaller and the larger index in `Coverage.nodes`; bandwidth of the slowest rail in the best round.
    """

    node: int
    other: int
    gbps: float
    rounds: int


@dataclass(frozen=True)
class Coverage:
    """Coverage of one run.

    Attributes:
        nodes: all nodes with known names, in order of their names.
        unnamed_nodes: number of further planned nodes, which never reported.
        ranks: of the gang, on all nodes that were not left out; `ranks_per_node` as planned.
        paths: between nodes, measured directly.
        paths_planned: number of planned paths.
        why_paths_are_missing: why their measurement ended early; empty if it did not.
        between_nodes: ids of the requirements that were measured by ranks of several nodes together.
        over_all_nodes: those of them that were decided, and in which every node took part.
    """

    nodes: tuple[NodeCoverage, ...] = ()
    unnamed_nodes: int = 0
    ranks_per_node: int = 1
    ranks: int = 1
    paths: tuple[PathCoverage, ...] = ()
    paths_planned: int = 0
    why_paths_are_missing: Why = ""
    between_nodes: tuple[str, ...] = ()
    over_all_nodes: tuple[str, ...] = ()

    @property
    def node_count(self) -> int:
        """Number of nodes of the run, including those that were left out or lost."""
        return len(self.nodes) + self.unnamed_nodes

    @property
    def is_on_several_nodes(self) -> bool:
        """Whether the run has several nodes, so that links between them matter."""
        return self.node_count > 1

    @property
    def paths_there_are(self) -> int:
        """Number of pairs of nodes."""
        return math.comb(self.node_count, 2)

    @cached_property
    def gpus(self) -> list[GpuCoverage]:
        """All GPUs."""
        return [gpu for node in self.nodes for gpu in node.gpus]

    @cached_property
    def idle_gpus(self) -> list[GpuCoverage]:
        """GPUs not tested by training, if anything was trained; else not by probes, or else not by inference."""
        by = {kind for gpu in self.gpus for kind in gpu.tested_by}
        needed = next((kind for kind in (TRAINING, PROBES, INFERENCE) if kind in by), PROBES)
        return [gpu for gpu in self.gpus if needed not in gpu.tested_by]

    @property
    def nodes_absent(self) -> list[str]:
        """Nodes that were left out or never reported."""
        absent = [f"{node.host} (left out: {node.left_out})" for node in self.nodes if node.left_out]
        return absent + ["a node that never reported"] * self.unnamed_nodes
