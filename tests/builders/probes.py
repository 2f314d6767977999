"""Probes and pairs of nodes whose values are known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import PROBES, Plan, ProbeStudy
from pytest_ddpscale.run.block import STEP_S, Block, step_bytes
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.strict_json import column
from pytest_ddpscale.run.table import ArmRounds, Columns, columns_of
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.thresholds.model import Requirement, Source
from tests.builders.measurements import ProbeMeasurement
from tests.builders.records import gang_of, gang_on, probe_blocks_of

MATMUL, ALL_REDUCE = Arm("matmul-bf16"), Arm("all-reduce-32mib", 8)
A100 = NodeExpectation("cuda", "^A100$")
Value = Callable[[int, tuple[int, ...]], float]  # in the metric's unit, of a round and the ranks of a place
Pair = tuple[int, int, int, float]  # round, numbers of two nodes, GB/s
# Seconds of messages of a rank to another in a round, made of what they take usually.
Messages = Callable[[int, tuple[int, int], list[float]], list[float]]


def probe_case(probe: Arm, bound: float, **keys: Any) -> NodeCase:
    source, kind = Source(bound, None, "a paper", "far enough away"), KINDS[probe.operation.kind]
    asked = Requirement(kind.metric, bound, source, probe=probe.kind, world_size=probe.world_size)
    return NodeCase(asked, f"{probe.kind}-{probe.world_size}gpu", "t.yaml:7", A100, **{"probe": probe, **keys})


def probe_plan(*probes: Arm, nodes: int = 1, ranks_per_node: int = 8, device_type: Any = "cuda") -> Plan:
    study = ProbeStudy(probes, 16, 0.5)
    return Plan("a100", device_type, (), nodes=nodes, ranks_per_node=ranks_per_node, probes=study)


def steady(value: float, bad: Mapping[tuple[int, ...], float] | None = None) -> Value:
    """The same everywhere, but for what `bad` says of some ranks; rounds differ by 0.2 %."""
    return lambda number, ranks: (bad or {}).get(ranks, value) * (1 + 0.001 * (number % 3))


def measure_probe(
    plan: Plan, probe: Arm, value: Value, rounds: int = 8, without: Collection[int] = ()
) -> list[ProbeMeasurement]:
    """What every rank of every place reports, but those of the ranks in `without`."""
    places = [(number, ranks) for number in range(rounds) for ranks in plan.layout.groups_of_round(probe)]
    return [
        _report(plan, probe, number, ranks, rank, value(number, ranks))
        for number, ranks in places
        for rank in ranks
        if rank not in without
    ]


def _report(plan: Plan, probe: Arm, number: int, ranks: tuple[int, ...], rank: int, value: float) -> ProbeMeasurement:
    node, local_rank = divmod(rank, plan.layout.ranks_per_node)
    device = "cpu" if plan.device_type == "cpu" else f"GPU-{rank}"
    work = float(probe.operation.message_bytes or probe.operation.named_flops or 1e12)
    peer = sum(ranks) - rank if probe.operation.kind == "send-recv" else None
    one = ProbeMeasurement(
        PROBES, probe.kind, probe.world_size, number, rank, local_rank, f"n{node}", device, work, 10, 1.0,
        1.7e9 + number, is_correct=True, peer_rank=peer,
    )  # fmt: skip
    return replace(one, seconds=value_of(one) / value)


def value_of(one: ProbeMeasurement) -> float:
    """What a rank reached, in the metric's unit."""
    operation = Arm(one.probe, one.world_size).operation
    factor = 1e-12 if operation.precision else 1e-9 * operation.bus_factor(one.world_size)
    return one.work * one.iterations / one.seconds * factor


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


def probe_evidence(plan: Plan, measurements: Iterable[ProbeMeasurement], **keys: Any) -> Evidence:
    return Evidence(**{"plan": plan, "columns": probe_columns_of(measurements), "errors": {}, **keys})


def pair_columns_of(pairs: Sequence[Pair], per_node: int = 1, messages: Messages = lambda *known: known[2]) -> Columns:
    """Pairs of the nodes n0, n1 … by all their rails at once; each pair has a turn of its own."""
    blocks = []
    for turn, (number, one, other, gbps) in enumerate(pairs):
        rails = [(one * per_node + rail, other * per_node + rail) for rail in range(per_node)]
        ends = [ends for rail in rails for ends in (rail, rail[::-1])]
        each_s = [messages(number, both, [2**25 / gbps / 1e9] * 20) for both in ends]
        blocks += [Block(
            study=PAIRS, arm="all-reduce-32mib@2", round=number, turn=turn, gang=0, count=20, work=2.0**25,
            ranks=tuple(own for own, _ in ends), groups=tuple(rail for rail in range(per_node) for _ in range(2)),
            began_unix_s=1.7e9, seconds=column(map(sum, each_s)), series={STEP_S: b"".join(map(step_bytes, each_s))},
        )]  # fmt: skip
    hosts = [f"n{node}" for node in range(1 + max((max(one, other) for _, one, other, _ in pairs), default=0))]
    return columns_of(blocks, [gang_on(hosts, per_node, "GPU-{}")])


def pair_evidence(records: Iterable[AnyRecord]) -> Evidence:
    """Pairs of nodes among what rank 0 writes."""
    found = list(records)
    blocks = [one for one in found if isinstance(one, Block) and one.study == PAIRS]
    return Evidence(Plan("cpu", "cpu", ()), columns_of(blocks, gangs_by_number(found).values()), {})


def with_columns(evidence: Evidence, *others: Columns) -> Evidence:
    """With further measurements."""
    arms: dict[tuple[str, str], ArmRounds] = dict(evidence.columns.arms)
    for one in others:
        arms |= one.arms
    return replace(evidence, columns=Columns(arms))
