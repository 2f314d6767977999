"""Columns of probes, from what each rank measured in each round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_ddpscale.run import probe_columns
from pytest_ddpscale.run.probe_columns import ProbeColumns, ProbeName
from pytest_ddpscale.run.probe_record import ProbeBlock, ProbeMeasurement
from tests.builders.records import gang_of, probe_blocks_of


def probe_columns_of(measurements: Iterable[ProbeMeasurement]) -> Mapping[ProbeName, ProbeColumns]:
    """Measurements in any order; what ranks repeat is in blocks of their own, the last one first."""
    found, times = (
        list(measurements),
        dict[tuple[str, int, int], dict[tuple[int, int | None], list[ProbeMeasurement]]](),
    )
    for one in found:
        ends = times.setdefault((one.probe, one.world_size, one.round), {})
        ends.setdefault((one.rank, one.peer_rank), []).append(one)
    made: list[ProbeBlock] = []
    for by_end in times.values():
        inorder = [sorted(own, key=lambda one: one.started_unix_s) for own in by_end.values()]
        for i in reversed(range(max(map(len, inorder)))):
            made += probe_blocks_of([own[i] for own in inorder if i < len(own)])
    return probe_columns.probe_columns_of(made, [gang_of(found)] if found else [])
