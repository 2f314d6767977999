"""Probes: short checks of one thing a GPU, or a group of them, can do. No model is trained.

A probe is known by its name, which says all that it does: ``matmul-bf16``, ``memory-copy``, ``host-to-device``,
``device-to-host``, ``all-reduce-32mib``, ``all-gather-1gib``, ``reduce-scatter-25mib``, ``broadcast-4kib``,
``reduce-4kib``, ``all-to-all-1mib``, ``send-recv-256mib``.

Weak scaling at full batch hardly sees a broken link: a step of 430 ms hides an all-reduce of 20 ms. Probes do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pytest_ddpscale.plan.layout import refuse_below_one

ProbeKind = Literal[
    "matmul",
    "memory-copy",
    "host-to-device",
    "device-to-host",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "broadcast",
    "reduce",
    "all-to-all",
    "send-recv",
]
MatmulPrecision = Literal["fp32", "fp16", "bf16", "fp8"]

STUDY_ID: Literal["probes"] = "probes"
COLLECTIVES: tuple[ProbeKind, ...] = (
    "all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all",
)  # fmt: skip
# Of one device by itself; all devices are measured at once, as they are used.
SINGLE_DEVICE: tuple[ProbeKind, ...] = ("matmul", "memory-copy", "host-to-device", "device-to-host")
_SIZED = "|".join((*COLLECTIVES, "send-recv"))
_NAME = re.compile(
    r"matmul-(?P<precision>fp32|fp16|bf16|fp8)|(?P<plain>memory-copy|host-to-device|device-to-host)"
    rf"|(?P<sized>{_SIZED})-(?P<count>[1-9][0-9]{{0,3}})(?P<unit>kib|mib|gib)"
)
# Every record of a probe asks, and there are hundreds of thousands of few names.
_match = lru_cache(maxsize=256)(_NAME.fullmatch)
_UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30}
NAMES_IN_WORDS = (
    "matmul-fp32|fp16|bf16|fp8, memory-copy, host-to-device, device-to-host, "
    f"or {_SIZED} with a message size such as -32mib"
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
        if not is_probe_name(self.name):
            raise ValueError(f"probe {self.name!r} is not known; expected {NAMES_IN_WORDS}")
        refuse_below_one(self, "a probe", "world_size")
        if self.kind in SINGLE_DEVICE and self.world_size != 1:
            raise ValueError(f"{self.name} is done by one device; expected world_size 1")
        if self.kind not in SINGLE_DEVICE and self.world_size < 2:
            raise ValueError(f"{self.name} takes at least 2 ranks")

    @property
    def kind(self) -> ProbeKind:
        """The name without precision or size."""
        return self._parts["plain"] or self._parts["sized"] or "matmul"  # type: ignore[return-value]

    @property
    def precision(self) -> MatmulPrecision | None:
        """Of a matmul."""
        return self._parts["precision"]  # type: ignore[return-value]

    @property
    def message_bytes(self) -> int | None:
        """Of what communicates: nccl-tests' size, which for all-gather and reduce-scatter is that of the whole.

        Of an all-to-all it is what each rank sends to all of them, itself among them.
        """
        return int(self._parts["count"]) * _UNITS[self._parts["unit"]] if self._parts["sized"] else None

    @property
    def _parts(self) -> re.Match[str]:
        match = _match(self.name)
        assert match is not None  # __post_init__
        return match

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
        iteration_limit_s: a probe that takes longer than this to be done once is left out, and larger messages of the
            same kind with it; None to do each, however long it takes.
        without_limit: ids of those that are done however long they take, as something is required of them.
        swept_rounds: in so many each probe is timed, whether something is required of it or not.
    """

    probes: tuple[Probe, ...]
    rounds: int
    block_s: float
    iteration_limit_s: float | None = None
    without_limit: tuple[str, ...] = ()
    swept_rounds: int = 0
    id: Literal["probes"] = "probes"

    def __post_init__(self) -> None:
        refuse_below_one(self, "the probes", "rounds")
        if not self.block_s > 0:
            raise ValueError(f"block_s of the probes is {self.block_s!r}; expected seconds")
        if self.iteration_limit_s is not None and not self.iteration_limit_s > 0:
            raise ValueError(f"iteration_limit_s of the probes is {self.iteration_limit_s!r}; expected seconds or none")
        if len({probe.id for probe in self.probes}) != len(self.probes):
            raise ValueError("a probe is there twice")

    def limit_s(self, probe: Probe) -> float | None:
        """How long one iteration of a probe may take; None without a limit."""
        return None if probe.id in self.without_limit else self.iteration_limit_s

    @property
    def world_size(self) -> int:
        """The most ranks that any probe needs."""
        return max((probe.world_size for probe in self.probes), default=0)
