"""Measurements that contradict themselves, their plan or each other: no verdict can rest on them.

What a line cannot say is refused as it is read (`results/record_lines.py`). Each check here yields what it finds wrong,
with the line; the first one is the refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.probe import SINGLE_DEVICE, Probe
from pytest_ddpscale.plan.probe_pairs import pair_turns
from pytest_ddpscale.plan.study import Arm, Plan
from pytest_ddpscale.results.column_record import FloatArray
from pytest_ddpscale.results.pair_record import PairRound
from pytest_ddpscale.results.probe_record import ProbeBlock, ProbeUnsupported
from pytest_ddpscale.results.record_lines import AnyRecord, OfRanks
from pytest_ddpscale.results.records import (
    Block,
    GangRecord,
    RoundEnd,
    SeededSteps,
    WorkloadFlops,
    gangs_by_number,
)
from pytest_ddpscale.results.run_directory import RunDirectory, broken_file
from pytest_ddpscale.results.run_record import studies_measured
from pytest_ddpscale.results.telemetry_record import TelemetryBlock
from pytest_ddpscale.util.listing import first_few

# Steps follow each other without a gap, timed by the same clock as their block: only its rounding may differ.
STEPS_DIFFER_FROM_BLOCK = 0.05
_MOST_NAMED = 4  # ranks in one message


class Contradiction(NamedTuple):
    """What is wrong with a line, from 1; and what to do, where that is not to have the file restored."""

    line: int
    found: str
    expected: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Recorded:
    """What a run directory says, to be held against itself.

    Attributes:
        plan: what was to be measured.
        records: all lines of measurements.jsonl.
        hosts: hosts and their devices as run.json has them once a run has ended; empty before.
        is_imported: another tool measured it: its names of devices say nothing, and it has no course.
        is_simulated: ranks of it may be missing.
    """

    plan: Plan
    records: Sequence[AnyRecord]
    hosts: Mapping[str, Collection[str]]
    is_imported: bool
    is_simulated: bool

    @cached_property
    def numbered(self) -> list[tuple[int, AnyRecord]]:
        """Each record with its line."""
        return list(enumerate(self.records, start=1))

    @cached_property
    def blocks(self) -> list[tuple[int, Block]]:
        """What was trained, with its lines."""
        return [(line, one) for line, one in self.numbered if isinstance(one, Block)]

    @cached_property
    def gangs(self) -> Mapping[int, GangRecord]:
        """By number."""
        return gangs_by_number(self.records)

    @cached_property
    def ends(self) -> Mapping[tuple[str, int], tuple[int, RoundEnd]]:
        """Ends of rounds with their lines, by study and number."""
        return {(one.study, one.round): (line, one) for line, one in self.numbered if isinstance(one, RoundEnd)}

    @cached_property
    def arms(self) -> Mapping[str, Mapping[str, Arm | Probe]]:
        """What is planned, by study and name."""
        planned: dict[str, Mapping[str, Arm | Probe]] = {
            study.id: {arm.name: arm for arm in study.arms} for study in self.plan.studies
        }
        if self.plan.probes is not None:
            planned[self.plan.probes.id] = {probe.id: probe for probe in self.plan.probes.probes}
        return planned

    @cached_property
    def unsupported(self) -> Mapping[str, Collection[int]]:
        """Ranks that could not do a probe, by its id."""
        found: dict[str, set[int]] = {}
        for one in self.records:
            if isinstance(one, ProbeUnsupported):
                found.setdefault(one.probe, set()).update(one.ranks)
        return found

    def layout(self, gang: int) -> Layout:
        """Of a gang: a simulated cluster may have more hosts than its plan knows of."""
        who = self.gangs[gang]
        nodes = len(set(who.hosts)) if self.plan.nodes > 1 else 1
        return Layout(nodes, max(1, who.world_size // nodes))


def refuse_contradictions(run: RunDirectory, recorded: Recorded) -> None:
    """Refuse a run in which something measured cannot be so.

    Args:
        run: where it lies, for the message.
        recorded: what it says.

    Raises:
        RunDirectoryError: the message has the line.
    """
    everywhere = (_said_twice, _unplanned, _impossible_steps, _copied_rounds, _arms_that_come_back, _left_out)
    gangs = (_other_devices, _shared_gpus, _shared_launches, _other_places, _other_hosts)
    measured = (*gangs, _out_of_turn, _other_ranks, _no_steps)
    checks: tuple[_Check, ...] = everywhere if recorded.is_imported else (*everywhere, *measured)
    for check in checks:
        for line, found, expected, remedy in check(recorded):
            if not expected:
                raise broken_file(run.measurements_jsonl, f"line {line} {found}")
            raise RunDirectoryError(str(run.measurements_jsonl), f"line {line} {found}", expected, remedy)


_Check = Callable[[Recorded], Iterator[Contradiction]]


def telemetry_of_blocks(
    run: RunDirectory, recorded: Recorded, telemetry: Sequence[TelemetryBlock]
) -> list[TelemetryBlock]:
    """The telemetry of what was measured.

    It is written before its block, so that a study which did not come to its own end may have some without: that is
    left out.

    Args:
        run: where it lies, for the message.
        recorded: what was measured.
        telemetry: all lines of telemetry.jsonl.

    Raises:
        RunDirectoryError: one is of a block that was not measured, or there are two; the message has the line.
    """
    timed = {_key(one): one for one in recorded.records if isinstance(one, Block | ProbeBlock)}
    ended = studies_measured(recorded.records)
    found: dict[tuple[str, str, int], TelemetryBlock] = {}
    for line, one in enumerate(telemetry, start=1):
        key = one.study, one.arm, one.round
        of, block = f"line {line} is telemetry of {one.study}, {one.arm}, round {one.round}", timed.get(key)
        if block is None:
            if one.study in ended or one.arm not in recorded.arms.get(one.study, ()):
                raise broken_file(run.telemetry_jsonl, f"{of}, which was not measured")
            continue
        if block.gang != one.gang or not np.array_equal(_times(block), _times(one)):
            raise broken_file(run.telemetry_jsonl, f"{of}, which other ranks measured, or at another time")
        if key in found:
            raise broken_file(run.telemetry_jsonl, f"{of}, of which an earlier line tells")
        found[key] = one
    return list(found.values())


def _key(block: Block | ProbeBlock) -> tuple[str, str, int]:
    return block.study, block.arm if isinstance(block, Block) else block.probe_id, block.round


def _times(block: Block | ProbeBlock | TelemetryBlock) -> FloatArray:
    """When the ranks began, and which they are, sorted, (2, ranks)."""
    ranks = np.asarray(block.ranks)
    times = np.stack([np.broadcast_to(np.asarray(block.started_unix_s), len(ranks)), ranks])
    return times[:, np.lexsort(times)]


def _said_twice(recorded: Recorded) -> Iterator[Contradiction]:
    """Of each arm and round, and of what a study has one of, there is one line."""
    seen: dict[tuple[object, ...], int] = {}
    for line, one in recorded.numbered:
        if isinstance(one, Block | ProbeBlock):
            what, key = "block", _key(one)
        elif isinstance(one, RoundEnd | PairRound):
            what, key = "round", (one.study, "", one.round)
        elif isinstance(one, SeededSteps | WorkloadFlops):
            what, key = type(one).__name__, (one.study, "", 0)
        else:
            continue
        first = seen.setdefault((type(one), *key), line)
        if first != line:
            of = ", ".join(filter(None, (one.study, str(key[1]))))
            yield Contradiction(line, f"is another {what} {key[2]} of {of} than line {first}")


def _unplanned(recorded: Recorded) -> Iterator[Contradiction]:
    plan = recorded.plan
    for line, one in recorded.numbered:
        names: Iterable[str] = ()
        if isinstance(one, Block):
            names, arm = [one.arm], recorded.arms.get(one.study, {}).get(one.arm)
            if isinstance(arm, Arm) and arm.batch_size != one.batch_size:
                found = f"has {one.batch_size} images a step of {one.study}, {one.arm}, for which plan.json plans"
                yield Contradiction(line, f"{found} {arm.batch_size}")
        elif isinstance(one, ProbeBlock):
            names = [one.probe_id]
        elif isinstance(one, ProbeUnsupported):
            names = [one.probe]
        elif isinstance(one, RoundEnd):
            names = one.arms
        elif isinstance(one, PairRound) and (plan.pairs is None or one.study != plan.pairs.id):
            yield Contradiction(line, f"has pairs of nodes of {one.study}, which plan.json does not plan")
        for name in names:
            if name not in recorded.arms.get(one.study, ()):  # type: ignore[union-attr]  # all with names have one
                yield Contradiction(line, f"has {name} of {one.study}, which plan.json does not plan")  # type: ignore[union-attr]


def _impossible_steps(recorded: Recorded) -> Iterator[Contradiction]:
    """The steps of a rank fill its block, and it waits for data where it reads a folder, and nowhere else."""
    for line, block in recorded.blocks:
        if not block.step_s:
            continue
        study = recorded.plan.study(block.study)
        arm = study and study.arm(block.arm)
        if (
            study
            and arm
            and not recorded.is_simulated
            and (arm.data_of(study.workload) == "synthetic") == bool(block.waited_s)
        ):
            yield Contradiction(line, f"has {len(block.waited_s)} bytes of seconds waited for data (waited_s)")
        steps, block_s = np.frombuffer(block.step_s, "<f4").reshape(len(block.ranks), -1), block.each("block_s")
        impossible = ~(np.isfinite(steps) & (steps > 0))
        if impossible.any():
            yield Contradiction(line, f"has a step of {steps[impossible][0]:g} s (step_s)")
        total_s = steps.sum(axis=1, dtype=np.float64)
        differ = np.abs(total_s - block_s) > STEPS_DIFFER_FROM_BLOCK * block_s
        if differ.any():
            rank = int(np.argmax(differ))
            in_all = f"has steps of {total_s[rank]:g} s in all (step_s) of rank {block.ranks[rank]}"
            yield Contradiction(line, f"{in_all} in a block of {block_s[rank]:g} s")


def _copied_rounds(recorded: Recorded) -> Iterator[Contradiction]:
    """No two rounds take the same time to the last digit, on any rank, step by step, in whatever launch."""
    studies = {study.id: replace(study, launch=1).id for study in recorded.plan.studies}
    seen: dict[tuple[object, ...], int] = {}
    for line, block in recorded.blocks:
        if not block.step_s:
            continue
        first = seen.setdefault((studies[block.study], block.arm, block.step_s), line)
        if first != line:
            yield Contradiction(line, f"has the step times of line {first}, of another round, to the last digit")


def _shared_launches(recorded: Recorded) -> Iterator[Contradiction]:
    """Each launch has processes of its own: what one gang measured is one launch, however it is called."""
    launches: dict[int, int] = {}
    for line, one in recorded.numbered:
        if recorded.is_simulated or not isinstance(one, OfRanks):
            continue
        launch = recorded.plan.launch_of(one.study)
        first = launches.setdefault(one.gang, launch)
        if first != launch:
            found = f"has {one.study}, of launch {launch}, measured by gang {one.gang}, which measured launch {first}"
            yield Contradiction(line, found)


def _arms_that_come_back(recorded: Recorded) -> Iterator[Contradiction]:
    """An arm is left out once all that needs it is decided: not before the fewest rounds, and for good.

    So is a probe, and before that one which a rank could not do.
    """
    for study, arms in recorded.arms.items():
        before = arms.keys() & set(arms)
        for number in sorted(number for of, number in recorded.ends if of == study):
            line, end = recorded.ends[study, number]
            timed = set(end.arms)
            is_early = number < FEWEST_ROUNDS and not arms.keys() - recorded.unsupported.keys() <= timed
            if not timed <= before or is_early:
                found = f"{', '.join(sorted(timed)) or 'nothing'} after {', '.join(sorted(before))}"
                yield Contradiction(line, f"is a round_end that times {found}")
            before = timed


def _left_out(recorded: Recorded) -> Iterator[Contradiction]:
    """A round that has ended timed what it says: no other arm, and each of those."""
    timed: dict[tuple[str, int], set[str]] = {}
    for line, one in recorded.numbered:
        if isinstance(one, Block | ProbeBlock):
            _, arm, _ = _key(one)
            timed.setdefault((one.study, one.round), set()).add(arm)
            end = recorded.ends.get((one.study, one.round))
            if end is not None and arm not in end[1].arms:
                yield Contradiction(line, f"is a measurement of an arm that its round left out (line {end[0]})")
    if recorded.is_simulated:  # in which all ranks of an arm may be missing
        return
    for (study, number), (line, over) in recorded.ends.items():
        absent = set(over.arms) - timed.get((study, number), set()) - recorded.unsupported.keys()
        if absent:
            found = f"ends round {number} of {study}, of which {', '.join(sorted(absent))} was not recorded"
            yield Contradiction(line, found)


def _other_devices(recorded: Recorded) -> Iterator[Contradiction]:
    """A plan of GPUs is not measured on a CPU, nor the other way round."""
    for line, one in recorded.numbered:
        if isinstance(one, GangRecord):
            for device in one.devices:
                if (device == "cpu") != (recorded.plan.device_type == "cpu"):
                    found = f"has ranks on {device!r}, but plan.json plans for {recorded.plan.device_type}"
                    yield Contradiction(line, found)


def _shared_gpus(recorded: Recorded) -> Iterator[Contradiction]:
    """Ranks have a GPU each: another one was left out, and nothing is known of it."""
    for line, one in recorded.numbered:
        if not isinstance(one, GangRecord) or recorded.plan.device_type == "cpu":  # which all ranks share
            continue
        users: dict[str, int] = {}
        for rank, device in enumerate(one.devices):
            if users.setdefault(device, rank) != rank:
                yield Contradiction(
                    line,
                    f"has rank {rank} on {device}, as rank {users[device]}",
                    "a GPU of its own for every rank",
                    "Restore the file from a copy, or measure again with as many GPUs as ranks.",
                )


def _other_places(recorded: Recorded) -> Iterator[Contradiction]:
    """Of several nodes each is judged by itself: each has a name of its own, and its ranks one after the other."""
    plan = recorded.plan
    for line, one in recorded.numbered:
        if not isinstance(one, GangRecord):
            continue
        if one.world_size > plan.layout.world_size:
            found = f"has {one.world_size} ranks, but plan.json plans for {plan.layout.world_size}"
            yield Contradiction(line, found)
        if plan.nodes == 1:  # a simulated run says 1, however many hosts it has
            if not recorded.is_simulated and len(set(one.hosts)) > 1:
                yield Contradiction(line, f"has ranks on {len(set(one.hosts))} hosts, but plan.json plans for 1")
            continue
        places = list(zip(one.hosts, one.local_ranks, strict=True))
        if len(set(places)) != len(places):
            host, local_rank = next(place for place in places if places.count(place) > 1)
            yield Contradiction(
                line,
                f"has two ranks as local rank {local_rank} of {host}, on different nodes",
                "a name of its own for every node",
                "Give the nodes different host names, and measure again: they could not be told apart.",
            )
        hosts = list(dict.fromkeys(one.hosts))
        per_node, rest = divmod(one.world_size, len(hosts))
        if rest or places != [(host, local_rank) for host in hosts for local_rank in range(per_node)]:
            yield Contradiction(line, "has ranks that are not numbered node by node, with as many on each")
        if len(hosts) > plan.nodes:
            yield Contradiction(line, f"has ranks on {len(hosts)} hosts, but plan.json plans for {plan.nodes}")
    for line, block in recorded.numbered:
        if isinstance(block, OfRanks):
            count = len(set(recorded.gangs[block.gang].hosts))
            if count < plan.nodes and not plan.fits_nodes(block.study):  # what was lost may lack in what fits a node
                yield Contradiction(line, f"has {block.study} on {count} hosts, but plan.json plans for {plan.nodes}")


def _other_hosts(recorded: Recorded) -> Iterator[Contradiction]:
    """Once a run has ended, run.json has the devices of all its gangs."""
    for line, one in recorded.numbered:
        if isinstance(one, GangRecord) and recorded.hosts:
            for host, device in sorted(one.places_of_devices):
                if device not in recorded.hosts.get(host, ()):
                    yield Contradiction(line, f"has a rank on {device} of {host}, which run.json does not have")


def _out_of_turn(recorded: Recorded) -> Iterator[Contradiction]:
    """An arm of one rank is trained by all ranks of a node in turn: a slow one must not be passed over."""
    studies = {study.id: study for study in recorded.plan.studies}
    for line, block in recorded.blocks:
        arm = recorded.arms[block.study][block.arm]
        if arm.world_size != 1:
            continue
        turn, ranks = studies[block.study].turn(recorded.plan.seed, block.round), block.each("ranks")
        turns = np.array(recorded.gangs[block.gang].local_ranks)[ranks] if recorded.plan.nodes > 1 else ranks
        if (turns != turn).any():
            found = f"has rank {ranks[turns != turn][0]} in round {block.round} of {block.arm} of {block.study}"
            yield Contradiction(line, f"{found}, in which it is rank {turn}'s turn")


def _other_ranks(recorded: Recorded) -> Iterator[Contradiction]:
    """All ranks of an arm, a probe or a study take part in it: one that is left out might be the slow one."""
    studies = {study.id: study for study in recorded.plan.studies}
    seed = recorded.plan.seed
    for line, one in recorded.numbered:
        if not isinstance(one, Block | ProbeBlock | SeededSteps):
            continue
        layout = recorded.layout(one.gang)
        if isinstance(one, SeededSteps):
            what = "the seeded step"
            expected = _ranks(studies[one.study].arms, studies[one.study].turns, layout) if one.study in studies else ()
        elif recorded.is_simulated:
            continue
        elif isinstance(one, ProbeBlock):
            what = one.probe_id
            expected = _probed(Probe(one.probe, one.world_size), layout)
            expected = [rank for rank in expected if rank not in recorded.unsupported.get(what, ())]
        else:
            what, arm = one.arm, studies[one.study].arm(one.arm)
            assert arm is not None  # planned
            expected = layout.ranks([arm], studies[one.study].turn(seed, one.round))
        due = np.fromiter(expected, np.int64, len(expected))
        if np.array_equal(due, one.ranks):
            continue
        absent, others = np.setdiff1d(due, one.ranks), np.setdiff1d(one.ranks, due)
        if len(absent) or len(others):
            said = "lacks" if len(absent) else "has"
            ranks = first_few([str(rank) for rank in (absent if len(absent) else others)], _MOST_NAMED)
            yield Contradiction(line, f"{said} rank {ranks} of {what} of {one.study}")


def _ranks(arms: Sequence[Arm], turns: int, layout: Layout) -> Collection[int]:
    return {rank for turn in range(turns) for rank in layout.ranks(arms, turn)}


def _probed(probe: Probe, layout: Layout) -> Collection[int]:
    if probe.kind in SINGLE_DEVICE:
        return range(layout.world_size)
    if probe.kind == "send-recv":
        return {rank for turn in pair_turns(probe, layout) for pair in turn for rank in pair}
    return layout.ranks([Arm("ddp", probe.world_size, 1)])


def _no_steps(recorded: Recorded) -> Iterator[Contradiction]:
    """What was measured here has step times, replicas that have to agree have checksums, and no sample stands alone."""
    for line, block in recorded.blocks:
        if not block.step_s and not recorded.is_simulated:
            yield Contradiction(line, "has no step times (step_s)")
        if block.single_sample:
            yield Contradiction(line, "is the single sample of an imported result (single_sample)")
        kind = getattr(recorded.arms[block.study][block.arm], "kind", "")
        if kind == "ddp" and not block.checksums.all():
            yield Contradiction(line, "has a replica without a checksum (parameters_checksum)")
        if kind == "infer" and (np.any(block.skipped_steps) or block.checksums.any()):
            yield Contradiction(line, "has traces of training in forward passes (skipped_steps, parameters_checksum)")
