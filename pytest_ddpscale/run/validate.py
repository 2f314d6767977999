"""Refuse measurements that contradict themselves, their plan or each other.

Single lines that are invalid are refused when read (`run/record_lines.py`). Each check here yields contradictions
with their line; the first one becomes the error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import PROBES, Plan, Study
from pytest_ddpscale.run.block import Block, Unsupported
from pytest_ddpscale.run.column_record import IntArray
from pytest_ddpscale.run.probed_blocks import pairs_in, wrong_in_probe
from pytest_ddpscale.run.readings import STEP_S
from pytest_ddpscale.run.record_lines import AnyRecord, OfRanks
from pytest_ddpscale.run.records import GangRecord, RoundEnd, SeededSteps, WorkloadFlops, gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory, broken_file
from pytest_ddpscale.util.listing import first_few

# Steps follow each other without a gap and are timed by the same clock as their block: only rounding may differ.
STEPS_DIFFER_FROM_BLOCK = 0.05
_MOST_NAMED = 4  # ranks in one message


class Contradiction(NamedTuple):
    """The error in a line, counted from 1; `remedy` if it is another one than restoring the file."""

    line: int
    found: str
    expected: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Recorded:
    """The content of a run directory, to be checked for contradictions.

    Attributes:
        plan: of the run.
        records: all lines of measurements.jsonl.
        is_imported: measured by another tool, so device names are meaningless and there is no sequence of rounds.
        is_simulated: ranks may be missing.
    """

    plan: Plan
    records: Sequence[AnyRecord]
    is_imported: bool
    is_simulated: bool

    @cached_property
    def numbered(self) -> list[tuple[int, AnyRecord]]:
        """Each record with its line."""
        return list(enumerate(self.records, 1))

    @cached_property
    def blocks(self) -> list[tuple[int, Block]]:
        """What was timed, with its lines."""
        return [(line, one) for line, one in self.numbered if isinstance(one, Block)]

    @cached_property
    def trained(self) -> list[tuple[int, Block, Study, Arm]]:
        """Blocks of training, with their lines, studies and arms."""
        studies = {study.id: study for study in self.plan.studies}
        found = ((line, one, studies[one.study]) for line, one in self.blocks if one.study in studies)
        arms = ((line, one, study, study.arm(one.arm)) for line, one, study in found)
        return [(line, one, study, arm) for line, one, study, arm in arms if arm is not None]

    @cached_property
    def gangs(self) -> Mapping[int, GangRecord]:
        """Gangs by number."""
        return gangs_by_number(self.records)

    @cached_property
    def ends(self) -> Mapping[tuple[str, int], tuple[int, RoundEnd]]:
        """Ends of rounds with their lines, by study and number."""
        return {(one.study, one.round): (line, one) for line, one in self.numbered if isinstance(one, RoundEnd)}

    @cached_property
    def arms(self) -> Mapping[str, Mapping[str, Arm]]:
        """Planned arms, by study and name."""
        return {study.id: {arm.name: arm for arm in study.arms} for study in self.plan.timed}

    @cached_property
    def unsupported(self) -> Mapping[str, Collection[int]]:
        """Ranks that could not run a probe, by probe id."""
        found: dict[str, set[int]] = {}
        for one in self.records:
            if isinstance(one, Unsupported):
                found.setdefault(one.arm, set()).update(one.ranks)
        return found

    def layout(self, gang: int) -> Layout:
        """Layout of a gang; a simulated cluster may have more hosts than its plan."""
        who = self.gangs[gang]
        nodes = len(set(who.hosts)) if self.plan.nodes > 1 else 1
        return Layout(nodes, max(1, who.world_size // nodes))


def refuse_contradictions(run: RunDirectory, recorded: Recorded) -> None:
    """Refuse a run with contradictory measurements.

    Args:
        run: its directory, for the message.
        recorded: its content.

    Raises:
        RunDirectoryError: the message has the line.
    """
    everywhere = (_said_twice, _unplanned, _impossible_steps, _arms_that_come_back, _left_out)
    gangs = (_other_devices, _shared_gpus, _shared_launches, _several_gangs, _other_places)
    measured = (*gangs, _out_of_turn, _other_ranks, _wrong_probes, _no_steps)
    checks: tuple[_Check, ...] = everywhere if recorded.is_imported else (*everywhere, *measured)
    for check in checks:
        for line, found, expected, remedy in check(recorded):
            if not expected:
                raise broken_file(run.measurements_jsonl, f"line {line} {found}")
            raise RunDirectoryError(str(run.measurements_jsonl), f"line {line} {found}", expected, remedy)


_Check = Callable[[Recorded], Iterator[Contradiction]]


def _said_twice(recorded: Recorded) -> Iterator[Contradiction]:
    """Each arm, round and turn, and each unique record of a study, has one line."""
    seen: dict[tuple[object, ...], int] = {}
    for line, one in recorded.numbered:
        if isinstance(one, Block):
            what, key = "block", (*one.key, one.turn)
        elif isinstance(one, RoundEnd):
            what, key = "round", (one.study, "", one.round, 0)
        elif isinstance(one, SeededSteps | WorkloadFlops):
            what, key = type(one).__name__, (one.study, "", 0, 0)
        else:
            continue
        first = seen.setdefault((what, *key), line)
        if first != line:
            of = ", ".join(filter(None, key[:2]))
            yield Contradiction(line, f"is another {what} {key[2]} of {of} than line {first}")


def _unplanned(recorded: Recorded) -> Iterator[Contradiction]:
    for line, one in recorded.numbered:
        if isinstance(one, Block | Unsupported | RoundEnd):
            if isinstance(one, Unsupported) and one.study != PROBES:  # its rounds could be left out
                yield Contradiction(line, f"has {one.arm} of {one.study} as unsupported, which only a probe can be")
            for name in one.arms if isinstance(one, RoundEnd) else [one.arm]:
                if name not in recorded.arms.get(one.study, ()):
                    yield Contradiction(line, f"has {name} of {one.study}, which plan.json does not plan")
    for line, block, _, arm in recorded.trained:
        if (block.each("work") != arm.batch_size).any():
            found = f"has {block.each('work').max():g} {recorded.plan.samples} a step of {block.study}, {block.arm}"
            yield Contradiction(line, f"{found}, for which plan.json plans {arm.batch_size}")


def _impossible_steps(recorded: Recorded) -> Iterator[Contradiction]:
    """The steps of a rank fill its block; pairs have steps."""
    for line, block in recorded.blocks:
        if STEP_S not in block.series:
            if block.study == PAIRS:
                yield Contradiction(line, f"has no times of messages ({STEP_S}) of {block.arm}")
            continue
        steps, seconds = block.of_steps(STEP_S), block.each("seconds")
        impossible = ~(np.isfinite(steps) & (steps > 0))
        if impossible.any():
            yield Contradiction(line, f"has a step of {steps[impossible][0]:g} s ({STEP_S})")
        total_s = steps.sum(axis=1, dtype=np.float64)
        differ = np.abs(total_s - seconds) > STEPS_DIFFER_FROM_BLOCK * seconds
        if differ.any():
            rank = int(np.argmax(differ))
            in_all = f"has steps of {total_s[rank]:g} s in all ({STEP_S}) of rank {block.ranks[rank]}"
            yield Contradiction(line, f"{in_all} in a block of {seconds[rank]:g} s")


def _shared_launches(recorded: Recorded) -> Iterator[Contradiction]:
    """Each launch has its own processes: one gang measures one launch only."""
    launches: dict[int, int] = {}
    for line, one in recorded.numbered:
        if recorded.is_simulated or not isinstance(one, OfRanks):
            continue
        launch = recorded.plan.launch_of(one.study)
        first = launches.setdefault(one.gang, launch)
        if first != launch:
            found = f"has {one.study}, of launch {launch}, measured by gang {one.gang}, which measured launch {first}"
            yield Contradiction(line, found)


def _several_gangs(recorded: Recorded) -> Iterator[Contradiction]:
    """One gang measures all rounds of a study, because others may have other software, devices or memory placement.

    A study whose gang ended is measured from its first round again, by `--ddp-resume`, or not at all.
    """
    gangs: dict[str, int] = {}
    for line, one in recorded.numbered:
        if recorded.is_simulated or not isinstance(one, Block | SeededSteps):
            continue
        first = gangs.setdefault(one.study, one.gang)
        if first != one.gang:
            yield Contradiction(line, f"has {one.study} measured by gang {one.gang}, as well as by gang {first}")


def _arms_that_come_back(recorded: Recorded) -> Iterator[Contradiction]:
    """An arm is dropped for good once all requirements on it are decided, but not before the fewest rounds.

    The same holds for probes; unsupported ones may be dropped earlier.
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
    """A round that has ended timed exactly the arms in its end record."""
    timed: dict[tuple[str, int], set[str]] = {}
    for line, one in recorded.numbered:
        if isinstance(one, Block):
            timed.setdefault((one.study, one.round), set()).add(one.arm)
            end = recorded.ends.get((one.study, one.round))
            if end is not None and one.arm not in end[1].arms:
                yield Contradiction(line, f"is a measurement of an arm that its round left out (line {end[0]})")
    if recorded.is_simulated:  # all ranks of an arm may be missing
        return
    for (study, number), (line, over) in recorded.ends.items():
        absent = set(over.arms) - timed.get((study, number), set()) - recorded.unsupported.keys()
        if absent:
            found = f"ends round {number} of {study}, of which {', '.join(sorted(absent))} was not recorded"
            yield Contradiction(line, found)


