"""A device or a node, with its name in all messages and reports, and who is at fault.

A GPU goes by NVML's index, which ``nvidia-smi -i`` takes, UUID and PCI address. CUDA_VISIBLE_DEVICES and a lost GPU
renumber CUDA's devices, and with them local ranks. So the local rank is only beside the index, where it differs. It
stands alone where the index is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from pytest_ddpscale.plan.layout import Ranks
from pytest_ddpscale.run.reason import Reason
from pytest_ddpscale.run.strict_json import Count, Record

CPU = "cpu"
_LONGEST_UUID, _SHOWN_OF_UUID = 13, 12  # the first group of a UUID is enough to recognize a GPU


class Place(Record, cache_hash=True):  # thousands are keys
    """The place of a rank, a GPU that none uses, or with only a host a whole node.

    Attributes:
        local_rank: of the rank that uses it; None if none does.
        uuid: of the GPU, ``GPU-…`` from NVML, or ``cpu``; empty if it is not known.
        index: NVML's index of the GPU; on a CPU the local rank; None if it is not known.
        pci: NVML's PCI address of the GPU, ``00000000:17:00.0``; empty if it is not known.
    """

    host: str
    local_rank: Count | None = None
    uuid: str = ""
    index: Count | None = None
    pci: str = ""

    @property
    def identity(self) -> tuple[str, str | int | None]:
        """Equal for the same device: the host with the UUID, or without one NVML's index, or the local rank."""
        number = self.local_rank if self.index is None else self.index
        return self.host, self.uuid if self.uuid not in ("", CPU) else number

    @property
    def of_rank(self) -> tuple[str, int]:
        """Host and local rank, which stay the same when a relaunch renumbers ranks; -1 if no rank uses it."""
        return self.host, -1 if self.local_rank is None else self.local_rank

    @property
    def number(self) -> str:
        """``GPU 6``, ``GPU of local rank 2`` without an index, ``CPU rank 2`` on a CPU."""
        if self.uuid == CPU:
            return f"CPU rank {'–' if self.index is None else self.index}"
        if self.index is not None:
            return f"GPU {self.index}"
        return "GPU" if self.local_rank is None else f"GPU of local rank {self.local_rank}"

    @property
    def noun(self) -> str:
        """Plural noun for places of its kind."""
        return "CPU ranks" if self.uuid == CPU else "GPUs"

    @property
    def name(self) -> str:
        """``GPU 6 (GPU-5d3a91c2-…, 00000000:C1:00.0, local rank 2)``, as far as it is known."""
        return self._beside(self.uuid, self.pci)

    @property
    def label(self) -> str:
        """``GPU 6 (GPU-5d3a91c2-…, local rank 2)``: the name without the address."""
        return self._beside(self.uuid)

    @property
    def short(self) -> str:
        """``GPU 6 (GPU-5d3a91c2…, local rank 2)``: the name for a headline."""
        return self._beside(f"{self.uuid[:_SHOWN_OF_UUID]}…" if len(self.uuid) > _LONGEST_UUID else self.uuid)

    def _beside(self, *known: str) -> str:
        """The number with what else is known, and the local rank where it differs from a known index."""
        is_other = self.index is not None and self.local_rank not in (None, self.index)
        further = ", ".join(filter(None, (*known, f"local rank {self.local_rank}" if is_other else "")))
        return f"{self.number} ({further})" if further and self.uuid != CPU else self.number


@dataclass(frozen=True)
class Culprit:
    """Who is at fault, as verdicts and causes name it.

    Attributes:
        places: the GPU, or the node, or both ends of the link. A node that communicates slowly has the only slow GPU.
        because: the finding, in numbers.
        is_certain: False if either of two may be the odd one, if it stands out by too little to explain the failure, or
            if most nodes fail alike. Only certain culprits are a reason to drain.
        computed_wrong: whether it is named for wrong data, whatever its speed.
        slowdown: step time without communication over that of its peers; None if it is not named for slow computation.
        peers: number of ranks that `slowdown` is relative to; None without `slowdown`, and for a whole node.
        slow_rounds: number of rounds in `slowdown`; None without `peers`.
        rounds: number of all rounds.
        evidence: the sentence of `because`.
        shown: the GPU's readings in the failed arm, where they tell why it is slower than others there; else None.
    """

    kind: Literal["gpu", "node", "link"]
    places: tuple[Place, ...]
    because: Reason
    is_certain: bool = True
    computed_wrong: bool = False
    slowdown: float | None = None
    peers: int | None = None
    slow_rounds: int | None = None
    rounds: int | None = None
    evidence: str = ""
    shown: Reason | None = None

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


class JudgedPlace(Struct, frozen=True, cache_hash=True):  # thousands are looked up: faster than a dataclass
    """The place that a value belongs to.

    Attributes:
        kind: ``gpu``: one device. ``node``: all or a group of the ranks of one host. ``gang``: a group of ranks of
            several. ``link``: a pair of ranks.
        ranks: global ranks that measure a probe together, in order.
        host: host of the device or the group; for a gang that of its first rank, for a link that of the lower rank.
        ends: the device, or those of both ranks of a link; none of a group.
    """

    kind: Literal["gpu", "node", "gang", "link"]
    ranks: Ranks
    host: str
    ends: tuple[Place, ...] = ()

    @property
    def is_between_nodes(self) -> bool:
        """Whether it is a link between two nodes."""
        return any(end.host != self.host for end in self.ends)

    @property
    def name(self) -> str:
        """``GPU 3 of n1``, ``CPU rank 3 of n1``, ``n1``, ``ranks 0 to 15`` or ``GPUs 2 and 5 of n1``."""
        if self.kind == "node":
            return self.host
        if self.kind == "gang":
            return f"ranks {self.ranks[0]} to {self.ranks[-1]}"
        if self.kind == "gpu":
            return f"{self.ends[0].number} of {self.host}"
        (device, _, number), (_, _, other) = (end.number.rpartition(" ") for end in self.ends)
        if self.is_between_nodes:
            return f"{device} {number} of {self.host} and {other} of {self.ends[1].host}"
        return f"{device}s {number} and {other} of {self.host}"

    @property
    def noun(self) -> str:
        """Plural noun for its kind."""
        return (
            self.ends[0].noun if self.kind == "gpu" else {"node": "nodes", "gang": "groups", "link": "pairs"}[self.kind]
        )
