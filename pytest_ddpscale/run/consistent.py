"""Refuse measurements that contradict themselves, their plan or each other.

Invalid lines are refused when read (`run/record_lines.py`). Here the groups of ranks that worked in each round are
compared with those of the plan: a missing rank might be the slow one, a rank out of turn could hide it, and the speed
of one group would count for another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.run.block import Block, Unsupported
from pytest_ddpscale.run.column_record import BoolArray, IntArray
from pytest_ddpscale.run.profile_record import ArmProfile
from pytest_ddpscale.run.readings import STEP_S
from pytest_ddpscale.run.record_lines import AnyRecord, OfRanks
from pytest_ddpscale.run.records import GangRecord, RoundEnd, SeededSteps, WorkloadFlops
from pytest_ddpscale.run.run_directory import RunDirectory, broken_file
from pytest_ddpscale.util.listing import first_few

# Steps follow each other without a gap and are timed by the same clock as their block: only rounding may differ.
STEPS_DIFFER_FROM_BLOCK = 0.05
_MOST_NAMED = 4  # ranks in one message


def refuse_contradictions(
    run: RunDirectory, plan: Plan, records: Sequence[AnyRecord], *, is_imported: bool, is_simulated: bool
) -> None:
    """Refuse a run with contradictory measurements.

    Args:
        run: its directory, for the message.
        plan: what should have been measured.
        records: all lines of measurements.jsonl.
        is_imported: measured by another tool, so device names are meaningless and ranks had no turns.
        is_simulated: ranks may be missing, and one gang measures all launches.

    Raises:
        RunDirectoryError: the message has the line.
    """
    said = _Said(plan, records, is_simulated)
    everywhere = (said.once, said.planned, said.in_steps, said.in_rounds)
    for check in everywhere if is_imported else (*everywhere, said.of_gangs, said.by_gangs, said.by_ranks):
        for line, one in enumerate(records, 1):
            try:
                check(one)
            except ValueError as error:
                found, *expected = error.args
                if not expected:
                    raise broken_file(run.measurements_jsonl, f"line {line} {found}") from None
                raise RunDirectoryError(str(run.measurements_jsonl), f"line {line} {found}", *expected) from None


class _Said:
    """All lines, and checks of one of them against the others and the plan.

    A check may assume that all lines passed those before it. It raises ValueError with what was found; if restoring the
    file is no remedy, also with what was expected and what to do.
    """

    def __init__(self, plan: Plan, records: Sequence[AnyRecord], is_simulated: bool) -> None:
        self._plan, self._is_simulated = plan, is_simulated
        self._arms = {(study.id, arm.name): arm for study in plan.timed for arm in study.arms}
        self._layouts: dict[int, Layout] = {}  # of gangs
        self._first: dict[tuple[str, str, int, int], tuple[int, AnyRecord]] = {}  # line of what there is once
        self._gang_of: dict[str, int] = {}  # the first that measured a study
        self._launch_of: dict[int, int] = {}  # the first that a gang measured
        self._worked = defaultdict[tuple[str, int], set[tuple[str, int]]](set)  # arms and turns, by study and round
        self._unable = defaultdict[str, set[int]](set)  # ranks, by probe
        self._ends = defaultdict[str, dict[int, set[str]]](dict)  # arms, by study and round
        for line, one in enumerate(records, 1):
            if key := _key(one):
                self._first.setdefault(key, (line, one))
            if isinstance(one, GangRecord):
                nodes = len(one.hosts) if plan.nodes > 1 else 1
                self._layouts[one.gang] = Layout(nodes, max(1, one.world_size // nodes))
            if isinstance(one, OfRanks):
                self._launch_of.setdefault(one.gang, plan.launch_of(one.study))
            if isinstance(one, Block | SeededSteps):
                self._gang_of.setdefault(one.study, one.gang)
            if isinstance(one, Block):
                self._worked[one.study, one.round].add((one.arm, one.turn))
            elif isinstance(one, Unsupported):
                self._unable[one.arm].update(one.ranks)
            elif isinstance(one, RoundEnd):
                self._ends[one.study][one.round] = set(one.arms)

    def once(self, one: AnyRecord) -> None:
        """Each arm, round and turn, and each unique record of a study, has one line."""
        if (key := _key(one)) and self._first[key][1] is not one:
            raise ValueError(f"is another {key[0]} {key[2]} of {key[1]} than line {self._first[key][0]}")

    def planned(self, one: AnyRecord) -> None:
        """All that is timed is in the plan."""
        if not isinstance(one, Block | Unsupported | RoundEnd | ArmProfile):
            return
        if isinstance(one, Unsupported) and one.study != PROBES:  # its rounds could be left out
            raise ValueError(f"has {one.arm} of {one.study} as unsupported, which only a probe can be")
        for name in one.arms if isinstance(one, RoundEnd) else (one.arm,):
            if (one.study, name) not in self._arms:
                raise ValueError(f"has {name} of {one.study}, which plan.json does not plan")
        if isinstance(one, Block):
            arm, work = self._arms[one.study, one.arm], one.each("work")
            if not arm.is_probe and (work != arm.batch_size).any():
                found = f"has {work.max():g} {self._plan.samples} a step of {one.study}, {one.arm}"
                raise ValueError(f"{found}, for which plan.json plans {arm.batch_size}")

    def in_steps(self, one: AnyRecord) -> None:
        """The steps of a rank fill its block; pairs have steps."""
        if not isinstance(one, Block):
            return
        if STEP_S not in one.series:
            if one.study == PAIRS:
                raise ValueError(f"has no times of messages ({STEP_S}) of {one.arm}")
            return
        steps, seconds = one.each(STEP_S), one.each("seconds")
        impossible = ~(steps > 0)
        if impossible.any():
            raise ValueError(f"has a step of {steps[impossible][0]:g} s ({STEP_S})")
        total_s = steps.sum(axis=1, dtype=np.float64)
        differ = np.abs(total_s - seconds) > STEPS_DIFFER_FROM_BLOCK * seconds
        if differ.any():
            rank = int(np.argmax(differ))
            in_all = f"has steps of {total_s[rank]:g} s in all ({STEP_S}) of rank {one.each('ranks')[rank]}"
            raise ValueError(f"{in_all} in a block of {seconds[rank]:g} s")

    def in_rounds(self, one: AnyRecord) -> None:
        """A round that has ended timed its arms in all their turns, and no others.

        An arm is dropped for good once all requirements on it are decided, but not before the fewest rounds. The same
        holds for probes; unsupported ones may be dropped earlier.
        """
        if not isinstance(one, RoundEnd):
            return
        turns = {name: self._plan.layout.turns(arm) for (study, name), arm in self._arms.items() if study == one.study}
        ends, unable = self._ends[one.study], self._unable.keys()
        before = ends[max(number for number in ends if number < one.round)] if one.round > min(ends) else {*turns}
        timed = set(one.arms)
        if not timed <= before or (one.round < FEWEST_ROUNDS and not turns.keys() - unable <= timed):
            found = f"{', '.join(sorted(timed)) or 'nothing'} after {', '.join(sorted(before))}"
            raise ValueError(f"is a round_end that times {found}")
        worked, due = self._worked[one.study, one.round], {(arm, turn) for arm in timed for turn in range(turns[arm])}
        absent = set() if self._is_simulated else {arm for arm, _ in due - worked} - unable  # or all ranks are missing
        if absent:
            found = f"ends round {one.round} of {one.study}, of which {', '.join(sorted(absent))} was not recorded"
            raise ValueError(found)
        if left_out := sorted({arm for arm, _ in worked} - timed):
            raise ValueError(f"ends round {one.round} of {one.study} without {', '.join(left_out)}, which was measured")

    def of_gangs(self, one: AnyRecord) -> None:
        """Each rank has its own GPU, else another one was not measured; nodes, which are judged separately, have unique
        names and consecutive ranks."""
        if not isinstance(one, GangRecord):
            return
        plan, users, hosts = self._plan, dict[str, int](), one.hosts
        for rank, place in enumerate(one.places):
            device = place.uuid
            if (device == "cpu") != (plan.device_type == "cpu"):
                raise ValueError(f"has ranks on {device!r}, but plan.json plans for {plan.device_type}")
            if device != "cpu" and users.setdefault(device, rank) != rank:
                raise ValueError(
                    f"has rank {rank} on {device}, as rank {users[device]}",
                    "a separate GPU for every rank",
                    "Restore the file from a copy, or measure again with as many GPUs as ranks.",
                )
        if one.world_size > plan.layout.world_size:
            raise ValueError(f"has {one.world_size} ranks, but plan.json plans for {plan.layout.world_size}")
        if plan.nodes > 1:
            places = [place.of_rank for place in one.places]
            ((host, local_rank), count), *_ = Counter(places).most_common(1)
            if count > 1:
                raise ValueError(
                    f"has two ranks as local rank {local_rank} of {host}, on different nodes",
                    "a unique name for every node",
                    "Give the nodes different host names, because results could not be assigned, and measure again.",
                )
            if places != [(host, rank) for host in hosts for rank in range(one.world_size // len(hosts))]:
                raise ValueError("has ranks that are not numbered node by node, with as many on each")
        # The plan of a simulated run may have 1 node with several hosts.
        if len(hosts) > plan.nodes and not (self._is_simulated and plan.nodes == 1):
            raise ValueError(f"has ranks on {len(hosts)} hosts, but plan.json plans for {plan.nodes}")

    def by_gangs(self, one: AnyRecord) -> None:
        """One gang measures all rounds of a study, because others may have other software, devices or memory placement,
        and it measures one launch. A study whose gang ended is measured from its first round again, or not at all."""
        if not isinstance(one, OfRanks):
            return
        hosts, launch = self._layouts[one.gang].nodes, self._plan.launch_of(one.study)
        if hosts < self._plan.nodes and not self._plan.fits_nodes(one.study):  # those that fit may lack lost nodes
            raise ValueError(f"has {one.study} on {hosts} hosts, but plan.json plans for {self._plan.nodes}")
        if self._launch_of[one.gang] != launch and not self._is_simulated:
            found = f"has {one.study}, of launch {launch}, measured by gang {one.gang}"
            raise ValueError(f"{found}, which measured launch {self._launch_of[one.gang]}")
        first = self._gang_of.get(one.study)
        if isinstance(one, Block | SeededSteps) and first != one.gang:
            raise ValueError(f"has {one.study} measured by gang {one.gang}, as well as by gang {first}")

    def by_ranks(self, one: AnyRecord) -> None:
        """The planned groups of ranks worked; steps are there, checksums of replicas, and whether data was right."""
        if not isinstance(one, Block | SeededSteps):
            return
        layout, study = self._layouts[one.gang], self._plan.study(one.study)
        if isinstance(one, SeededSteps):
            planned, ranks = np.full(layout.world_size, -1), np.array([step.rank for step in one.ranks])
            planned[list(study.ranks(study.arms, layout) if study else ())] = 0
            self._compare(planned, ranks, np.zeros_like(ranks), f"the seeded step of {one.study}")
            return
        arm, ranks, groups = self._arms[one.study, one.arm], one.each("ranks"), one.each("groups")
        if one.turn >= layout.turns(arm):
            raise ValueError(f"is turn {one.turn} of {one.arm}, whose groups take {layout.turns(arm)} in a round")
        if one.study == PAIRS:
            _refuse_other_rails(ranks, groups, layout, one.arm)
            return
        planned = _group_of_rank(layout, arm, study.turn(self._plan.seed, one.round) if study else one.turn)
        alone = arm.is_probe and arm.operation.is_single_device
        unable = self._unable.get(one.arm, set())
        if unable and not alone:  # the others of their crew wait in vain
            unable = unable.union(*(crew for crew in layout.crews(arm) if unable.intersection(crew)))
        what = f"{one.arm} of {one.study}, round {one.round}"
        self._compare(planned, ranks, planned[ranks] if alone else groups, what, unable)
        if arm.is_probe and "is_correct" not in one.readings:  # else wrong data would count as right
            raise ValueError(f"has no reading is_correct of {one.arm}")
        if not arm.is_probe and STEP_S not in one.series and not self._is_simulated:
            raise ValueError(f"has no step times ({STEP_S})")
        if arm.kind == "ddp" and not one.each("digest").all():
            raise ValueError("has a replica without a checksum (digests)")

    def _compare(
        self, planned: IntArray, ranks: IntArray, groups: IntArray, what: str, unable: Iterable[int] = ()
    ) -> None:
        """Refuse other groups than planned.

        Args:
            planned: number of each rank's group, -1 without one, (ranks of the gang,).
            ranks: those that worked.
            groups: the numbers of their groups, (ranks that worked,).
            what: they did, for the message.
            unable: ranks that may be absent.
        """
        its = planned[ranks]
        other = its != groups
        if other.any():  # a run may lack groups, and number the others anew
            other = (its < 0) | (np.unique(its, return_inverse=True)[1] != np.unique(groups, return_inverse=True)[1])
        if other.any():
            number, found = its[other][0], ranks[groups == groups[other][0]]
            expected = f"ranks {_named(np.flatnonzero(planned == number))}" if number >= 0 else "none"
            raise ValueError(f"has ranks {_named(found)} as a group of {what}, where plan.json has {expected}")
        absent = (planned >= 0) & ~np.isin(np.arange(len(planned)), list(unable))
        absent[ranks] = False
        if absent.any() and not self._is_simulated:
            raise ValueError(f"lacks rank {_named(np.flatnonzero(absent))} of {what}")


def _key(one: AnyRecord) -> tuple[str, str, int, int] | None:
    """What a line must be the only one of: kind, study and arm, round, turn; None if there may be several."""
    if isinstance(one, Block):
        return "block", f"{one.study}, {one.arm}", one.round, one.turn
    if isinstance(one, RoundEnd):
        return "round", one.study, one.round, 0
    return (type(one).__name__, one.study, 0, 0) if isinstance(one, SeededSteps | WorkloadFlops) else None


@lru_cache(maxsize=256)
def _group_of_rank(layout: Layout, arm: Arm, turn: int) -> IntArray:
    """Number of the group that each rank of a gang works with, -1 if it does not, (ranks,)."""
    found = np.full(layout.world_size, -1)
    for number, group in enumerate(layout.groups(arm, turn)):
        found[list(group)] = number
    return found


def _refuse_other_rails(ranks: IntArray, groups: IntArray, layout: Layout, arm: str) -> None:
    """Refuse groups that are not of equal local ranks on two nodes, which are chosen while measuring."""
    numbers, sizes = np.unique(groups, return_counts=True)
    wrong: BoolArray = sizes != 2
    if not wrong.any():
        rails = ranks[np.argsort(groups, kind="stable")].reshape(-1, 2) % layout.ranks_per_node
        wrong = rails[:, 0] != rails[:, 1]
    if wrong.any() and layout.nodes > 1:  # within a single node pairs accuse nobody
        members = ranks[groups == numbers[wrong][0]]
        raise ValueError(f"has ranks {_named(members)} as a pair of {arm}")


def _named(ranks: IntArray) -> str:
    return first_few(list(map(str, ranks)), _MOST_NAMED)
