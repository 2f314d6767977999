"""What a probe gave on one rank: records of kind ``probe`` in measurements.jsonl."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.results.records import refuse_other_types


@dataclass(frozen=True)
class ProbeMeasurement:
    """One probe in one round, as one rank timed it.

    Attributes:
        study: ``probes``.
        probe: name of the probe, ``all-reduce-32mib``.
        world_size: ranks that took part in it together.
        round: counted from 0.
        rank: global rank in the gang.
        local_rank: rank on its host.
        host: host name.
        device: GPU UUID, or ``cpu``.
        work: of one iteration: floating-point operations of a matmul; else bytes: those of the message, or those
            that a device's copy reads and writes.
        iterations: how often it was done.
        seconds: that all of them took, as this rank saw it.
        started_unix_s: when they began, seconds since 1970 UTC.
        is_correct: whether what came out is what has to come out.
        peer_rank: of a send-recv: who was at the other end; None for all others.
    """

    study: str
    probe: str
    world_size: int
    round: int
    rank: int
    local_rank: int
    host: str
    device: str
    work: float
    iterations: int
    seconds: float
    started_unix_s: float
    is_correct: bool
    peer_rank: int | None = None

    def __post_init__(self) -> None:
        Probe(self.probe, self.world_size)  # raises ValueError if there is no such probe
        if not (math.isfinite(self.seconds) and self.seconds > 0 and math.isfinite(self.work) and self.work > 0):
            raise ValueError(f"work={self.work}, seconds={self.seconds}; expected both positive and finite")
        if self.iterations < 1 or min(self.round, self.rank, self.local_rank) < 0:
            raise ValueError(
                f"iterations={self.iterations}, round={self.round}, rank={self.rank}, local_rank={self.local_rank}; "
                "expected at least one iteration, and none of the others below 0"
            )
        if not self._has_right_peer:
            raise ValueError(f"peer_rank={self.peer_rank}; expected another rank of a send-recv, None of all others")

    @property
    def _has_right_peer(self) -> bool:
        if Probe(self.probe, self.world_size).kind != "send-recv":
            return self.peer_rank is None
        return self.peer_rank is not None and self.peer_rank >= 0 and self.peer_rank != self.rank

    @property
    def per_second(self) -> float:
        """Work done per second, in its unit."""
        return self.work * self.iterations / self.seconds

    def as_json(self) -> dict[str, Any]:
        """The measurement as JSON types, with its ``kind``."""
        return {"kind": "probe", **asdict(self)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> ProbeMeasurement:
        """Read what `as_json` wrote.

        Raises:
            TypeError: a key is missing or unknown, or its value of another type.
            ValueError: a number is impossible, or there is no such probe.
        """
        measurement = ProbeMeasurement(**{key: value for key, value in data.items() if key != "kind"})
        refuse_other_types(measurement)
        return measurement


def probes_of(records: Sequence[dict[str, Any]]) -> list[ProbeMeasurement]:
    """The probe measurements among records. Raises as `ProbeMeasurement.from_json`."""
    return [ProbeMeasurement.from_json(record) for record in records if record.get("kind") == "probe"]
