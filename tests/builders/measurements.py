"""What one rank measured of a block: tests say it rank by rank, and records have it in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.results.record_lines import AnyRecord
from pytest_ddpscale.results.records import Block, GangRecord, gangs_by_number
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.strict_json import each


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

    @property
    def throughput_img_per_s(self) -> float:
        """Images this rank trained per second."""
        return self.batch_size * self.steps / self.block_s


def measurements_of(records: Sequence[AnyRecord]) -> list[Measurement]:
    """The blocks among records, rank by rank, in their order."""
    gangs = gangs_by_number(records)
    return [one for block in records if isinstance(block, Block) for one in of_ranks(block, gangs[block.gang])]


def of_ranks(block: Block, gang: GangRecord) -> Iterator[Measurement]:
    """A block rank by rank."""
    count = len(block.ranks)
    steps = np.frombuffer(block.step_s, "<f4").reshape(count, -1).astype(float)
    deviations = steps.std(axis=1, ddof=1).tolist() if steps.shape[1] > 1 else each(block.step_stdev_s, count)
    columns = (
        each(block.steps, count), each(block.started_unix_s, count), each(block.block_s, count),
        map(tuple, steps.tolist()), deviations,
        each(block.utilization, count), each(block.energy_j, count), each(block.peak_memory_bytes, count),
        each(block.skipped_steps, count), each(block.parameters_checksum, count),
    )  # fmt: skip
    for rank, made, started, block_s, step_s, stdev_s, busy, energy_j, memory, skipped, checksum in zip(
        block.ranks, *columns, strict=True
    ):
        host, local_rank, device = gang.place(rank)
        yield Measurement(
            study=block.study, arm=block.arm, round=block.round, rank=rank, local_rank=local_rank, host=host,
            device=device, batch_size=block.batch_size, steps=made, block_s=block_s, started_unix_s=started,
            step_s=step_s, step_stdev_s=stdev_s, utilization=busy, peak_memory_bytes=memory, skipped_steps=skipped,
            parameters_checksum=checksum, single_sample=block.single_sample, energy_j=energy_j,
        )  # fmt: skip


def measurements_in(run: RunDirectory) -> list[Measurement]:
    """What a run directory holds, rank by rank."""
    return measurements_of(run.read_records())
