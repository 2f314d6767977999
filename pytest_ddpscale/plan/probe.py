"""Probes: short checks of one thing a GPU, or a group of them, can do. No model is trained.

A probe is known by its name, which says all that it does: ``matmul-bf16``, ``memory-copy``, ``host-to-device``,
``device-to-host``, ``all-reduce-32mib``, ``all-gather-1gib``, ``reduce-scatter-25mib``, ``send-recv-256mib``.

Weak scaling at full batch hardly sees a broken link: a step of 430 ms hides an all-reduce of 20 ms. Probes do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

ProbeKind = Literal[
    "matmul",
    "memory-copy",
    "host-to-device",
    "device-to-host",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "send-recv",
]
MatmulPrecision = Literal["fp32", "fp16", "bf16", "fp8"]

STUDY_ID = "probes"
COLLECTIVES: tuple[ProbeKind, ...] = ("all-reduce", "all-gather", "reduce-scatter")
# Of one device by itself; all devices are measured at once, as they are used.
SINGLE_DEVICE: tuple[ProbeKind, ...] = ("matmul", "memory-copy", "host-to-device", "device-to-host")
_NAME = re.compile(
    r"matmul-(?P<precision>fp32|fp16|bf16|fp8)|(?P<plain>memory-copy|host-to-device|device-to-host)"
    r"|(?P<sized>all-reduce|all-gather|reduce-scatter|send-recv)-(?P<count>[1-9][0-9]{0,3})(?P<unit>kib|mib|gib)"
)
# Every record of a probe asks, and there are hundreds of thousands of few names.
_match = lru_cache(maxsize=256)(_NAME.fullmatch)
_UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30}
NAMES_IN_WORDS = (
    "matmul-fp32|fp16|bf16|fp8, memory-copy, host-to-device, device-to-host, "
    "or all-reduce|all-gather|reduce-scatter|send-recv with a message size such as -32mib"
)


def is_probe_name(name: str) -> bool:
    """Whether there is a probe of that name."""
    return _match(name) is not None


@dataclass(frozen=True)
class Probe:
    """One probe among so many ranks.

    Attributes:
        name: what is done, as above.
        world_size: ranks that communicate; 1 for what one device does by itself. What fits a node is done by the first
            ranks of every node at once; what is larger once, over the first ranks of all. ``send-recv`` takes
            pairs of them in turn, see `pytest_ddpscale.plan.probe_pairs`.
    """

    name: str
    world_size: int = 1

    def __post_init__(self) -> None:
        match = _match(self.name)
        if match is None:
            raise ValueError(f"probe {self.name!r} is not known; expected {NAMES_IN_WORDS}")
        if type(self.world_size) is not int or self.world_size < 1:
            raise ValueError(f"world_size of a probe is {self.world_size!r}; expected a whole number from 1 up")
        if self.kind in SINGLE_DEVICE and self.world_size != 1:
            raise ValueError(f"{self.name} is done by one device; expected world_size 1")
        if self.kind not in SINGLE_DEVICE and self.world_size < 2:
            raise ValueError(f"{self.name} takes at least 2 ranks")

    @property
    def kind(self) -> ProbeKind:
        """The name without precision or size."""
        match = _match(self.name)
        assert match is not None  # __post_init__
        return match["plain"] or match["sized"] or "matmul"  # type: ignore[return-value]

    @property
    def precision(self) -> MatmulPrecision | None:
        """Of a matmul."""
        match = _match(self.name)
        assert match is not None
        return match["precision"]  # type: ignore[return-value]

    @property
    def message_bytes(self) -> int | None:
        """Of what communicates: nccl-tests' size, which for all-gather and reduce-scatter is that of the whole."""
        match = _match(self.name)
        assert match is not None
        return int(match["count"]) * _UNITS[match["unit"]] if match["sized"] else None

    @property
    def id(self) -> str:
        """``all-reduce-32mib@8``; ``matmul-bf16`` of a single device. Unique in a plan."""
        return self.name if self.world_size == 1 else f"{self.name}@{self.world_size}"


@dataclass(frozen=True)
class ProbeStudy:
    """All probes of a run, in interleaved rounds.

    Attributes:
        probes: each timed once in every round, in an order drawn for that round.
        rounds: at most.
        block_s: seconds that one probe in one round aims at.
        id: ``probes``: the only one of its kind in a plan.
    """

    probes: tuple[Probe, ...]
    rounds: int
    block_s: float
    id: str = field(init=False, default="")

    def __post_init__(self) -> None:
        if type(self.rounds) is not int or self.rounds < 1:
            raise ValueError(f"rounds of the probes is {self.rounds!r}; expected a whole number from 1 up")
        if type(self.block_s) not in (int, float) or not self.block_s > 0:
            raise ValueError(f"block_s of the probes is {self.block_s!r}; expected seconds")
        if len({probe.id for probe in self.probes}) != len(self.probes):
            raise ValueError("a probe is there twice")
        object.__setattr__(self, "id", STUDY_ID)

    @property
    def world_size(self) -> int:
        """The most ranks that any probe needs."""
        return max((probe.world_size for probe in self.probes), default=0)
