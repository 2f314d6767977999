"""Refuse measurements that contradict themselves, their plan or each other.

Invalid lines are refused when read (`run/record_lines.py`). Here the groups of ranks that worked in each round are
compared with those of the plan: a missing rank might be the slow one, a rank out of turn could hide it, and the speed
of one group would count for another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.plan.training_run import TrainingRun, loss_reached
from pytest_ddpscale.run.block import STEP_S, Block, Unsupported, read_steps
from pytest_ddpscale.run.place import CPU
from pytest_ddpscale.run.record_lines import AnyRecord, OfRanks
from pytest_ddpscale.run.records import (
    ArmProfile,
    GangRecord,
    LaunchTime,
    OfTraining,
    RoundEnd,
    SeededSteps,
    Sustained,
    TrainedEpoch,
    TrainedRun,
    WorkloadFlops,
)
from pytest_ddpscale.run.run_directory import BROKEN, RunDirectory
from pytest_ddpscale.run.run_record import studies_measured
from pytest_ddpscale.run.telemetry import TelemetryBlock
from pytest_ddpscale.util.arrays import IntArray
from pytest_ddpscale.util.listing import first_few

# Steps follow each other without a gap and are timed by the same clock as their block: only rounding may differ.
STEPS_DIFFER_FROM_BLOCK = 0.05
# A stretch takes minutes, whatever was asked for.
LONGEST_STRETCH_S = 1e5
# What there is once for each arm and turn of a round, round or study.
_ONCE = {
    Block: "block", RoundEnd: "round", SeededSteps: "seeded step", Sustained: "stretch", TelemetryBlock: "telemetry",
    WorkloadFlops: "count of operations", TrainedRun: "end", LaunchTime: "time of the launch",
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
    runs = {planned.id: planned for planned in plan.training_runs}
    blocks = defaultdict[tuple[str, int], dict[tuple[str, int], Block]](dict)  # of each round, by arm and turn
    with_telemetry = defaultdict[tuple[str, int], set[str]](set)  # arms of each round with telemetry
    unable = defaultdict[str, set[int]](set)  # ranks, by probe
    for record in records:
        if isinstance(record, Block):
            blocks[record.study, record.round].setdefault((record.arm, record.turn), record)
        elif isinstance(record, TelemetryBlock):
            with_telemetry[record.study, record.round].add(record.arm)
        elif isinstance(record, Unsupported) and record.study == PROBES:
            unable[record.arm].update(record.ranks)
    measured, layouts = studies_measured(records), dict[int, Layout]()  # of gangs; an imported run has none
    trained = defaultdict[str, list[Any]](list)  # lines of each run so far
    first = dict[object, int]()  # line of what there is once; gang of a study; launch of a gang

    def refuse(line: int, record: AnyRecord) -> None:
        fields: list[Any] = [getattr(record, part, 0) for part in ("study", "arm", "round", "turn", "gang")]
        study, arm, number, turn, gang = fields
        layout = layouts.get(gang)
        if name := _ONCE.get(type(record)):
            which = f"{name} {number} of {study}, {arm}" if arm else f"{name} {number} of {study}"
            _refuse_other(first, (which, turn), line, f"is another {which} than line")
        if isinstance(record, Block | Unsupported | Sustained | RoundEnd | ArmProfile):
            for timed in record.arms if isinstance(record, RoundEnd) else (arm,):
                if (study, timed) not in arms:
                    raise ValueError(f"has {timed} of {study}, which plan.json does not plan")
        if layout and isinstance(record, OfRanks):
            if layout.nodes < plan.nodes and not plan.fits_nodes(study):  # those that fit may lack lost nodes
                raise _not_planned(f"{study} on {layout.nodes} hosts", plan.nodes)
            launch = plan.launch_of(study)
            found = f"has {study}, of launch {launch}, by gang {gang}, which measured launch"
            _refuse_other(first, ("launch", gang), launch, found)
        # Others may have other software, devices or memory placement. A study whose gang ended is measured from its
        # first round again, or not at all.
        if not is_imported and isinstance(record, Block | SeededSteps | Sustained | OfTraining):
            _refuse_other(first, study, gang, f"has {study} measured by gang {gang}, as well as by gang")
        match record:
            case GangRecord() if not is_imported:
                layouts[gang] = _layout_of(record, plan)
            case Block():
                _refuse_block(record, plan, arms[study, arm], layout, unable.get(arm, set()), is_simulated=is_simulated)
            case RoundEnd():
                due = {(name, turn) for name in record.arms for turn in range(plan.layout.turns(arms[study, name]))}
                worked = {name for name, _ in blocks[study, number]}
                early = {name for its, name in arms if its == study} if number < FEWEST_ROUNDS else set()
                absent = {name for name, _ in due - blocks[study, number].keys()}
                for names, why in (  # an arm is left out once all requirements on it are decided
                    (early - {*record.arms} - unable.keys(), f"left out before round {FEWEST_ROUNDS}"),
                    (() if is_simulated else absent - unable.keys(), "not recorded"),  # or all its ranks are missing
                    (worked - {*record.arms}, "measured all the same"),
                    (
                        worked - with_telemetry[study, number] if with_telemetry and study != PAIRS else (),
                        "without telemetry",
                    ),
                ):
                    if names:
                        raise ValueError(f"ends round {number} of {study}, {why}: {', '.join(sorted(names))}")
            case SeededSteps() if layout:
                seeded, ranks = plan.study(study), np.array([step.rank for step in record.ranks])
                planned = np.full(layout.world_size, -1)
                planned[list(seeded.ranks(seeded.arms, layout) if seeded else ())] = 0
                step = f"the seeded step of {study}"
                _refuse_groups(planned, ranks, np.zeros_like(ranks), set(), step, is_simulated=is_simulated)
            case Sustained():
                of_study = plan.study(study)
                if of_study is None or of_study.stretched is None or of_study.stretched.name != arm:
                    raise ValueError(f"has a stretch of {arm} of {study}, which plan.json does not plan")
                groups, named = (layout or plan.layout).groups(of_study.stretched), [rank.rank for rank in record.ranks]
                timed = {rank.rank for rank in record.ranks if rank.step_s}
                if len({*named}) < len(named) or not timed <= {group[0] for group in groups}:
                    raise ValueError(
                        f"has steps of ranks {_named(sorted(timed))} of a stretch; expected the first of groups"
                    )
                for rank in record.ranks:
                    steps_s = read_steps(rank.step_s)
                    if not (np.isfinite(steps_s) & (steps_s > 0)).all() or steps_s.sum() > LONGEST_STRETCH_S:
                        raise ValueError(f"has steps of a stretch of rank {rank.rank} that no rank trains")
            case TelemetryBlock():
                timed = [block for (name, _), block in blocks[study, number].items() if name == arm]
                of, is_ended = f"is telemetry of {study}, {arm}, round {number}", study in measured
                if not timed and (is_ended or (study, arm) not in arms):
                    raise ValueError(f"{of}, which was not measured")
                if timed:  # else of a round that its study has not finished: it is written before the block
                    ran = np.concatenate([(block.ranks, block.each("began_unix_s")) for block in timed], axis=1)
                    seen = np.stack(
                        [np.asarray(record.ranks), np.broadcast_to(record.started_unix_s, len(record.ranks))]
                    )
                    in_order, its = (times[:, np.lexsort(times)] for times in (ran, seen))
                    is_cut = not is_ended and np.isin(ran, seen).all()  # a killed run may lack the last turns
                    if timed[0].gang != gang or not (is_cut or np.array_equal(in_order, its)):
                        raise ValueError(f"{of}, which was measured by other ranks or at another time")
            case TrainedEpoch() | TrainedRun() | LaunchTime():
                if study not in runs:
                    raise ValueError(f"is of {study}, which plan.json does not plan")
                if layout and not isinstance(record, LaunchTime):
                    _refuse_training(record, runs[study], layout, trained[study])

    # Telemetry last, because it is said more shortly what its blocks lack.
    for line, record in sorted(enumerate(records, 1), key=lambda numbered: isinstance(numbered[1], TelemetryBlock)):
        try:
            refuse(line, record)
        except ValueError as error:
            found, *remedy = error.args
            raise RunDirectoryError(str(run.measurements_jsonl), f"line {line} {found}", *(remedy or BROKEN)) from None


def _refuse_other(first: dict[object, int], key: object, value: int, found: str, *remedy: str) -> None:
    """Refuse another value than the first one of this key."""
    if (earlier := first.setdefault(key, value)) != value:
        raise ValueError(f"{found} {earlier}", *remedy)


def _layout_of(gang: GangRecord, plan: Plan) -> Layout:
    """Layout of a gang as planned.

    Each rank has its own GPU, else another one was not measured; nodes, which are judged separately, have unique names
    and consecutive ranks.
    """
    places, hosts, first = gang.places, gang.hosts, dict[object, int]()  # rank by GPU, and by host and local rank
    for rank, place in enumerate(places):
        if (place.uuid == CPU) != (plan.device_type == CPU):
            raise _not_planned(f"ranks on {place.uuid!r}", plan.device_type)
        if place.uuid != CPU:
            _refuse_other(
                first, place.uuid, rank, f"has rank {rank} on {place.uuid}, as rank", "a separate GPU for every rank",
                "Restore the file from a copy, or measure again with as many GPUs as ranks.",
            )  # fmt: skip
        _refuse_other(
            first, place.of_rank, rank, f"has rank {rank} as local rank {place.local_rank} of {place.host}, as rank",
            "a unique name for every node", "Give the nodes different host names, and measure again.",
        )  # fmt: skip
    if len(hosts) > plan.nodes or len(places) > plan.layout.world_size:
        raise _not_planned(f"{len(places)} ranks on {len(hosts)} hosts", f"{plan.layout.world_size} on {plan.nodes}")
    layout = Layout(len(hosts), len(places) // len(hosts))
    if [place.of_rank for place in places] != [(host, rank) for host in hosts for rank in range(layout.ranks_per_node)]:
        raise ValueError("has ranks that are not numbered node by node, with as many on each")
    return layout


def _refuse_block(
    block: Block, plan: Plan, arm: Arm, layout: Layout | None, unable: set[int], *, is_simulated: bool
) -> None:
    """The work of a step is the arm's, and steps of a rank fill its block. The planned groups of ranks worked, without
    those that were unable to, and replicas have checksums. `layout` is None if the run is imported."""
    work, seconds, steps = block.each("work"), block.each("seconds"), block.each(STEP_S)
    if not arm.is_probe and (work != arm.batch_size).any():
        raise _not_planned(f"{work.max():g} {plan.samples} a step of {block.study}, {block.arm}", arm.batch_size)
    total_s = steps.sum(axis=1, dtype=np.float64)
    fill = (np.abs(total_s - seconds) <= STEPS_DIFFER_FROM_BLOCK * seconds) & (steps > 0).all(axis=1)
    if STEP_S not in block.series:
        if block.study == PAIRS or not (arm.is_probe or layout is None):
            raise ValueError(f"has no step times ({STEP_S}) of {block.arm}")
    elif not fill.all():
        bad = int(fill.argmin())
        found = f"has steps ({STEP_S}) of {steps[bad].min():g} s and more, {total_s[bad]:g} s in all"
        raise ValueError(f"{found}, of rank {block.ranks[bad]} in a block of {seconds[bad]:g} s")
    if layout is None:
        return
    ranks: IntArray = np.asarray(block.ranks)
    groups = block.each("groups")
    if block.turn >= (turns := layout.turns(arm)):
        raise ValueError(f"is turn {block.turn} of {block.arm}, whose groups take {turns} in a round")
    if block.study == PAIRS:
        _, at, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        local = ranks % layout.ranks_per_node  # pairs are chosen while measuring, of equal local ranks
        wrong = (sizes[at] != 2) | (np.bincount(at, local)[at] != 2 * local)
        if wrong.any():
            raise ValueError(f"has ranks {_named(ranks[at == at[wrong][0]])} as a pair of {block.arm}")
        return
    study = plan.study(block.study)
    planned = _group_of_rank(layout, arm, study.turn(plan.seed, block.round) if study else block.turn)
    if arm.is_probe and arm.operation.is_single_device:
        groups, lacking = planned[ranks], unable
    else:  # the others of their crew wait in vain
        crews = layout.crews(arm) if unable else ()
        lacking = unable.union(*(crew for crew in crews if unable.intersection(crew)))
    block_name = f"{block.arm} of {block.study}, round {block.round}"
    _refuse_groups(planned, ranks, groups, lacking, block_name, is_simulated=is_simulated)
    if arm.kind == "ddp" and not block.each("digest").all():
        raise ValueError("has a replica without a checksum (digests)")


def _refuse_groups(
    planned: IntArray, ranks: IntArray, groups: IntArray, may_lack: set[int], block_name: str, *, is_simulated: bool
) -> None:
    """Refuse other groups than planned.

    Args:
        planned: number of each rank's group, -1 without one, (ranks of the gang,).
        ranks: those that worked.
        groups: the numbers of their groups, (ranks that worked,).
        may_lack: ranks that may be absent; all, if it is simulated.
        block_name: they did, for the message.
    """
    its = planned[ranks]
    other = its != groups
    if other.any():  # a run may lack groups, and number the others anew
        other = (its < 0) | (np.unique(its, return_inverse=True)[1] != np.unique(groups, return_inverse=True)[1])
    if other.any():
        number, members = its[other][0], ranks[groups == groups[other][0]]
        expected = f"ranks {_named(np.flatnonzero(planned == number))}" if number >= 0 else "none"
        raise _not_planned(f"ranks {_named(members)} as a group of {block_name}", expected)
    absent = planned >= 0
    absent[ranks] = False
    missing = [] if is_simulated else [rank for rank in np.flatnonzero(absent).tolist() if rank not in may_lack]
    if missing:
        raise ValueError(f"lacks rank {_named(missing)} of {block_name}")


def _refuse_training(record: TrainedEpoch | TrainedRun, run: TrainingRun, layout: Layout, earlier: list[Any]) -> None:
    """Every rank has its part. Epochs follow each other, each with all its samples; the end comes after the last one,
    or after that which reached the loss. `earlier` has the earlier lines of the run, to which this one is added."""
    ranks, number = [rank.rank for rank in record.ranks], len(earlier)
    if layout.world_size != run.world_size or ranks != list(range(layout.world_size)):
        raise ValueError(f"has ranks {ranks} of {layout.world_size}; expected 0 to {run.world_size - 1}")
    is_over = number > 0 and isinstance(earlier[-1], TrainedRun)
    earlier.append(record)
    if isinstance(record, TrainedRun):
        losses, threshold = [loss for epoch in earlier[:-1] for loss in epoch.losses], run.loss_threshold
        if number != run.epochs and (threshold is None or loss_reached(losses, threshold) is None):
            raise ValueError(f"ends {run.id} after {number} epochs; expected {run.epochs}")
        return
    of, samples = f"of epoch {record.epoch} of {run.id}", run.workload.family.samples
    if is_over or record.epoch != number or number >= run.epochs:
        raise ValueError(f"is {of}; expected epoch {number} of {run.epochs}")
    trained, epoch_samples = [rank.trained for rank in record.ranks], run.iterations * run.workload.batch_size
    if {*trained} != {epoch_samples}:
        raise ValueError(f"trained {trained} {samples} {of}; expected {epoch_samples} on each rank")
    validated, planned = sum(rank.validated for rank in record.ranks), run.samples.validation_samples
    if validated != planned:
        raise ValueError(f"validated {validated} {samples} {of}; expected {planned}, each once")


@lru_cache(maxsize=256)
def _group_of_rank(layout: Layout, arm: Arm, turn: int) -> IntArray:
    """Number of the group that each rank of a gang works with, -1 if it does not, (ranks,)."""
    groups = np.full(layout.world_size, -1)
    for number, group in enumerate(layout.groups(arm, turn)):
        groups[list(group)] = number
    return groups


def _named(ranks: Iterable[int]) -> str:
    return first_few(list(map(str, ranks)))


def _not_planned(found: str, planned: object) -> ValueError:
    return ValueError(f"has {found}, but plan.json plans for {planned}")
