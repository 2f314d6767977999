"""What one rank measured of a block: tests say it rank by rank, and records have it in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import Block, GangRecord, gangs_by_number
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

    @property
    def throughput_samples_per_s(self) -> float:
        """Images this rank trained per second."""
        return self.batch_size * self.steps / self.block_s


def measurements_of(records: Sequence[AnyRecord]) -> list[Measurement]:
    """The blocks among records, rank by rank, in their order."""
    gangs = gangs_by_number(records)
    return [one for block in records if isinstance(block, Block) for one in of_ranks(block, gangs[block.gang])]


def of_ranks(block: Block, gang: GangRecord) -> Iterator[Measurement]:
    """A block rank by rank."""
    steps = np.frombuffer(block.step_s, "<f4").reshape(len(block.ranks), -1).astype(float)
    deviations = steps.std(axis=1, ddof=1).tolist() if steps.shape[1] > 1 else _column(block, "step_stdev_s")
    columns = (
        _column(block, "steps"), _column(block, "started_unix_s"), _column(block, "block_s"),
        map(tuple, steps.tolist()), deviations,
        _column(block, "utilization"), _column(block, "energy_j"), _column(block, "peak_memory_bytes"),
        _column(block, "skipped_steps"), _checksums(block),
    )  # fmt: skip
    for rank, made, started, block_s, step_s, stdev_s, busy, energy_j, memory, skipped, checksum in zip(
        block.each("ranks").tolist(), *columns, strict=True
    ):
        host, local_rank, device = gang.place(rank)
        yield Measurement(
            study=block.study, arm=block.arm, round=block.round, rank=rank, local_rank=local_rank, host=host,
            device=device, batch_size=block.batch_size, steps=made, block_s=block_s, started_unix_s=started,
            step_s=step_s, step_stdev_s=stdev_s, utilization=busy, peak_memory_bytes=memory, skipped_steps=skipped,
            parameters_checksum=checksum, single_sample=block.single_sample, energy_j=energy_j,
        )  # fmt: skip


def _checksums(block: Block) -> list[str | None]:
    return [f"{one & (2**64 - 1):016x}" if one else None for one in block.checksums.tolist()]


def _column(block: Block, name: str) -> list[Any]:
    """One value for each rank; None where it is not known."""
    values = block.each(name)
    return [None if value != value else value for value in values.tolist()]  # NaN


def measurements_in(run: RunDirectory) -> list[Measurement]:
    """What a run directory holds, rank by rank."""
    return measurements_of(run.read_records())
