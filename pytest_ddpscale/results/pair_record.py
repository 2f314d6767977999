"""The record of kind ``pair``: what two ranks of different nodes reached with each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# A thousand times the fastest link between two nodes that is sold: more is a broken clock.
MOST_GBPS = 1e6
_PAIRS: dict[str, type] = {"ranks": int, "hosts": str, "local_ranks": int, "devices": str}


@dataclass(frozen=True)
class PairMeasurement:
    """All-reduces between two ranks of different nodes, in one round of a search for a slow link.

    Attributes:
        study: id of the study, ``pairs``.
        round: counted from 0.
        ranks: global ranks of both ends; what follows in pairs is in their order.
        hosts: host names.
        local_ranks: ranks on their hosts.
        devices: GPU UUIDs as NVML has them, or ``cpu``.
        message_bytes: what one all-reduce sums, in bytes.
        iterations: how many all-reduces were timed.
        busbw_gbps: bus bandwidth in GB/s (1e9 bytes a second): 2(n - 1)/n x bytes / time, which for two ranks
            is bytes / time (nccl-tests, doc/PERFORMANCE.md). The time is that of the fastest one.
    """

    study: str
    round: int
    ranks: tuple[int, int]
    hosts: tuple[str, str]
    local_ranks: tuple[int, int]
    devices: tuple[str, str]
    message_bytes: int
    iterations: int
    busbw_gbps: float

    def __post_init__(self) -> None:
        if min(self.round, *self.ranks, *self.local_ranks) < 0 or min(self.message_bytes, self.iterations) < 1:
            raise ValueError(
                f"round={self.round}, ranks={self.ranks}, local_ranks={self.local_ranks}, message_bytes="
                f"{self.message_bytes}, iterations={self.iterations}; expected none below 0, and the last two positive"
            )
        if self.ranks[0] == self.ranks[1]:
            raise ValueError(f"ranks={self.ranks}; expected two different ones")
        if not (math.isfinite(self.busbw_gbps) and 0 < self.busbw_gbps <= MOST_GBPS):
            raise ValueError(f"busbw_gbps={self.busbw_gbps}; expected a positive number up to {MOST_GBPS:g}")

    def as_json(self) -> dict[str, Any]:
        """The measurement as JSON types, with its ``kind``."""
        return {"kind": "pair", **asdict(self)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> PairMeasurement:
        """Read what `as_json` wrote.

        Raises:
            TypeError: a key is missing or unknown, or its value of another type.
            ValueError: a number is impossible.
        """
        fields = {key: _typed(key, value) for key, value in data.items() if key != "kind"}
        return PairMeasurement(**fields)


def pairs_of(records: Sequence[dict[str, Any]]) -> list[PairMeasurement]:
    """The pair measurements among records, in their order.

    Raises:
        TypeError: a record lacks a key or has an unknown one, or its value is of another type.
        ValueError: a number is impossible.
    """
    return [PairMeasurement.from_json(record) for record in records if record.get("kind") == "pair"]


def _typed(key: str, value: Any) -> Any:
    """The value, if it is of the field's type: True is no number, and 1 is a float."""
    if key in _PAIRS:
        fits = isinstance(value, (list, tuple)) and len(value) == 2 and all(type(end) is _PAIRS[key] for end in value)
        value = tuple(value) if fits else value
    elif key == "study":
        fits = isinstance(value, str)
    else:
        fits = type(value) is int or (key == "busbw_gbps" and type(value) is float)
    if not fits:
        raise TypeError(f"{key} is {value!r}")
    return value
