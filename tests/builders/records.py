"""The lines of measurements.jsonl that say what some ranks measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import force_setattr

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import PROBES
from pytest_ddpscale.run.block import STEP_S, WAITED_S, Block, joined_checksums, step_bytes
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import GangRecord, Rank
from pytest_ddpscale.run.strict_json import column
from tests.builders.measurements import Measurement, ProbeMeasurement

Placed = Measurement | ProbeMeasurement
_READINGS = ("utilization", "energy_j", "peak_memory_bytes", "skipped_steps", "forward_s")


def gang_of(placed: Iterable[Placed], number: int = 0) -> GangRecord:
    """The gang of what was measured; ranks that measured nothing are on a host of their own."""
    places = {one.rank: (one.host, one.local_rank, one.device) for one in placed}
    device = "cpu" if all(device == "cpu" for _, _, device in places.values()) else "GPU-idle-{}"
    ranks = range(max(places, default=0) + 1)
    found = [places.get(rank, ("idle", rank, device.format(rank))) for rank in ranks]
    return gang_at([Place(host, local_rank, uuid, local_rank) for host, local_rank, uuid in found], number)


def gang_at(places: Iterable[Place], number: int = 0, **of_ranks: Any) -> GangRecord:
    """Ranks in these places; what they say of themselves is a list with a value for each, or the same for all."""
    ranks = (
        Rank(place=place, **{name: said[i] if isinstance(said, list) else said for name, said in of_ranks.items()})
        for i, place in enumerate(places)
    )
    return GangRecord(gang=number, ranks=tuple(ranks))


def blocks_of(measured: Iterable[Measurement], gang: int = 0) -> list[Block]:
    """What ranks measured one after the other, as blocks of a run."""
    blocks = [list(ranks) for _, ranks in groupby(measured, lambda one: (one.study, one.arm, one.round))]
    return [block_of(ranks, gang) for ranks in blocks]


def block_of(ranks: Sequence[Measurement], gang: int = 0, *, checked: bool = True) -> Block:
    """One block, which has the steps of all its ranks or of none; unchecked also with readings that cannot be."""
    first, has_steps = ranks[0], all(rank.step_s for rank in ranks)
    said: dict[str, list[Any]] = {name: [getattr(rank, name) for rank in ranks] for name in _READINGS}
    if not has_steps:
        said["step_stdev_s"] = [rank.step_stdev_s for rank in ranks]
    readings: dict[str, Any] = {name: column(values) for name, values in said.items() if values != [None] * len(ranks)}
    series = {
        STEP_S: b"".join(step_bytes(rank.step_s) for rank in ranks if has_steps),
        WAITED_S: b"".join(
            step_bytes([rank.waited_s / rank.steps] * rank.steps) for rank in ranks if rank.waited_s is not None
        ),
    }
    checksums = joined_checksums([rank.parameters_checksum and f"{rank.parameters_checksum:0>16}" for rank in ranks])
    readings |= {"single_sample": True} if first.single_sample else {}
    block = Block(
        study=first.study, arm=first.arm, round=first.round, gang=gang, ranks=tuple(rank.rank for rank in ranks),
        groups=_groups(first.arm, len(ranks)), count=column(rank.steps for rank in ranks), work=float(first.batch_size),
        began_unix_s=column(rank.started_unix_s for rank in ranks), seconds=column(rank.block_s for rank in ranks),
        readings=readings if checked else {},
        series={name: steps for name, steps in series.items() if steps}, digests=checksums,
    )  # fmt: skip
    if not checked:
        force_setattr(block, "readings", readings)
    return block


def _groups(arm: str, ranks: int) -> Any:
    """Numbers of the groups in which so many ranks work."""
    size = re.search(r"@(\d+)", arm)
    return column(i // int(size[1] if size else 1) for i in range(ranks))


def probe_blocks_of(probed: Iterable[ProbeMeasurement], gang: int = 0) -> list[Block]:
    """What ranks probed one after the other, as blocks; pairs take their turn as soon as both ranks are free."""
    return [
        _probe_block(turn, ranks, gang)
        for _, group in groupby(probed, lambda one: (one.probe, one.world_size, one.round))
        for turn, ranks in enumerate(_turns(list(group)))
    ]


def _probe_block(turn: int, ranks: Sequence[ProbeMeasurement], gang: int) -> Block:
    first = ranks[0]
    columns: dict[str, Any] = {name: column(getattr(rank, name) for rank in ranks) for name in ("work", "seconds")}
    pairs = {pair: number for number, pair in enumerate(dict.fromkeys(map(_pair, ranks)))}
    groups: Any = column(pairs[_pair(rank)] for rank in ranks)
    if first.peer_rank is None:
        groups = column(rank.rank // first.world_size if first.world_size > 1 else 0 for rank in ranks)
    return Block(
        study=first.study, arm=Arm(first.probe, first.world_size).name, round=first.round,
        turn=turn, gang=gang,
        ranks=tuple(rank.rank for rank in ranks), groups=groups, count=first.iterations,
        began_unix_s=column(rank.started_unix_s for rank in ranks),
        readings={"is_correct": column(rank.is_correct for rank in ranks)}, **columns,
    )  # fmt: skip


def _pair(one: ProbeMeasurement) -> frozenset[int | None]:
    return frozenset((one.rank, one.peer_rank))


def _turns(ranks: Sequence[ProbeMeasurement]) -> list[list[ProbeMeasurement]]:
    of_pair: dict[frozenset[int | None], int] = {}
    turns: list[list[ProbeMeasurement]] = []
    for rank in ranks:
        pair = _pair(rank)
        busy = [turn for other, turn in of_pair.items() if None not in pair and pair & other and pair != other]
        turn = of_pair.setdefault(pair, next(turn for turn in range(len(busy) + 1) if turn not in busy))
        turn = 0 if rank.peer_rank is None else turn
        turns += [[] for _ in range(turn + 1 - len(turns))]
        turns[turn].append(rank)
    return turns


def probes_of(records: Iterable[AnyRecord]) -> list[ProbeMeasurement]:
    """What was probed among records, rank by rank, in their order."""
    gangs: dict[int, GangRecord] = {}
    found = []
    for one in records:
        if isinstance(one, GangRecord):
            gangs[one.gang] = one
        elif isinstance(one, Block) and one.study == PROBES:
            name, _, world_size = one.arm.partition("@")
            ranks, groups = one.each("ranks").tolist(), one.each("groups").tolist()
            columns = [one.each(name).tolist() for name in ("work", "count", "seconds", "began_unix_s")]
            columns.append(one.each("is_correct").tolist())
            for rank, group, work, count, seconds, began, is_correct in zip(ranks, groups, *columns, strict=True):
                place = gangs[one.gang].ranks[rank].place
                host, local_rank = place.of_rank
                others = [other for other, its in zip(ranks, groups, strict=True) if its == group and other != rank]
                peer = others[0] if name.startswith("send-recv") else None
                found.append(
                    ProbeMeasurement(
                        one.study, name, int(world_size or 1), one.round, rank, local_rank, host, place.uuid, work,
                        count, seconds, began, is_correct == 1, peer,
                    )
                )  # fmt: skip
    return found


def lines_of(
    measured: Sequence[Measurement] = (), probed: Sequence[ProbeMeasurement] = (), gang: int = 0
) -> list[AnyRecord]:
    """A gang, and all that it measured."""
    return [gang_of([*measured, *probed], gang), *blocks_of(measured, gang), *probe_blocks_of(probed, gang)]


def steady_block(
    study: str, arm: Arm, number: int, ranks: Sequence[int], samples_per_s: float, gang: int = 0, **changes: Any
) -> Block:
    """One arm in one round, all ranks at one pace, as a worker writes it: with steps, and replicas that agree."""
    block_s = arm.batch_size * 10 / samples_per_s
    step_s = step_bytes([block_s / 10 * (1 + 3e-7 * (number + 1))] * 10 * len(ranks))
    checksum = "c0ffee" * 2 + "c0de" if arm.kind == "ddp" else None
    fields: dict[str, Any] = {
        "study": study, "arm": arm.name, "round": number, "gang": gang, "work": float(arm.batch_size), "count": 10,
        "ranks": tuple(ranks), "groups": _groups(arm.name, len(ranks)), "began_unix_s": 1.7e9 + number,
        "seconds": block_s, "series": {STEP_S: step_s},
        "digests": checksum,
    }  # fmt: skip
    return Block(**(fields | changes))


def gang_on(hosts: Sequence[str], per_node: int, device: str = "cpu", number: int = 0, **of_ranks: Any) -> GangRecord:
    """Ranks on some hosts, so many on each; `device` may have a ``{}`` for the rank's number. See `gang_at`."""
    places = ((host, local_rank) for host in hosts for local_rank in range(per_node))
    named = [Place(*place, device.format(rank), place[1]) for rank, place in enumerate(places)]
    return gang_at(named, number, **of_ranks)
