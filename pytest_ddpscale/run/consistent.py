"""Refuse measurements that contradict themselves, their plan or each other.

Invalid lines are refused when read (`run/record_lines.py`). Here the groups of ranks that worked in each round are
compared with those of the plan: a missing rank might be the slow one, a rank out of turn could hide it, and the speed
of one group would count for another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.run.block import STEP_S, Block, Unsupported
from pytest_ddpscale.run.place import CPU
from pytest_ddpscale.run.profile_record import ArmProfile
from pytest_ddpscale.run.record_lines import AnyRecord, OfRanks
from pytest_ddpscale.run.records import GangRecord, RoundEnd, SeededSteps, WorkloadFlops
from pytest_ddpscale.run.run_directory import BROKEN, RunDirectory
from pytest_ddpscale.run.run_record import studies_measured
from pytest_ddpscale.run.telemetry import TelemetryBlock
from pytest_ddpscale.run.training_record import LaunchTime, OfTraining, TrainedRun
from pytest_ddpscale.util.arrays import Index, IntArray
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
    arms = {(study.id, arm.name): arm for study in plan.timed for arm in study.arms}
    blocks = defaultdict[tuple[str, int], dict[tuple[str, int], Block]](dict)  # of each round, by arm and turn
    told = defaultdict[tuple[str, int], set[str]](set)  # arms of each round with telemetry
    unable = dict[str, set[int]]()  # ranks, by probe
    for one in records:
        if isinstance(one, Block):
            blocks[one.study, one.round].setdefault((one.arm, one.turn), one)
        elif isinstance(one, TelemetryBlock):
            told[one.study, one.round].add(one.arm)
        elif isinstance(one, Unsupported) and one.study == PROBES:
            unable.setdefault(one.arm, set()).update(one.ranks)
    layouts, measured = dict[int, Layout](), studies_measured(records)
    first = dict[object, int]()  # line of what there is once; gang of a study

    def refuse(line: int, one: AnyRecord) -> None:
        said: list[Any] = [getattr(one, part, 0) for part in ("study", "arm", "round", "turn")]
        study, arm, number, turn = said
        if name := _ONCE.get(type(one)):
            of = f"{study}, {arm}" if arm else study
            if (earlier := first.setdefault((name, of, number, turn), line)) != line:
                raise ValueError(f"is another {name} {number} of {of} than line {earlier}")
        if isinstance(one, Block | Unsupported | RoundEnd | ArmProfile):
            for timed in one.arms if isinstance(one, RoundEnd) else (arm,):
                if (study, timed) not in arms:
                    raise ValueError(f"has {timed} of {study}, which plan.json does not plan")
        if isinstance(one, RoundEnd):
            due = {(name, turn) for name in one.arms for turn in range(plan.layout.turns(arms[study, name]))}
            worked = {name for name, _ in blocks[study, number]}
            early = {name for its, name in arms if its == study} if number < FEWEST_ROUNDS else set()
            absent = {name for name, _ in due - blocks[study, number].keys()}
            for names, why in (  # an arm is left out once all requirements on it are decided
                (early - {*one.arms} - unable.keys(), f"left out before round {FEWEST_ROUNDS}"),
                (() if is_simulated else absent - unable.keys(), "not recorded"),  # or all its ranks are missing
                (worked - {*one.arms}, "measured all the same"),
                (worked - told[study, number] if told and study != PAIRS else (), "without telemetry"),
            ):
                if names:
                    raise ValueError(f"ends round {number} of {study}, {why}: {', '.join(sorted(names))}")
        elif isinstance(one, Block):
            _refuse_steps(one, arms[study, arm], plan.samples, is_imported=is_imported)
        if is_imported:
            return
        if isinstance(one, GangRecord):
            layouts[one.gang] = _layout_of(one, plan)
        elif isinstance(one, OfRanks):
            layout = layouts[one.gang]
            if layout.nodes < plan.nodes and not plan.fits_nodes(study):  # those that fit may lack lost nodes
                raise _not_planned(f"{study} on {layout.nodes} hosts", plan.nodes)
            launch = plan.launch_of(study)
            if (earlier := first.setdefault(("launch", one.gang), launch)) != launch:
                raise ValueError(
                    f"has {study}, of launch {launch}, by gang {one.gang}, which measured launch {earlier}"
                )
        # Others may have other software, devices or memory placement. A study whose gang ended is measured from its
        # first round again, or not at all.
        if isinstance(one, Block | SeededSteps | OfTraining):
            earlier = first.setdefault(study, one.gang)
            if earlier != one.gang:
                raise ValueError(f"has {study} measured by gang {one.gang}, as well as by gang {earlier}")
        if isinstance(one, Block):
            _refuse_groups(one, plan, arms[study, arm], layout, unable.get(arm, ()), is_simulated=is_simulated)
        elif isinstance(one, SeededSteps):
            trained, ranks = plan.study(study), np.array([step.rank for step in one.ranks])
            planned = np.full(layout.world_size, -1)
            planned[list(trained.ranks(trained.arms, layout) if trained else ())] = 0
            _compare(
                planned, ranks, np.zeros_like(ranks), slice(None if is_simulated else 0), f"the seeded step of {study}"
            )

    def refuse_telemetry(_line: int, one: AnyRecord) -> None:
        """Telemetry is of a block with its ranks and times, or of one that its study has not finished: it is written
        before the block."""
        if not isinstance(one, TelemetryBlock):
            return
        of, is_measured = f"is telemetry of {one.study}, {one.arm}, round {one.round}", one.study in measured
        timed = [block for (arm, _), block in blocks[one.study, one.round].items() if arm == one.arm]
        if not timed and not is_measured and (one.study, one.arm) in arms:
            return
        if not timed:
            raise ValueError(f"{of}, which was not measured")
        worked = np.concatenate([(block.ranks, block.each("began_unix_s")) for block in timed], axis=1)
        seen = np.stack([np.asarray(one.ranks), np.broadcast_to(one.started_unix_s, len(one.ranks))])
        in_order, its = (times[:, np.lexsort(times)] for times in (worked, seen))
        is_cut = not is_measured and np.isin(worked, seen).all()  # a run that was killed may lack the last turns
        if timed[0].gang != one.gang or not (is_cut or np.array_equal(in_order, its)):
            raise ValueError(f"{of}, which was measured by other ranks or at another time")

    for check, (line, one) in product((refuse, refuse_telemetry), enumerate(records, 1)):
        try:
            check(line, one)
        except ValueError as error:
            found, *remedy = error.args
            raise RunDirectoryError(str(run.measurements_jsonl), f"line {line} {found}", *(remedy or BROKEN)) from None


def _layout_of(gang: GangRecord, plan: Plan) -> Layout:
    """Layout of a gang as planned.

    Each rank has its own GPU, else another one was not measured; nodes, which are judged separately, have unique names
    and consecutive ranks.
    """
    places, hosts, first = gang.places, gang.hosts, dict[object, int]()  # rank by GPU, and by host and local rank
    for rank, place in enumerate(places):
        if (place.uuid == CPU) != (plan.device_type == CPU):
            raise _not_planned(f"ranks on {place.uuid!r}", plan.device_type)
        if place.uuid != CPU and (other := first.setdefault(place.uuid, rank)) != rank:
            raise ValueError(
                f"has rank {rank} on {place.uuid}, as rank {other}", "a separate GPU for every rank",
                "Restore the file from a copy, or measure again with as many GPUs as ranks.",
            )  # fmt: skip
        if first.setdefault(place.of_rank, rank) != rank:
            raise ValueError(
                f"has two ranks as local rank {place.local_rank} of {place.host}", "a unique name for every node",
                "Give the nodes different host names, and measure again.",
            )  # fmt: skip
    if len(hosts) > plan.nodes or len(places) > plan.layout.world_size:
        raise _not_planned(f"{len(places)} ranks on {len(hosts)} hosts", f"{plan.layout.world_size} on {plan.nodes}")
    layout = Layout(len(hosts), len(places) // len(hosts))
    if [place.of_rank for place in places] != [(host, rank) for host in hosts for rank in range(layout.ranks_per_node)]:
        raise ValueError("has ranks that are not numbered node by node, with as many on each")
    return layout


def _refuse_steps(one: Block, arm: Arm, samples: str, *, is_imported: bool) -> None:
    """The work of a step is the arm's, and steps of a rank fill its block."""
    work, seconds, steps = one.each("work"), one.each("seconds"), one.each(STEP_S)
    if not arm.is_probe and (work != arm.batch_size).any():
        raise _not_planned(f"{work.max():g} {samples} a step of {one.study}, {one.arm}", arm.batch_size)
    if STEP_S not in one.series:
        if one.study == PAIRS or not (arm.is_probe or is_imported):
            raise ValueError(f"has no step times ({STEP_S}) of {one.arm}")
        return
    total_s = steps.sum(axis=1, dtype=np.float64)
    fill = (np.abs(total_s - seconds) <= STEPS_DIFFER_FROM_BLOCK * seconds) & (steps > 0).all(axis=1)
    if not fill.all():
        at = int(fill.argmin())
        found = f"has steps ({STEP_S}) of {steps[at].min():g} s and more, {total_s[at]:g} s in all"
        raise ValueError(f"{found}, of rank {one.ranks[at]} in a block of {seconds[at]:g} s")


