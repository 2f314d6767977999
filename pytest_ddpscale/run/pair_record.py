"""Bandwidth between pairs of ranks on different nodes: records of kind ``pair``, one per round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from pytest_ddpscale.run.records import GangRecord, gangs_by_number
from pytest_ddpscale.run.strict_json import Count, Positive, Record, each, refuse_other_lengths

if TYPE_CHECKING:
    from pytest_ddpscale.run.record_lines import AnyRecord

# A thousand times the fastest link on the market; more means a broken clock.
MOST_GBPS = 1e6
Gbps = Annotated[float, Meta(gt=0, le=MOST_GBPS)]


class PairRound(Record, frozen=True, kw_only=True, tag_field="kind", tag="pair"):
    """All-reduces between two ranks of different nodes, for all pairs of one round.

    Attributes:
        message_bytes: message size of one all-reduce.
        iterations: number of timed all-reduces.
        ranks: the two ends of each pair, numbered as in the gang.
        busbw_gbps: bus bandwidth of each pair in GB/s (1e9 bytes per second): 2(n - 1)/n x bytes / time, which for two
            ranks is bytes / time (nccl-tests, doc/PERFORMANCE.md). The time is that of the fastest all-reduce.
    """

    study: str
    round: Count
    gang: Count
    message_bytes: Positive
    iterations: Positive
    ranks: Annotated[tuple[tuple[Count, Count], ...], Meta(min_length=1)]
    busbw_gbps: Gbps | tuple[Gbps, ...]

    def __post_init__(self) -> None:
        refuse_other_lengths(self, len(self.ranks), "busbw_gbps")
        if len({rank for pair in self.ranks for rank in pair}) != 2 * len(self.ranks):
            raise ValueError("a rank is in two pairs of one round (ranks)")

    @property
    def highest_rank(self) -> int:
        """The largest rank in the record."""
        return max(map(max, self.ranks))


class PairSpeed(Record, frozen=True, kw_only=True):
    """One pair's part of a `PairRound`, sent by its first rank to rank 0."""

    ranks: tuple[Count, Count]
    busbw_gbps: Gbps


@dataclass(frozen=True)
class PairMeasurement:
    """One pair of a `PairRound`; two-element fields are in the order of its ranks."""

    study: str
    round: int
    ranks: tuple[int, int]
    hosts: tuple[str, str]
    local_ranks: tuple[int, int]
    devices: tuple[str, str]
    message_bytes: int
    iterations: int
    busbw_gbps: float


def pairs_of(records: Sequence[AnyRecord]) -> list[PairMeasurement]:
    """The pairs among records, in their order."""
    gangs = gangs_by_number(records)
    return [one for line in records if isinstance(line, PairRound) for one in _pairs(line, gangs[line.gang])]


def _pairs(line: PairRound, gang: GangRecord) -> Iterator[PairMeasurement]:
    for (first, second), gbps in zip(line.ranks, each(line.busbw_gbps, len(line.ranks)), strict=True):
        one, other = gang.place(first), gang.place(second)
        yield PairMeasurement(
            line.study, line.round, (first, second), (one.host, other.host), (one.local_rank, other.local_rank),
            (one.device, other.device), line.message_bytes, line.iterations, gbps,
        )  # fmt: skip
