"""What of a run's machine was tested, and by what: its nodes, their GPUs and the paths between the nodes.

Whoever accepts a machine has to know what of it was measured. What was left out, lost or idle is in here too, with
the reason as far as it is known.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from msgspec import Struct

# By what something is tested, in the order in which it is named.
SURVEY, PROBES, TRAINING, INFERENCE, PAIRS = "survey", "probes", "training", "inference", "pairs"


@dataclass(frozen=True)
class GpuCoverage:
    """One GPU.

    Attributes:
        index: of the rank that uses it, on its host; None if no rank can.
        uuid: as NVML has it; empty if nobody ever saw it.
        tested_by: ``probes``, ``training``, ``inference``: those whose requirements were decided with it.
        problem: why it does not answer; empty if it does.
        rounds_missing: rounds of one arm or probe in which its peers were measured and it was not, the most of all.
        missing_in: ids of the requirements that are not decided and were measured while it was missing.
    """

    index: int | None
    uuid: str
    tested_by: tuple[str, ...] = ()
    problem: str = ""
    rounds_missing: int = 0
    missing_in: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``GPU 3``, or its UUID if it has no number."""
        return f"GPU {self.index}" if self.index is not None else (self.uuid or "a GPU without a UUID")


@dataclass(frozen=True)
class NodeCoverage:
    """One node; why nothing was launched on it, if so; and its GPUs that ranks may use or that do not answer."""

    host: str
    tested_by: tuple[str, ...]
    left_out: str = ""
    gpus: tuple[GpuCoverage, ...] = ()


class PathCoverage(Struct, frozen=True, array_like=True):
    """Two nodes that were measured with each other and with nobody else; in JSON ``[node, other, GB/s, rounds]``.

    The smaller and the larger place in `Coverage.nodes`; bandwidth of the slowest rail of each round, the best of them.
    """

    node: int
    other: int
    gbps: float
    rounds: int


@dataclass(frozen=True)
class Coverage:
    """Of one run.

    Attributes:
        nodes: all whose names are known, in order of their names.
        unnamed_nodes: how many more were planned, of which nothing was ever heard.
        ranks: of the gang, on all nodes that were not left out; `ranks_per_node` as it was planned.
        paths: between nodes, measured directly.
        paths_planned: how many were to be.
        why_paths_are_missing: what ended their measuring early; empty if nothing did.
        between_nodes: ids of the requirements that were measured by ranks of several nodes together.
        over_all_nodes: those of them that were decided, and in which every node took part.
    """

    nodes: tuple[NodeCoverage, ...] = ()
    unnamed_nodes: int = 0
    ranks_per_node: int = 1
    ranks: int = 1
    paths: tuple[PathCoverage, ...] = ()
    paths_planned: int = 0
    why_paths_are_missing: str = ""
    between_nodes: tuple[str, ...] = ()
    over_all_nodes: tuple[str, ...] = ()

    @property
    def node_count(self) -> int:
        """Nodes of the run: also those that were left out or lost."""
        return len(self.nodes) + self.unnamed_nodes

    @property
    def is_on_several_nodes(self) -> bool:
        """Whether what is between nodes matters."""
        return self.node_count > 1

    @property
    def paths_there_are(self) -> int:
        """Pairs of nodes."""
        return math.comb(self.node_count, 2)

    @cached_property
    def gpus(self) -> list[tuple[NodeCoverage, GpuCoverage]]:
        """All GPUs, with their nodes."""
        return [(node, gpu) for node in self.nodes for gpu in node.gpus]

    @cached_property
    def idle_gpus(self) -> list[tuple[NodeCoverage, GpuCoverage]]:
        """GPUs that took no part: in training, if anything was trained; else in probes, or else in inference."""
        by = {kind for _, gpu in self.gpus for kind in gpu.tested_by}
        needed = next((kind for kind in (TRAINING, PROBES, INFERENCE) if kind in by), PROBES)
        return [(node, gpu) for node, gpu in self.gpus if needed not in gpu.tested_by]

    @property
    def nodes_absent(self) -> list[str]:
        """What was left out, or never heard of."""
        absent = [f"{node.host} (left out: {node.left_out})" for node in self.nodes if node.left_out]
        return absent + ["a node that was never heard of"] * self.unnamed_nodes

    @property
    def nodes_idle(self) -> list[str]:
        """Nodes without any part in what was decided."""
        return [n.host for n in self.nodes if not n.left_out and not {PROBES, TRAINING} & set(n.tested_by)]

    @property
    def untested_paths(self) -> Iterable[tuple[str, str]]:
        """Pairs of nodes that were not measured directly, in order."""
        tested = {(path.node, path.other) for path in self.paths}
        hosts, pairs = [node.host for node in self.nodes], combinations(range(len(self.nodes)), 2)
        return ((hosts[one], hosts[other]) for one, other in pairs if (one, other) not in tested)

    @property
    def median_gbps(self) -> float:
        """Of the paths that were measured; 0 without any."""
        return statistics.median(path.gbps for path in self.paths) if self.paths else 0.0
