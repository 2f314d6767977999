"""Columns of probes and pairs of nodes, from what each rank measured in each round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_ddpscale.judge.slow_links import Rail, rails_of
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.block import Block, step_bytes
from pytest_ddpscale.run.columns import ArmColumns, Columns, columns_of
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.readings import STEP_S
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import gangs_by_number
from tests.builders.measurements import ProbeMeasurement
from tests.builders.records import gang_of, gang_on, probe_blocks_of

Pair = tuple[int, int, int, float]  # round, numbers of two nodes, GB/s


def probe_columns_of(measurements: Iterable[ProbeMeasurement]) -> Columns:
    """Measurements in any order; what ranks repeat is in blocks of their own, the last one first."""
    found, times = (
        list(measurements),
        dict[tuple[str, int, int], dict[tuple[int, int | None], list[ProbeMeasurement]]](),
    )
    for one in found:
        ends = times.setdefault((one.probe, one.world_size, one.round), {})
        ends.setdefault((one.rank, one.peer_rank), []).append(one)
    made: list[Block] = []
    for by_end in times.values():
        inorder = [sorted(own, key=lambda one: one.started_unix_s) for own in by_end.values()]
        for i in reversed(range(max(map(len, inorder)))):
            made += probe_blocks_of([own[i] for own in inorder if i < len(own)])
    return columns_of(made, [gang_of(found)] if found else [])


def pair_columns_of(pairs: Sequence[Pair], per_node: int = 1) -> Columns:
    """Pairs of the nodes n0, n1 … by all their rails at once; each pair has a turn of its own."""
    blocks = [
        Block(
            study=PAIRS, arm="all-reduce-32mib@2", round=number, turn=turn, gang=0, count=20, work=2.0**25,
            ranks=tuple(node * per_node + rail for rail in range(per_node) for node in (one, other)),
            groups=tuple(rail for rail in range(per_node) for _ in range(2)), began_unix_s=1.7e9,
            seconds=20 * 2**25 / gbps / 1e9,
            series={STEP_S: step_bytes([2**25 / gbps / 1e9] * 40 * per_node)},
        )
        for turn, (number, one, other, gbps) in enumerate(pairs)
    ]  # fmt: skip
    hosts = [f"n{node}" for node in range(1 + max((max(one, other) for _, one, other, _ in pairs), default=0))]
    return columns_of(blocks, [gang_on(hosts, per_node, "GPU-{}")])


def rails_in(records: Iterable[AnyRecord]) -> Sequence[Rail]:
    """What pairs of nodes reached, from what rank 0 writes."""
    found = list(records)
    blocks = [one for one in found if isinstance(one, Block) and one.study == PAIRS]
    plan = Plan("cpu", "cpu", ())
    return rails_of(Evidence(plan, columns_of(blocks, gangs_by_number(found).values()), {}))


def with_columns(evidence: Evidence, *others: Columns) -> Evidence:
    """With further measurements."""
    arms: dict[tuple[str, str], ArmColumns] = dict(evidence.columns.arms)
    for one in others:
        arms |= one.arms
    return replace(evidence, columns=Columns(arms))
