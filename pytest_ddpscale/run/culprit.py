"""Who is at fault: a GPU, a node or a link, as verdicts and causes name it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pytest_ddpscale.run.records import RankPlace


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
    def identity(self) -> tuple[object, ...]:
        """Equal for culprits that are the same GPU, node or link: GPUs go by UUID, whatever their numbers."""
        end = device_identity(self.gpu_uuid, self.gpu_index, self.local_rank)
        peer = device_identity(self.peer_gpu_uuid, self.peer_gpu_index, self.peer_local_rank)
        return self.kind, (self.host, end), (self.peer_host, peer)


def device_identity(uuid: str | None, index: int | None, local_rank: int | None) -> str | int | None:
    """What identifies a device of a host: the UUID, or without one NVML's index, or the local rank."""
    if uuid and uuid != "cpu":
        return uuid
    return local_rank if index is None else index


def gpu_culprit(place: RankPlace, evidence: str, **more: Any) -> Culprit:
    """A rank's device as a culprit."""
    address = place.pci_bus_id or None
    return Culprit(
        "gpu", place.host, place.gpu_index, place.device, evidence, local_rank=place.local_rank, pci_bus_id=address,
        **more,
    )  # fmt: skip


def link_of(
    hosts: Sequence[str], ends: Sequence[RankPlace | None], evidence: str, *, is_certain: bool = True
) -> Culprit:
    """The link between two ranks' devices, or of a whole node at an end without one, as a culprit."""
    one, other = ends
    return Culprit(
        "link", hosts[0], one.gpu_index if one else None, one.device if one else None, evidence, hosts[1],
        other.gpu_index if other else None, other.device if other else None, is_certain=is_certain,
        local_rank=one.local_rank if one else None, pci_bus_id=(one.pci_bus_id or None) if one else None,
        peer_local_rank=other.local_rank if other else None,
        peer_pci_bus_id=(other.pci_bus_id or None) if other else None,
    )  # fmt: skip
