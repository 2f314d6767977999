"""Results of probes: records of kind ``probe`` in measurements.jsonl, one for each probe and round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

import numpy as np
from msgspec import Meta

from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.run.column_record import BOOLEANS, INTEGERS, NUMBERS, ColumnRecord
from pytest_ddpscale.run.records import Ranks, Texts, gangs_by_number, refuse_twice
from pytest_ddpscale.run.strict_json import (
    Count,
    Positive,
    Record,
    Seconds,
    UnixSeconds,
    column,
    each,
    refuse_other_lengths,
)

if TYPE_CHECKING:
    from pytest_ddpscale.run.record_lines import AnyRecord

WorkDone = Annotated[float, Meta(gt=0, le=1e30)]
NO_PEER = -1


class ProbeBlock(ColumnRecord, frozen=True, eq=False, kw_only=True, tag_field="kind", tag="probe"):
    """One probe in one round, timed by all its ranks. Columns are in the order of `ranks`; a shared value is stored
    once.

    Attributes:
        study: ``probes``.
        probe: name of the probe, ``all-reduce-32mib``.
        world_size: number of ranks that run it together.
        round: counted from 0.
        gang: number of the gang.
        iterations: number of iterations of each rank.
        ranks: ranks that took part, numbered as in the gang; for send-recv one entry per peer.
        peers: for send-recv the rank at the other end; None for all other probes.
        work: of one iteration: floating-point operations of a matmul; else bytes: of the message, or read and written
            by a device copy.
        seconds: duration of all iterations on this rank.
        started_unix_s: start of the iterations, seconds since 1970 UTC.
        is_correct: whether the result is right.
    """

    study: str
    probe: str
    world_size: Positive
    round: Count
    gang: Count
    iterations: Positive
    ranks: Ranks
    peers: Count | tuple[Count, ...] | None = None
    work: WorkDone | tuple[WorkDone, ...]
    seconds: Seconds | tuple[Seconds, ...]
    started_unix_s: UnixSeconds | tuple[UnixSeconds, ...]
    is_correct: bool | tuple[bool, ...]

    columns: ClassVar[Mapping[str, str]] = {
        "ranks": INTEGERS, "peers": INTEGERS, "work": NUMBERS, "seconds": NUMBERS, "started_unix_s": NUMBERS,
        "is_correct": BOOLEANS,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        probe = Probe(self.probe, self.world_size)  # raises ValueError if there is no such probe
        if (self.peers is None) != (probe.kind != "send-recv"):
            there = "no peers" if self.peers is None else "peers"
            raise ValueError(f"{there}; expected peers for send-recv, none for other probes")
        if self.peers is None:
            refuse_twice(self.ranks)
            return
        ranks, peers = self.each("ranks"), self.each("peers")
        if (ranks == peers).any():
            raise ValueError("a rank is its own peer")
        if (np.diff(np.sort(ranks * (peers.max() + 1) + peers)) == 0).any():
            raise ValueError(f"{probe.id} has a rank twice (ranks)")

    @property
    def probe_id(self) -> str:
        """Id in the plan, ``all-reduce-32mib@8``."""
        return Probe(self.probe, self.world_size).id

    @property
    def highest_rank(self) -> int:
        """The largest rank in the record."""
        return int(max(np.max(self.ranks), NO_PEER if self.peers is None else np.max(self.peers)))


class RankProbe(Record, frozen=True, kw_only=True):
    """One rank's part of a `ProbeBlock`, sent to rank 0."""

    rank: Count
    peer: Count | None = None
    work: WorkDone
    seconds: Seconds
    started_unix_s: UnixSeconds
    is_correct: bool


def joined_probe_block(
    parts: Sequence[RankProbe], probe: Probe, study: str, number: int, gang: int, iterations: int
) -> ProbeBlock:
    """Join the parts of all ranks to a block.

    Args:
        parts: of all ranks.
        probe: the probe.
        study: id of the study.
        number: of the round.
        gang: number of the gang.
        iterations: number of iterations of each rank.
    """
    return ProbeBlock(
        study=study, probe=probe.name, world_size=probe.world_size, round=number, gang=gang, iterations=iterations,
        ranks=tuple(part.rank for part in parts), peers=cast("int | None", column(part.peer for part in parts)),
        work=column(part.work for part in parts), seconds=column(part.seconds for part in parts),
        started_unix_s=column(part.started_unix_s for part in parts),
        is_correct=column(part.is_correct for part in parts),
    )  # fmt: skip


class ProbeUnsupported(Record, frozen=True, kw_only=True, tag_field="kind", tag="probe_unsupported"):
    """Why ranks could not run a probe, which is named by its id."""

    study: str
    probe: str
    gang: Count
    ranks: Ranks
    reasons: str | Texts

    def __post_init__(self) -> None:
        refuse_twice(self.ranks)
        refuse_other_lengths(self, len(self.ranks), "reasons")


@dataclass(frozen=True)
class ProbeMeasurement:
    """One rank's measurement in a `ProbeBlock`."""

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

    @property
    def per_second(self) -> float:
        """Work done per second, in its unit."""
        return self.work * self.iterations / self.seconds


def unsupported_of(records: Sequence[AnyRecord]) -> dict[str, str]:
    """Why probes could not be run on a rank, by probe id."""
    gangs = gangs_by_number(records)
    return {
        line.probe: f"{gangs[line.gang].hosts[line.ranks[-1]]}: {each(line.reasons, len(line.ranks))[-1]}"
        for line in records
        if isinstance(line, ProbeUnsupported)
    }
