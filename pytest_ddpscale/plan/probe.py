"""Probes: short tests of one operation on a GPU or a group of GPUs, without training a model.

A probe's name defines it completely: ``matmul-bf16``, ``memory-copy``, ``host-to-device``, ``device-to-host``,
``all-reduce-32mib``, ``all-gather-1gib``, ``reduce-scatter-25mib``, ``broadcast-4kib``, ``reduce-4kib``,
``all-to-all-1mib``, ``send-recv-256mib``.

Probes find broken links that weak scaling at full batch hides: a step of 430 ms hides an all-reduce of 20 ms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pytest_ddpscale.plan.words import refuse_below_one

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
# Probes of a single device; all devices run them at once, as in real use.
SINGLE_DEVICE: tuple[ProbeKind, ...] = ("matmul", "memory-copy", "host-to-device", "device-to-host")
_SIZED = "|".join((*COLLECTIVES, "send-recv"))
_NAME = re.compile(
    r"matmul-(?P<precision>fp32|fp16|bf16|fp8)|(?P<plain>memory-copy|host-to-device|device-to-host)"
    rf"|(?P<sized>{_SIZED})-(?P<count>[1-9][0-9]{{0,3}})(?P<unit>kib|mib|gib)"
)
# Cached, because hundreds of thousands of records share a few names.
_match = lru_cache(maxsize=256)(_NAME.fullmatch)
_UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30}
NAMES_IN_WORDS = (
    "matmul-fp32|fp16|bf16|fp8, memory-copy, host-to-device, device-to-host, "
    f"or {_SIZED} with a message size such as -32mib"
)


def is_probe_name(name: str) -> bool:
    """Whether a name is that of a probe."""
    return _match(name) is not None


def name_with_size(kind: ProbeKind, message_bytes: int) -> str:
    """Name of a probe that sends messages. Raises ValueError if a name cannot have their size."""
    unit = max((unit for unit in _UNITS if message_bytes % _UNITS[unit] == 0), key=_UNITS.__getitem__, default="kib")
    name = f"{kind}-{message_bytes / _UNITS[unit]:g}{unit}"
    if not is_probe_name(name):
        raise ValueError(f"messages of {message_bytes} bytes; expected 1 KiB or a multiple")
    return name


@dataclass(frozen=True)
class Probe:
    """One probe on a number of ranks.

    Attributes:
        name: the operation, as above.
        world_size: ranks that communicate; 1 for a single device. If they fit a node, the first ranks of every node run
            the probe at once; otherwise it runs once, over the first ranks of all nodes. ``send-recv`` takes pairs of
            ranks in turn, see `pytest_ddpscale.plan.probe_pairs`.
    """

    name: str
    world_size: int = 1

    def __post_init__(self) -> None:
        if not is_probe_name(self.name):
            raise ValueError(f"unknown probe {self.name!r}; expected {NAMES_IN_WORDS}")
        refuse_below_one(self, "a probe", "world_size")
        if self.kind in SINGLE_DEVICE and self.world_size != 1:
            raise ValueError(f"{self.name} runs on one device; expected world_size 1")
        if self.kind not in SINGLE_DEVICE and self.world_size < 2:
            raise ValueError(f"{self.name} needs at least 2 ranks")

    @property
    def kind(self) -> ProbeKind:
        """The name without precision or size."""
        return self._parts["plain"] or self._parts["sized"] or "matmul"  # type: ignore[return-value]

    @property
    def precision(self) -> MatmulPrecision | None:
        """Precision of a matmul; None for other probes."""
        return self._parts["precision"]  # type: ignore[return-value]

    @property
    def message_bytes(self) -> int | None:
        """Message size of a communicating probe, as in nccl-tests; None for other probes.

        For all-gather and reduce-scatter it is the size of the whole; for all-to-all, what each rank sends to all
        ranks, including itself.
        """
        return int(self._parts["count"]) * _UNITS[self._parts["unit"]] if self._parts["sized"] else None

    @property
    def _parts(self) -> re.Match[str]:
        match = _match(self.name)
        assert match is not None  # __post_init__
        return match

    @property
    def id(self) -> str:
        """``all-reduce-32mib@8``; ``matmul-bf16`` for a single device. Unique in a plan."""
        return self.name if self.world_size == 1 else f"{self.name}@{self.world_size}"


@dataclass(frozen=True)
class ProbeStudy:
    """All probes of a run, in interleaved rounds.

    Attributes:
        probes: each timed once in every round, in an order drawn for that round.
        rounds: largest number of rounds.
        block_s: target seconds of one probe in one round.
        iteration_limit_s: a probe whose single iteration takes longer is skipped, and larger messages of its kind with
            it; None for no limit.
        without_limit: ids of probes without that limit, because a requirement needs them.
        swept_rounds: number of rounds in which all probes are timed, with or without a requirement.
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
            raise ValueError("a probe is listed twice")

    def limit_s(self, probe: Probe) -> float | None:
        """How long one iteration of a probe may take; None without a limit."""
        return None if probe.id in self.without_limit else self.iteration_limit_s

    @property
    def world_size(self) -> int:
        """The most ranks that any probe needs."""
        return max((probe.world_size for probe in self.probes), default=0)
