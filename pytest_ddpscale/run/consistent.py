"""Refuse measurements that contradict themselves, their plan or each other.

Invalid lines are refused when read (`run/record_lines.py`). Here the groups of ranks that worked in each round are
compared with those of the plan: a missing rank might be the slow one, a rank out of turn could hide it, and the speed
of one group would count for another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product

import numpy as np

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.run.block import Block, Unsupported
from pytest_ddpscale.run.column_record import IntArray
from pytest_ddpscale.run.place import CPU
from pytest_ddpscale.run.profile_record import ArmProfile
from pytest_ddpscale.run.readings import STEP_S
from pytest_ddpscale.run.record_lines import AnyRecord, OfRanks
from pytest_ddpscale.run.records import GangRecord, RoundEnd, SeededSteps, WorkloadFlops
from pytest_ddpscale.run.run_directory import RunDirectory, broken_file
from pytest_ddpscale.run.run_record import studies_measured
from pytest_ddpscale.run.telemetry import TelemetryBlock
from pytest_ddpscale.run.training_record import LaunchTime, OfTraining, TrainedRun
from pytest_ddpscale.util.listing import first_few

# Steps follow each other without a gap and are timed by the same clock as their block: only rounding may differ.
STEPS_DIFFER_FROM_BLOCK = 0.05
# What there is once for each arm and turn of a round, round or study.
_ONCE = {
    Block: "block", RoundEnd: "round", SeededSteps: "seeded step", WorkloadFlops: "count of operations",
    TelemetryBlock: "telemetry", TrainedRun: "end", LaunchTime: "time of the launch",
}  # fmt: skip


def refuse_contradictions(
    run: RunDirectory, plan: Plan, records: Sequence[AnyRecord], *, is_imported: bool, is_simulated: bool
) -> None:
    """Refuse a run with contradictory measurements.

    Args:
        run: its directory, for the message.
        plan: what should have been measured.
        records: all lines of measurements.jsonl.
        is_imported: measured by another tool, so device names are meaningless and ranks had no turns.
        is_simulated: ranks may be missing.

    Raises:
        RunDirectoryError: the message has the line.
    """
    said = _Said(plan, records, is_imported, is_simulated)
    for check, (line, one) in product((said.refuse, said.refuse_telemetry), enumerate(records, 1)):
        try:
            check(line, one)
        except ValueError as error:
            found, *expected = error.args
            if not expected:
                raise broken_file(run.measurements_jsonl, f"line {line} {found}") from None
            raise RunDirectoryError(str(run.measurements_jsonl), f"line {line} {found}", *expected) from None


class _Said:
    """All lines, and checks of one of them against the others and the plan.

    A check raises ValueError with what was found; if restoring the file is no remedy, also with what was expected and
    what to do.
    """

    def __init__(self, plan: Plan, records: Sequence[AnyRecord], is_imported: bool, is_simulated: bool) -> None:
        self._plan, self._is_imported, self._is_simulated = plan, is_imported, is_simulated
        self._arms = {(study.id, arm.name): arm for study in plan.timed for arm in study.arms}
        self._layouts: dict[int, Layout] = {}  # of gangs
        self._first: dict[tuple[object, ...], int] = {}  # line of what there is once
        self._gang_of: dict[str, int] = {}  # the first that measured a study
        self._launch_of: dict[int, int] = {}  # the first that a gang measured
        # Blocks of each study and round, by arm and turn.
        self._worked = defaultdict[tuple[str, int], dict[tuple[str, int], Block]](dict)
        self._told = defaultdict[tuple[str, int], set[str]](set)  # arms with telemetry
        self._measured = studies_measured(records)
        self._unable = defaultdict[str, set[int]](set)  # ranks, by probe
        for one in records:
            if isinstance(one, Block):
                self._worked[one.study, one.round].setdefault((one.arm, one.turn), one)
            elif isinstance(one, TelemetryBlock):
                self._told[one.study, one.round].add(one.arm)
            elif isinstance(one, Unsupported) and one.study == PROBES:
                self._unable[one.arm].update(one.ranks)

    def refuse(self, line: int, one: AnyRecord) -> None:
        """All checks of a line; all earlier lines have passed theirs."""
        if name := _ONCE.get(type(one)):
            study, arm, round_, turn = (getattr(one, part, 0) for part in ("study", "arm", "round", "turn"))
            of = f"{study}, {arm}" if arm else study
            if (first := self._first.setdefault((name, of, round_, turn), line)) != line:
                raise ValueError(f"is another {name} {round_} of {of} than line {first}")
        if isinstance(one, Block | Unsupported | RoundEnd | ArmProfile):
            for timed in one.arms if isinstance(one, RoundEnd) else (one.arm,):
                if (one.study, timed) not in self._arms:
                    raise ValueError(f"has {timed} of {one.study}, which plan.json does not plan")
        if isinstance(one, RoundEnd):
            self._refuse_round(one)
        elif isinstance(one, Block):
            self._refuse_steps(one)
        if self._is_imported:
            return
        if isinstance(one, GangRecord):
            self._refuse_gang(one)
        elif isinstance(one, OfRanks):
            self._refuse_gang_of(one)
        if isinstance(one, Block | SeededSteps | OfTraining):
            first = self._gang_of.setdefault(one.study, one.gang)
            if first != one.gang:
                raise ValueError(f"has {one.study} measured by gang {one.gang}, as well as by gang {first}")
        if isinstance(one, Block):
            self._refuse_groups(one)
        elif isinstance(one, SeededSteps):
            layout, study = self._layouts[one.gang], self._plan.study(one.study)
            planned, ranks = np.full(layout.world_size, -1), np.array([step.rank for step in one.ranks])
            planned[list(study.ranks(study.arms, layout) if study else ())] = 0
            self._compare(planned, ranks, np.zeros_like(ranks), f"the seeded step of {one.study}")

    def refuse_telemetry(self, line: int, one: AnyRecord) -> None:
        """Telemetry is of a block with its ranks and times, or of one that its study has not finished: it is written
        before the block."""
        if not isinstance(one, TelemetryBlock):
            return
        of = f"is telemetry of {one.study}, {one.arm}, round {one.round}"
        blocks = [block for (arm, _), block in self._worked[one.study, one.round].items() if arm == one.arm]
        if not blocks:
            if one.study in self._measured or (one.study, one.arm) not in self._arms:
                raise ValueError(f"{of}, which was not measured")
            return
        timed = np.concatenate([(block.ranks, block.each("began_unix_s")) for block in blocks], axis=1)
        told = np.stack([np.asarray(one.ranks), np.broadcast_to(one.started_unix_s, len(one.ranks))])
        in_order, its = (times[:, np.lexsort(times)] for times in (timed, told))
        # A run that was killed may lack the last turns.
        is_cut = one.study not in self._measured and {*map(tuple, timed.T.tolist())} <= {*map(tuple, told.T.tolist())}
        if blocks[0].gang != one.gang or not (is_cut or np.array_equal(in_order, its)):
            raise ValueError(f"{of}, which was measured by other ranks or at another time")

    def _refuse_gang(self, one: GangRecord) -> None:
        """Each rank has its own GPU, else another one was not measured; nodes, which are judged separately, have unique
        names and consecutive ranks."""
        plan, first = self._plan, dict[object, int]()  # rank by GPU, and by host and local rank
        places, hosts = one.places, one.hosts
        for rank, place in enumerate(places):
            if (place.uuid == CPU) != (plan.device_type == CPU):
                raise _not_planned(f"ranks on {place.uuid!r}", plan.device_type)
            if place.uuid != CPU and first.setdefault(place.uuid, rank) != rank:
                raise ValueError(
                    f"has rank {rank} on {place.uuid}, as rank {first[place.uuid]}",
                    "a separate GPU for every rank",
                    "Restore the file from a copy, or measure again with as many GPUs as ranks.",
                )
            if first.setdefault(place.of_rank, rank) != rank:
                raise ValueError(
                    f"has two ranks as local rank {place.local_rank} of {place.host}",
                    "a unique name for every node",
                    "Give the nodes different host names, and measure again.",
                )
        if len(hosts) > plan.nodes or len(places) > plan.layout.world_size:
            most = f"{plan.layout.world_size} on {plan.nodes}"
            raise _not_planned(f"{len(places)} ranks on {len(hosts)} hosts", most)
        self._layouts[one.gang] = layout = Layout(len(hosts), len(places) // len(hosts))
        planned = [(host, rank) for host in hosts for rank in range(layout.ranks_per_node)]
        if [place.of_rank for place in places] != planned:
            raise ValueError("has ranks that are not numbered node by node, with as many on each")

    def _refuse_gang_of(self, one: OfRanks) -> None:
        """One gang measures all rounds of a study, because others may have other software, devices or memory placement,
        and it measures one launch. A study whose gang ended is measured from its first round again, or not at all."""
        hosts, launch = self._layouts[one.gang].nodes, self._plan.launch_of(one.study)
        if hosts < self._plan.nodes and not self._plan.fits_nodes(one.study):  # those that fit may lack lost nodes
            raise _not_planned(f"{one.study} on {hosts} hosts", self._plan.nodes)
        first = self._launch_of.setdefault(one.gang, launch)
        if first != launch:
            found = f"has {one.study}, of launch {launch}, measured by gang {one.gang}"
            raise ValueError(f"{found}, which measured launch {first}")

    def _refuse_round(self, one: RoundEnd) -> None:
        """A round that has ended timed its arms in all their turns, and no others.

        An arm is left out once all requirements on it are decided, but not before the fewest rounds. The same holds for
        probes; those that ranks are unable to do may be left out earlier.
        """
        turns = {name: self._plan.layout.turns(arm) for (study, name), arm in self._arms.items() if study == one.study}
        timed, worked, unable = {*one.arms}, self._worked[one.study, one.round], self._unable.keys()
        due = {(arm, turn) for arm in timed for turn in range(turns[arm])}
        told = self._told[one.study, one.round] if self._told and one.study != PAIRS else timed  # pairs have none
        early = turns.keys() - timed - unable if one.round < FEWEST_ROUNDS else set()
        absent = {arm for arm, _ in due - worked.keys()} - unable
        for arms, why in (
            (early, f"without {{}}, which has no {FEWEST_ROUNDS} rounds yet"),
            (() if self._is_simulated else absent, "of which {} was not recorded"),  # or all its ranks are missing
            ({arm for arm, _ in worked} - timed, "without {}, which was measured"),
            ({arm for arm, _ in worked} - told, "without telemetry of {}"),
        ):
            if arms:
                raise ValueError(f"ends round {one.round} of {one.study}, {why.format(', '.join(sorted(arms)))}")

    def _refuse_steps(self, one: Block) -> None:
        """The work of a step is the arm's, and steps of a rank fill its block."""
        arm, work, seconds = self._arms[one.study, one.arm], one.each("work"), one.each("seconds")
        if not arm.is_probe and (work != arm.batch_size).any():
            raise _not_planned(f"{work.max():g} {self._plan.samples} a step of {one.study}, {one.arm}", arm.batch_size)
        if STEP_S in one.series:
            steps = one.each(STEP_S)
            total_s = steps.sum(axis=1, dtype=np.float64)
            fill = (np.abs(total_s - seconds) <= STEPS_DIFFER_FROM_BLOCK * seconds) & (steps > 0).all(axis=1)
            if not fill.all():
                at = int(fill.argmin())
                found = f"has steps ({STEP_S}) of {steps[at].min():g} s and more, {total_s[at]:g} s in all"
                raise ValueError(f"{found}, of rank {one.ranks[at]} in a block of {seconds[at]:g} s")
        elif one.study == PAIRS or not (arm.is_probe or self._is_imported):
            raise ValueError(f"has no step times ({STEP_S}) of {one.arm}")

    def _refuse_groups(self, one: Block) -> None:
        """The planned groups of ranks worked, and replicas have checksums."""
        arm, layout = self._arms[one.study, one.arm], self._layouts[one.gang]
        ranks, groups = np.asarray(one.ranks), one.each("groups")
        if one.turn >= (turns := layout.turns(arm)):
            raise ValueError(f"is turn {one.turn} of {one.arm}, whose groups take {turns} in a round")
        if one.study == PAIRS:
            _, at, sizes = np.unique(groups, return_inverse=True, return_counts=True)
            local = ranks % layout.ranks_per_node  # pairs are chosen while measuring, of equal local ranks
            wrong = (sizes[at] != 2) | (np.bincount(at, local)[at] != 2 * local)
            if wrong.any():
                raise ValueError(f"has ranks {_named(ranks[at == at[wrong][0]])} as a pair of {one.arm}")
            return
        study = self._plan.study(one.study)
        planned = _group_of_rank(layout, arm, study.turn(self._plan.seed, one.round) if study else one.turn)
        alone = arm.is_probe and arm.operation.is_single_device
        unable = self._unable.get(one.arm, set())
        if unable and not alone:  # the others of their crew wait in vain
            unable = unable.union(*(crew for crew in layout.crews(arm) if unable.intersection(crew)))
        what = f"{one.arm} of {one.study}, round {one.round}"
        self._compare(planned, ranks, planned[ranks] if alone else groups, what, unable)
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
            raise _not_planned(f"ranks {_named(found)} as a group of {what}", expected)
        absent = (planned >= 0) & ~np.isin(np.arange(len(planned)), list(unable))
        absent[ranks] = False
        if absent.any() and not self._is_simulated:
            raise ValueError(f"lacks rank {_named(np.flatnonzero(absent))} of {what}")


@lru_cache(maxsize=256)
def _group_of_rank(layout: Layout, arm: Arm, turn: int) -> IntArray:
    """Number of the group that each rank of a gang works with, -1 if it does not, (ranks,)."""
    found = np.full(layout.world_size, -1)
    for number, group in enumerate(layout.groups(arm, turn)):
        found[list(group)] = number
    return found


def _named(ranks: IntArray) -> str:
    return first_few(list(map(str, ranks)))


def _not_planned(found: str, planned: object) -> ValueError:
    return ValueError(f"has {found}, but plan.json plans for {planned}")
