"""What one rank measured of a block: tests say it rank by rank, and records have it in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import PROBES
from pytest_ddpscale.run.block import STEP_S, Block
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import GangRecord, gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory


@dataclass(frozen=True)
class Measurement:
    """A block as one rank saw it."""

    study: str
    arm: str
    round: int
    rank: int
    local_rank: int
    host: str
    device: str
    batch_size: int
    steps: int
    block_s: float
    started_unix_s: float
    step_s: tuple[float, ...] = ()
    step_stdev_s: float | None = None
    utilization: float | None = None
    peak_memory_bytes: int | None = None
    skipped_steps: int = 0
    parameters_checksum: str | None = None
    single_sample: bool = False
    energy_j: float | None = None
    waited_s: float | None = None  # in all steps
    forward_s: float | None = None

    @property
    def throughput_samples_per_s(self) -> float:
        """Images this rank trained per second."""
        return self.batch_size * self.steps / self.block_s


@dataclass(frozen=True)
class ProbeMeasurement:
    """A block of a probe as one rank saw it; with a peer, one of a pair that takes its turn."""

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


def measurements_of(records: Sequence[AnyRecord]) -> list[Measurement]:
    """The blocks among records, rank by rank, in their order."""
    gangs = gangs_by_number(records)
    return [
        one
        for block in records
        if isinstance(block, Block) and block.study not in (PROBES, PAIRS)
        for one in of_ranks(block, gangs[block.gang])
    ]


def of_ranks(block: Block, gang: GangRecord) -> Iterator[Measurement]:
    """A block rank by rank."""
    steps = block.each(STEP_S).astype(float)
    deviations = steps.std(axis=1, ddof=1).tolist() if steps.shape[1] > 1 else _column(block, "step_stdev_s")
    columns = (
        *(block.each(name).tolist() for name in ("count", "began_unix_s", "seconds")),
        map(tuple, steps.tolist()), deviations,
        *(_column(block, name) for name in ("utilization", "energy_j", "forward_s")),
        *(_column(block, name) for name in ("peak_memory_bytes", "skipped_steps")),
        _checksums(block),
    )  # fmt: skip
    for rank, made, started, block_s, step_s, stdev_s, busy, energy_j, forward_s, memory, skipped, checksum in zip(
        block.each("ranks").tolist(), *columns, strict=True
    ):
        at = gang.ranks[rank].place
        yield Measurement(
            study=block.study, arm=block.arm, round=block.round, rank=rank, local_rank=at.of_rank[1], host=at.host,
            device=at.uuid, batch_size=int(block.each("work")[0]), steps=made, block_s=block_s, started_unix_s=started,
            step_s=step_s, step_stdev_s=stdev_s, utilization=busy, peak_memory_bytes=memory,
            skipped_steps=int(skipped or 0), parameters_checksum=checksum,
            single_sample="single_sample" in block.readings, energy_j=energy_j, forward_s=forward_s,
        )  # fmt: skip


def _checksums(block: Block) -> list[str | None]:
    return [f"{one & (2**64 - 1):016x}" if one else None for one in block.each("digest").tolist()]


def _column(block: Block, name: str) -> list[Any]:
    """A reading of each rank; None where it is not known."""
    values = block.each(name)
    return [None if value != value else value for value in values.tolist()]  # NaN


def measurements_in(run: RunDirectory) -> list[Measurement]:
    """What a run directory holds, rank by rank."""
    return measurements_of(run.read_records())
