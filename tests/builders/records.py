"""The lines of measurements.jsonl that say what some ranks measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.run.pair_record import PairMeasurement
from pytest_ddpscale.run.probe_record import ProbeBlock, ProbeMeasurement
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import (
    Block,
    GangRecord,
    SeededStep,
    SeededSteps,
    joined_checksums,
    step_bytes,
)
from pytest_ddpscale.run.strict_json import column
from pytest_ddpscale.run.transport_record import GangTransport, RankTransport, Transport, joined_transport
from tests.builders.measurements import Measurement

Placed = Measurement | SeededStep | ProbeMeasurement | Transport
_COLUMNS = (
    "steps", "started_unix_s", "block_s", "utilization", "energy_j", "peak_memory_bytes", "skipped_steps",
)  # fmt: skip


def gang_of(placed: Iterable[Placed | PairMeasurement], number: int = 0) -> GangRecord:
    """The gang of what was measured; ranks that measured nothing are on a host of their own."""
    places: dict[int, tuple[str, int, str]] = {}
    for one in placed:
        if isinstance(one, PairMeasurement):
            places |= dict(zip(one.ranks, zip(one.hosts, one.local_ranks, one.devices, strict=True), strict=True))
        else:
            places[one.rank] = one.host, one.local_rank, one.device
    device = "cpu" if all(device == "cpu" for _, _, device in places.values()) else "GPU-idle-{}"
    ranks = range(max(places, default=0) + 1)
    found = [places.get(rank, ("idle", rank, device.format(rank))) for rank in ranks]
    hosts, local_ranks, devices = zip(*found, strict=True)
    return GangRecord(gang=number, hosts=hosts, local_ranks=local_ranks, devices=devices)


def blocks_of(measured: Iterable[Measurement], gang: int = 0) -> list[Block]:
    """What ranks measured one after the other, as blocks of a run: no two take the same time to the last digit."""
    blocks = [list(ranks) for _, ranks in groupby(measured, lambda one: (one.study, one.arm, one.round))]
    return [block_of([replace(one, step_s=_distinct_steps(one)) for one in ranks], gang) for ranks in blocks]


def block_of(ranks: Sequence[Measurement], gang: int = 0) -> Block:
    """One block, which has the steps of all its ranks or of none."""
    first = ranks[0]
    columns: dict[str, Any] = {name: column(getattr(one, name) for one in ranks) for name in _COLUMNS}
    has_steps = all(one.step_s for one in ranks)
    stdev_s = None if has_steps else column(one.step_stdev_s for one in ranks)
    checksums = joined_checksums([one.parameters_checksum and f"{one.parameters_checksum:0>16}" for one in ranks])
    return Block(
        study=first.study, arm=first.arm, round=first.round, gang=gang, batch_size=first.batch_size,
        ranks=tuple(one.rank for one in ranks), step_s=b"".join(step_bytes(one.step_s) for one in ranks if has_steps),
        waited_s=b"".join(
            step_bytes([one.waited_s / one.steps] * one.steps) for one in ranks if one.waited_s is not None
        ),
        step_stdev_s=stdev_s, single_sample=first.single_sample, parameters_checksum=checksums, **columns,
    )  # fmt: skip


def _distinct_steps(one: Measurement) -> tuple[float, ...]:
    return tuple(step_s * (1 + 3e-7 * (one.round + 1)) for step_s in one.step_s)


def seeded_line(steps: Sequence[SeededStep], gang: int = 0) -> SeededSteps:
    """The steps that ranks of one study computed by themselves."""
    return SeededSteps(
        study=steps[0].study, gang=gang, ranks=tuple(one.rank for one in steps),
        checksums=column(one.checksum for one in steps), repeats=column(one.repeats for one in steps),
    )  # fmt: skip


def probe_blocks_of(probed: Iterable[ProbeMeasurement], gang: int = 0) -> list[ProbeBlock]:
    """What ranks probed one after the other, as blocks."""
    found = []
    for _, group in groupby(probed, lambda one: (one.probe, one.world_size, one.round)):
        ranks = list(group)
        columns: dict[str, Any] = {
            name: column(getattr(one, name) for one in ranks)
            for name in ("work", "seconds", "started_unix_s", "is_correct")
        }
        peers: Any = column(one.peer_rank for one in ranks)
        first = ranks[0]
        found.append(
            ProbeBlock(
                study=first.study, probe=first.probe, world_size=first.world_size, round=first.round, gang=gang,
                iterations=first.iterations, ranks=tuple(one.rank for one in ranks), peers=peers, **columns,
            )
        )  # fmt: skip
    return found


def probes_of(records: Iterable[AnyRecord]) -> list[ProbeMeasurement]:
    """What was probed among records, rank by rank, in their order."""
    gangs: dict[int, GangRecord] = {}
    found = []
    for one in records:
        if isinstance(one, GangRecord):
            gangs[one.gang] = one
        elif isinstance(one, ProbeBlock):
            peers = [None] * len(one.ranks) if one.peers is None else one.each("peers").tolist()
            names = ("ranks", "work", "seconds", "started_unix_s", "is_correct")
            columns = [one.each(name).tolist() for name in names]
            for rank, work, seconds, started, is_correct, peer in zip(*columns, peers, strict=True):
                host, local_rank, device = gangs[one.gang].place(rank)
                found.append(
                    ProbeMeasurement(
                        one.study, one.probe, one.world_size, one.round, rank, local_rank, host, device, work,
                        one.iterations, seconds, started, is_correct, peer,
                    )
                )  # fmt: skip
    return found


def transport_line(transports: Sequence[Transport], study: str = "weak/r", gang: int = 0) -> GangTransport:
    """What all ranks said of their connections."""
    names = RankTransport.__struct_fields__
    return joined_transport([RankTransport(**{n: getattr(one, n) for n in names}) for one in transports], study, gang)


def lines_of(
    measured: Sequence[Measurement] = (), probed: Sequence[ProbeMeasurement] = (), steps: Sequence[SeededStep] = (),
    gang: int = 0,
) -> list[AnyRecord]:  # fmt: skip
    """A gang, and all that it measured."""
    seeded = [seeded_line(list(some), gang) for _, some in groupby(steps, lambda one: one.study)]
    who = gang_of([*steps, *measured, *probed], gang)
    return [who, *seeded, *blocks_of(measured, gang), *probe_blocks_of(probed, gang)]


def steady_block(
    study: str, arm: Arm, number: int, ranks: Sequence[int], samples_per_s: float, gang: int = 0, **changes: Any
) -> Block:
    """One arm in one round, all ranks at one pace, as a worker writes it: with steps, and replicas that agree."""
    block_s = arm.batch_size * 10 / samples_per_s
    step_s = step_bytes([block_s / 10 * (1 + 3e-7 * (number + 1))] * 10 * len(ranks))
    checksum = "c0ffee" * 2 + "c0de" if arm.kind == "ddp" else None
    fields: dict[str, Any] = {
        "study": study, "arm": arm.name, "round": number, "gang": gang, "batch_size": arm.batch_size, "steps": 10,
        "ranks": tuple(ranks), "started_unix_s": 1.7e9 + number, "block_s": block_s, "step_s": step_s,
        "parameters_checksum": checksum,
    }  # fmt: skip
    return Block(**(fields | changes))


def gang_on(hosts: Sequence[str], per_node: int, device: str = "cpu", number: int = 0, **changes: Any) -> GangRecord:
    """Ranks on some hosts, so many on each; `device` may have a ``{}`` for the rank's number."""
    ranks = range(len(hosts) * per_node)
    fields: dict[str, Any] = {
        "gang": number, "hosts": tuple(hosts[rank // per_node] for rank in ranks),
        "local_ranks": tuple(rank % per_node for rank in ranks), "devices": tuple(map(device.format, ranks)),
    }  # fmt: skip
    return GangRecord(**(fields | changes))