def _refuse_groups(
    one: Block, plan: Plan, arm: Arm, layout: Layout, unable: Collection[int], *, is_simulated: bool
) -> None:
    """The planned groups of ranks worked, without those that were unable to, and replicas have checksums."""
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
    study = plan.study(one.study)
    planned = _group_of_rank(layout, arm, study.turn(plan.seed, one.round) if study else one.turn)
    alone, lacking = arm.is_probe and arm.operation.is_single_device, {*unable}
    if unable and not alone:  # the others of their crew wait in vain
        lacking.update(*(crew for crew in layout.crews(arm) if lacking.intersection(crew)))
    what = f"{one.arm} of {one.study}, round {one.round}"
    may_lack = (
        slice(None) if is_simulated else np.array([rank for rank in lacking if rank < layout.world_size], np.int64)
    )
    _compare(planned, ranks, planned[ranks] if alone else groups, may_lack, what)
    if arm.kind == "ddp" and not one.each("digest").all():
        raise ValueError("has a replica without a checksum (digests)")


def _compare(planned: IntArray, ranks: IntArray, groups: IntArray, may_lack: Index, what: str) -> None:
    """Refuse other groups than planned.

    Args:
        planned: number of each rank's group, -1 without one, (ranks of the gang,).
        ranks: those that worked.
        groups: the numbers of their groups, (ranks that worked,).
        may_lack: ranks that may be absent.
        what: they did, for the message.
    """
    its = planned[ranks]
    other = its != groups
    if other.any():  # a run may lack groups, and number the others anew
        other = (its < 0) | (np.unique(its, return_inverse=True)[1] != np.unique(groups, return_inverse=True)[1])
    if other.any():
        number, found = its[other][0], ranks[groups == groups[other][0]]
        expected = f"ranks {_named(np.flatnonzero(planned == number))}" if number >= 0 else "none"
        raise _not_planned(f"ranks {_named(found)} as a group of {what}", expected)
    absent = planned >= 0
    absent[ranks] = absent[may_lack] = False
    if absent.any():
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
