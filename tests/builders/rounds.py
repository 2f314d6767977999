"""Columns, and rounds of an arm, from what each rank measured in each of them."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_ddpscale.run import table
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.table import Columns
from tests.builders.measurements import Measurement
from tests.builders.records import block_of, gang_of


def columns_of(measurements: Iterable[Measurement]) -> Columns:
    """Measurements in any order; what ranks repeat is in blocks of their own, the last one first."""
    found, times = list(measurements), dict[tuple[str, str, int], dict[int, list[Measurement]]]()
    for one in found:
        times.setdefault((one.study, one.arm, one.round), {}).setdefault(one.rank, []).append(one)
    made: list[Block] = []
    for by_rank in times.values():
        inorder = [sorted(own, key=lambda one: one.started_unix_s) for own in by_rank.values()]
        repeats = range(max(map(len, inorder)))
        made += [block_of([own[i] for own in inorder if i < len(own)], checked=False) for i in reversed(repeats)]
    return table.columns_of(made, [gang_of(found)])
