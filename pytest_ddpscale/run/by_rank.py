"""Records of single ranks, extracted from the lines that hold all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_ddpscale.run.block import Unsupported
from pytest_ddpscale.run.records import (
    GangRecord,
    RoundEnd,
    SeededStep,
    SeededSteps,
    WorkloadFlops,
    gangs_by_number,
)
from pytest_ddpscale.run.strict_json import each

if TYPE_CHECKING:
    from pytest_ddpscale.run.record_lines import AnyRecord


def seeded_steps_of(records: Sequence[AnyRecord]) -> dict[str, list[SeededStep]]:
    """The seeded steps among records, by study; the last line of a study counts."""
    gangs = gangs_by_number(records)
    lines = {line.study: line for line in records if isinstance(line, SeededSteps)}
    return {study: list(_seeded_steps(line, gangs[line.gang])) for study, line in lines.items()}


def _seeded_steps(line: SeededSteps, gang: GangRecord) -> Iterator[SeededStep]:
    columns = each(line.checksums, len(line.ranks)), each(line.repeats, len(line.ranks))
    for rank, checksum, repeats in sorted(zip(line.ranks, *columns, strict=True)):
        host, local_rank, device = gang.place(rank)
        yield SeededStep(line.study, rank, local_rank, host, device, checksum, repeats)


def flops_of(records: Sequence[AnyRecord]) -> dict[str, float]:
    """Floating-point operations per image of forward and backward pass, by study, if counted."""
    return {one.study: one.flops_per_sample for one in records if isinstance(one, WorkloadFlops)}


def timed_arms_of(records: Sequence[AnyRecord]) -> dict[str, dict[int, frozenset[str]]]:
    """Names of the arms that each finished round timed, by study and round number."""
    found: dict[str, dict[int, frozenset[str]]] = {}
    for record in records:
        if isinstance(record, RoundEnd):
            found.setdefault(record.study, {})[record.round] = frozenset(record.arms)
    return found


def unsupported_of(records: Sequence[AnyRecord]) -> dict[str, str]:
    """Why arms could not be timed on a rank, by name."""
    gangs = gangs_by_number(records)
    return {
        line.arm: f"{gangs[line.gang].hosts[line.ranks[-1]]}: {each(line.reasons, len(line.ranks))[-1]}"
        for line in records
        if isinstance(line, Unsupported)
    }
