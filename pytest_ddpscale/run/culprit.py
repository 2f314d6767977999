"""Who is at fault: a GPU, a node or a link, as verdicts and causes name it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pytest_ddpscale.run.place import Place


@dataclass(frozen=True)
class Culprit:
    """A culprit: a GPU, a node, or a link, whose other end is in `peer_host` and so on.

    Attributes:
        gpu_index: NVML's index of the GPU, which ``nvidia-smi -i`` takes; on a CPU the local rank; None for a whole
            node, and if it is not known.
        gpu_uuid: from NVML; ``cpu`` without a GPU; None for a whole node.
        evidence: the finding, in numbers.
        is_certain: False if either of two may be the odd one, if it stands out by too little to explain the failure, or
            if most nodes fail alike. Only certain culprits are a reason to drain.
        computed_wrong: whether it is named for wrong data, whatever its speed.
        slowdown: step time without communication over that of its peers; None if it is not named for slow computation.
        peers: number of ranks that `slowdown` is relative to; None without `slowdown`, and for a whole node.
        slow_rounds: number of rounds in `slowdown`; None without `peers`.
        rounds: number of all rounds.
        local_rank: of the rank that uses the device; None for a whole node, and for a GPU that no rank uses.
        pci_bus_id: NVML's PCI address of the GPU; None for a whole node, and if it is not known.
    """

    kind: Literal["gpu", "node", "link"]
    host: str
    gpu_index: int | None
    gpu_uuid: str | None
    evidence: str
    peer_host: str | None = None
    peer_gpu_index: int | None = None
    peer_gpu_uuid: str | None = None
    is_certain: bool = True
    computed_wrong: bool = False
    slowdown: float | None = None
    peers: int | None = None
    slow_rounds: int | None = None
    rounds: int | None = None
    local_rank: int | None = None
    pci_bus_id: str | None = None
    peer_local_rank: int | None = None
    peer_pci_bus_id: str | None = None

    @property
    def place(self) -> tuple[str, int | None]:
        """Host and local rank, as measurements have them."""
        return self.host, self.local_rank

    @property
    def end(self) -> Place:
        """The GPU, the node or one end of the link."""
        return Place(self.host, self.local_rank, self.gpu_uuid or "", self.gpu_index, self.pci_bus_id or "")

    @property
    def peer(self) -> Place | None:
        """The other end of a link."""
        if self.peer_host is None:
            return None
        named = self.peer_local_rank, self.peer_gpu_uuid or "", self.peer_gpu_index, self.peer_pci_bus_id or ""
        return Place(self.peer_host, *named)

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for culprits that are the same GPU, node or link: GPUs go by UUID, whatever their numbers."""
        return self.kind, self.end.identity, self.peer.identity if self.peer else None


def gpu_culprit(place: Place, evidence: str, **more: Any) -> Culprit:
    """A rank's device as a culprit."""
    return Culprit(
        "gpu", place.host, place.index, place.uuid or None, evidence, local_rank=place.local_rank,
        pci_bus_id=place.pci or None, **more,
    )  # fmt: skip


def link_of(hosts: Sequence[str], ends: Sequence[Place | None], evidence: str, *, is_certain: bool = True) -> Culprit:
    """The link between two ranks' devices, or of a whole node at an end without one, as a culprit."""
    one, other = ends
    return Culprit(
        "link", hosts[0], one.index if one else None, one.uuid if one else None, evidence, hosts[1],
        other.index if other else None, other.uuid if other else None, is_certain=is_certain,
        local_rank=one.local_rank if one else None, pci_bus_id=(one.pci or None) if one else None,
        peer_local_rank=other.local_rank if other else None,
        peer_pci_bus_id=(other.pci or None) if other else None,
    )  # fmt: skip
