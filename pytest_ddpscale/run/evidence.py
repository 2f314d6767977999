"""Evidence for the judge from a run directory, refused if it contradicts itself."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.run.block import Block, Unsupported
from pytest_ddpscale.run.consistent import refuse_contradictions
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import Why, because
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import (
    ArmProfile,
    GangRecord,
    GangTransport,
    GpuErrors,
    LaunchTime,
    OfTraining,
    RankTransport,
    RoundEnd,
    RunStart,
    SeededStep,
    SeededSteps,
    StudyEnd,
    StudyStart,
    Sustained,
    TrainedEpoch,
    TrainedRun,
    WorkloadFlops,
    gangs_by_number,
)
from pytest_ddpscale.run.run_directory import RunDirectory, broken_file
from pytest_ddpscale.run.run_record import ended, ends_of
from pytest_ddpscale.run.strict_json import each
from pytest_ddpscale.run.survey_record import PostMortem, Survey, surveys_of
from pytest_ddpscale.run.table import ArmRounds, Columns, Memoized, columns_of, memoized
from pytest_ddpscale.run.telemetry import NO_TELEMETRY, TelemetryBlock, TelemetryColumns, telemetry_columns_of


class MissingReading(NamedTuple):
    """A reading that was expected of ranks in an arm and is missing: the first such rank, why, and how many there are.

    `blocks` counts each rank in each round.
    """

    study: str
    arm: str
    reading: str
    host: str
    rank: int
    reason: str
    blocks: int


@dataclass(frozen=True)
class Evidence(Memoized):
    """The plan of a run, its measurements and its errors.

    Attributes:
        plan: the planned studies.
        columns: all measurements in rounds: of training, forward passes, probes and pairs of nodes.
        errors: the error of each study that broke, by study id.
        interrupted: why a study was ended from outside before its end, by study id.
        flops_per_sample: floating-point operations of forward and backward pass, by study, if counted.
        seeded_steps: the seeded step that each rank computed alone, by study.
        timed_arms: names of the arms that a round timed, by study and round: once a requirement is decided, arms that
            only it needed are dropped. Empty if all arms were timed in every round.
        unsupported: why a probe could not be run, by probe id.
        surveys: survey of each node before the launch, by host.
        telemetry: telemetry of GPUs during measurements.
        transports: NCCL's connections of each rank.
        gpu_errors: ranks that errors of their own GPUs ended, gang by gang.
        post_mortems: surveys of GPUs after ranks had failed, in order; empty if none did.
        out_of_time: ids of the studies that ended because the budget ran out.
        profiles: profiles of arms after their timed rounds, or why there are none.
        training: lines of whole training runs and ends of studies; `suites.training_runs` adds them up.
        sustained: training in one stretch, by study.
        gangs: the ranks of each launch.
        hosts: names of all known hosts that took part, measured or not.
        goes_on: whether it is read while the run measures, without its telemetry.
        unread: expected readings that are missing, one for each arm and reading.
    """

    plan: Plan
    columns: Columns
    errors: Mapping[str, Why]
    flops_per_sample: Mapping[str, float] = field(default_factory=dict)
    seeded_steps: Mapping[str, Mapping[Place, SeededStep]] = field(default_factory=dict)
    timed_arms: Mapping[str, Mapping[int, Collection[str]]] = field(default_factory=dict)
    interrupted: Mapping[str, Why] = field(default_factory=dict)
    hosts: Collection[str] = ()
    unsupported: Mapping[str, str] = field(default_factory=dict)
    surveys: Mapping[str, Survey] = field(default_factory=dict)
    telemetry: TelemetryColumns = NO_TELEMETRY
    transports: Mapping[Place, RankTransport] = field(default_factory=dict)
    post_mortems: Sequence[Survey] = ()
    out_of_time: Collection[str] = ()
    profiles: Sequence[ArmProfile] = ()
    training: Sequence[OfTraining | StudyEnd] = ()
    gpu_errors: Sequence[GpuErrors] = ()
    unread: Sequence[MissingReading] = ()
    sustained: Mapping[str, Sustained] = field(default_factory=dict)
    gangs: Collection[GangRecord] = ()
    goes_on: bool = False

    @property
    def versions(self) -> dict[str, str]:
        """Software of rank 0 of the first gang, as far as it is known."""
        known = (gang.versions_of(0).items() for gang in self.gangs)
        return {name: version for name, version in next(known, ()) if version is not None}

    @property
    def environment(self) -> dict[str, str]:
        """Variables of that rank that change the speed of training or communication, secrets masked."""
        return next((gang.ranks[0].environment for gang in self.gangs), {})

    @property
    def probes(self) -> Sequence[ArmRounds]:
        """Measurements of each probe."""
        return list(self.columns.of_study(PROBES))

    def probed(self, probe: Arm) -> ArmRounds | None:
        """Measurements of one probe; None if there are none."""
        return self.columns.arms.get((PROBES, probe.name))

    @memoized
    def seeded_checksums(self, study_id: str) -> Mapping[int, str]:
        """Checksum of the seeded step, by rank; empty if none was computed.

        All are equal if most ranks could not repeat their own: then the model has an operation without a
        deterministic kernel, and different bits accuse nobody.
        """

        steps, is_repeatable = self.seeded_steps.get(study_id, {}).values(), self.is_repeatable(study_id)
        return {step.rank: step.checksum if is_repeatable else "not repeatable" for step in steps}

    def is_repeatable(self, study_id: str) -> bool:
        """Whether most ranks repeated the seeded step of a study, so that their results can be compared."""
        steps = self.seeded_steps.get(study_id, {}).values()
        return 2 * sum(step.repeats for step in steps) > len(steps)


def with_telemetry_utilization(columns: Columns, telemetry: TelemetryColumns) -> Columns:
    """Measurements without the utilizations that their telemetry lacks, or has discarded.

    In their place a reading ``sm_activity`` stands beside: the GPU was at least that busy.
    """
    arms, unread = dict(columns.arms), np.isnan(telemetry.utilization)
    for number in np.unique(telemetry.arm[unread]).tolist():
        measured = arms[telemetry.arms[number]]
        at = {place: column for column, place in enumerate(measured.ranks.rank_places)}
        column = np.array([at.get(place, -1) for place in telemetry.places])[telemetry.place]
        rows = unread & (telemetry.arm == number)
        sms = np.full((1 + measured.numbers[-1], 1 + len(at)), np.inf)  # where it was read; the last column is of none
        sms[telemetry.round[rows], column[rows]] = telemetry.sm_activity[rows]
        is_read = np.isinf(sms := sms[measured.numbers, :-1])
        busy = np.where(is_read, measured.reading("utilization"), np.nan)
        readings = {"utilization": busy, "sm_activity": np.where(is_read, np.nan, sms)}
        arms[telemetry.arms[number]] = replace(measured, readings={**measured.readings, **readings})
    return Columns(arms)


def evidence_of(plan: Plan, columns: Columns | None, records: Sequence[AnyRecord]) -> Evidence:
    """The evidence in records of measurements.jsonl; studies may be unfinished.

    Args:
        plan: of the run.
        columns: the measurements in these records; None to lay them out.
        records: all records.
    """
    by_type = defaultdict[type, list[Any]](list)
    for record in records:
        by_type[type(record)].append(record)
    gangs = gangs_by_number(by_type[GangRecord])
    places = {number: gang.places for number, gang in gangs.items()}
    timed = defaultdict[str, dict[int, Collection[str]]](dict)
    for line in by_type[RoundEnd]:
        timed[line.study][line.round] = frozenset(line.arms)
    connected = {
        rank.rank: (places[line.gang][rank.rank], rank) for line in by_type[GangTransport] for rank in line.ranks
    }
    lacking, first = Counter[tuple[str, str, str]](), dict[tuple[str, str, str], tuple[str, int, str]]()
    for block in by_type[Block]:
        for name, reasons in block.unread.items():
            key = block.study, block.arm, name
            for rank, why in zip(block.ranks.tolist(), each(reasons, len(block.ranks)), strict=True):
                if why:
                    first.setdefault(key, (places[block.gang][rank].host, rank, why))
                    lacking[key] += 1
    measured = {block.key for block in by_type[Block]}  # telemetry is written before its block, which may be missing
    telemetry_blocks = [block for block in by_type[TelemetryBlock] if (block.study, block.arm, block.round) in measured]
    telemetry = telemetry_columns_of(telemetry_blocks, gangs)
    return Evidence(
        plan,
        with_telemetry_utilization(columns_of(by_type[Block], gangs.values()), telemetry)
        if columns is None
        else columns,
        ended(by_type[StudyEnd], "error"),
        {line.study: line.flops_per_sample for line in by_type[WorkloadFlops]},
        {
            line.study: {places[line.gang][step.rank]: step for step in sorted(line.ranks, key=attrgetter("rank"))}
            for line in by_type[SeededSteps]
        },
        timed,
        ended(by_type[StudyEnd], "interrupted"),
        sorted({host for gang in gangs.values() for host in gang.hosts}),
        {
            line.arm: f"{places[line.gang][line.ranks[-1]].host}: {each(line.reasons, len(line.ranks))[-1]}"
            for line in by_type[Unsupported]
        },
        surveys_of(by_type[Survey]),
        telemetry,
        dict(connected[rank] for rank in sorted(connected)),
        [line.survey for line in by_type[PostMortem]],
        ended(by_type[StudyEnd], "budget"),
        tuple({(profile.study, profile.arm): profile for profile in by_type[ArmProfile]}.values()),
        [*by_type[TrainedEpoch], *by_type[TrainedRun], *by_type[LaunchTime], *by_type[StudyEnd]],
        by_type[GpuErrors],
        [MissingReading(*key, *first[key], blocks) for key, blocks in lacking.items()],
        {line.study: line for line in by_type[Sustained]},
        gangs.values(),
    )


DIED = because("died")


def read_evidence(run: RunDirectory, died: Why = DIED, *, goes_on: bool = False) -> Evidence:
    """The evidence in a run directory.

    A study without a recorded end is an error: the fault that it should find may have killed it.

    Args:
        run: the directory.
        died: the reason for such a study.
        goes_on: whether the run still goes on; such a study is then not measured yet.

    Raises:
        RunDirectoryError: a file is broken, plan.json and run.json belong to different runs, or measurements
            contradict themselves, the plan or each other.
    """
    record, plan, records = run.read_run(), run.read_plan(), run.read_records()
    if plan.sku != record.sku:
        raise broken_file(run.plan_json, f"plans for {plan.sku}, but run.json measured {record.sku}")
    if [record.id for record in records if isinstance(record, RunStart)] not in ([], [record.id]):
        raise broken_file(run.measurements_jsonl, "does not begin with the id in run.json: it is of another run")
    if len(set(plan.study_ids)) != len(plan.study_ids):
        raise broken_file(run.plan_json, "has two studies with the same id")
    devices = (place.uuid for record in records if isinstance(record, GangRecord) for place in record.places)
    simulated = record.is_simulated(devices)
    refuse_contradictions(run, plan, records, is_imported=record.is_imported, is_simulated=simulated)
    evidence = evidence_of(plan, None, records)
    if record.is_imported:
        return evidence
    ends = ends_of(records)
    unfinished = {study: died for study in plan.study_ids if study not in ends}
    finish_it = str(run.path)
    begun = {record.study for record in records if isinstance(record, StudyStart)}
    interrupted = {
        study: because("not-finished", study in begun, why, finish_it) for study, why in evidence.interrupted.items()
    }
    if goes_on or record.status == "interrupted":
        return replace(evidence, interrupted=unfinished | interrupted)
    return replace(evidence, errors={**evidence.errors, **unfinished}, interrupted=interrupted)