def _other_devices(recorded: Recorded) -> Iterator[Contradiction]:
    """A plan for GPUs is not measured on a CPU, nor the other way round."""
    for line, one in recorded.numbered:
        if isinstance(one, GangRecord):
            for device in one.devices:
                if (device == "cpu") != (recorded.plan.device_type == "cpu"):
                    found = f"has ranks on {device!r}, but plan.json plans for {recorded.plan.device_type}"
                    yield Contradiction(line, found)


def _shared_gpus(recorded: Recorded) -> Iterator[Contradiction]:
    """Each rank has its own GPU; with a shared one, another GPU was not measured."""
    for line, one in recorded.numbered:
        if not isinstance(one, GangRecord) or recorded.plan.device_type == "cpu":  # shared by all ranks
            continue
        users: dict[str, int] = {}
        for rank, device in enumerate(one.devices):
            if users.setdefault(device, rank) != rank:
                yield Contradiction(
                    line,
                    f"has rank {rank} on {device}, as rank {users[device]}",
                    "a separate GPU for every rank",
                    "Restore the file from a copy, or measure again with as many GPUs as ranks.",
                )


def _other_places(recorded: Recorded) -> Iterator[Contradiction]:
    """Nodes are judged separately, so each has a unique name and consecutive ranks."""
    plan = recorded.plan
    for line, one in recorded.numbered:
        if not isinstance(one, GangRecord):
            continue
        if one.world_size > plan.layout.world_size:
            found = f"has {one.world_size} ranks, but plan.json plans for {plan.layout.world_size}"
            yield Contradiction(line, found)
        if plan.nodes == 1:  # the plan of a simulated run may have 1 node with several hosts
            if not recorded.is_simulated and len(set(one.hosts)) > 1:
                yield Contradiction(line, f"has ranks on {len(set(one.hosts))} hosts, but plan.json plans for 1")
            continue
        places = list(zip(one.hosts, one.local_ranks, strict=True))
        if len(set(places)) != len(places):
            host, local_rank = next(place for place in places if places.count(place) > 1)
            yield Contradiction(
                line,
                f"has two ranks as local rank {local_rank} of {host}, on different nodes",
                "a unique name for every node",
                "Give the nodes different host names, because results could not be assigned, and measure again.",
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
            if count < plan.nodes and not plan.fits_nodes(block.study):  # studies that fit a node may lack lost nodes
                yield Contradiction(line, f"has {block.study} on {count} hosts, but plan.json plans for {plan.nodes}")


def _out_of_turn(recorded: Recorded) -> Iterator[Contradiction]:
    """All ranks of a node train an arm of one rank in turn, so a slow one cannot be skipped."""
    for line, block, study, arm in recorded.trained:
        if arm.world_size != 1:
            continue
        turn, ranks = study.turn(recorded.plan.seed, block.round), block.each("ranks")
        turns = np.array(recorded.gangs[block.gang].local_ranks)[ranks] if recorded.plan.nodes > 1 else ranks
        if (turns != turn).any():
            found = f"has rank {ranks[turns != turn][0]} in round {block.round} of {block.arm} of {block.study}"
            yield Contradiction(line, f"{found}, in which it is rank {turn}'s turn")


def _other_ranks(recorded: Recorded) -> Iterator[Contradiction]:
    """All ranks of an arm or a study take part, because a missing one might be the slow one."""
    studies = {study.id: study for study in recorded.plan.studies}
    measured: dict[tuple[str, str, int], list[tuple[int, Block]]] = {}
    for line, block in recorded.blocks if not recorded.is_simulated else ():
        measured.setdefault(block.key, []).append((line, block))
    for turns in measured.values():
        (line, block), layout = turns[-1], recorded.layout(turns[-1][1].gang)
        arm, study = recorded.arms[block.study][block.arm], studies.get(block.study)
        if block.study == PAIRS:
            continue  # chosen while measuring
        there = np.unique(np.concatenate([one.each("ranks") for _, one in turns]))
        if study is not None:
            expected: Collection[int] = layout.ranks([arm], study.turn(recorded.plan.seed, block.round))
        else:
            everybody = {rank for group in layout.groups_of_round(arm) for rank in group}
            # A rank may run out of memory in a later round than its first; what it measured before is kept.
            unable = set(recorded.unsupported.get(block.arm, ())).difference(there.tolist())
            expected = everybody - unable
        yield from _differ(line, expected, there, f"{block.arm} of {block.study}")
    for line, one in recorded.numbered:
        if isinstance(one, SeededSteps):
            study = studies.get(one.study)
            due = _ranks(study.arms, study.turns, recorded.layout(one.gang)) if study else ()
            yield from _differ(line, due, np.array(one.ranks), f"the seeded step of {one.study}")


def _wrong_probes(recorded: Recorded) -> Iterator[Contradiction]:
    """Probes have results, in their planned groups, each once in a round; training takes no turns within one."""
    seen: dict[tuple[str, str, int], list[IntArray]] = {}
    for line, block in recorded.blocks:
        arm = recorded.arms[block.study][block.arm]
        if not arm.is_probe:
            if block.turn:
                yield Contradiction(line, f"is turn {block.turn} of {block.arm}, whose groups take no turns")
            continue
        between_nodes = block.study == PAIRS
        if wrong := wrong_in_probe(block, arm, recorded.layout(block.gang), between_nodes=between_nodes):
            yield Contradiction(line, wrong)
        if arm.operation.kind == "send-recv":
            earlier = seen.setdefault(block.key, [])
            if any(np.isin(pairs_in(block), one).any() for one in earlier):
                yield Contradiction(line, f"has a pair of {block.arm} that an earlier turn of round {block.round} has")
            earlier.append(pairs_in(block))


def _differ(line: int, expected: Collection[int], there: IntArray, what: str) -> Iterator[Contradiction]:
    due = np.fromiter(expected, np.int64, len(expected))
    if np.array_equal(due, there):
        return
    absent, others = np.setdiff1d(due, there), np.setdiff1d(there, due)
    if len(absent) or len(others):
        said = "lacks" if len(absent) else "has"
        ranks = first_few([str(rank) for rank in (absent if len(absent) else others)], _MOST_NAMED)
        yield Contradiction(line, f"{said} rank {ranks} of {what}")


def _ranks(arms: Sequence[Arm], turns: int, layout: Layout) -> Collection[int]:
    return {rank for turn in range(turns) for rank in layout.ranks(arms, turn)}


def _no_steps(recorded: Recorded) -> Iterator[Contradiction]:
    """Measured blocks have step times, and replicas have checksums."""
    for line, block, _, arm in recorded.trained:
        if STEP_S not in block.series and not recorded.is_simulated:
            yield Contradiction(line, f"has no step times ({STEP_S})")
        if arm.kind == "ddp" and not block.checksums.all():
            yield Contradiction(line, "has a replica without a checksum (digests)")
