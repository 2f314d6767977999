"""Evidence for the judge from a run directory, refused if it contradicts itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.run.block import Block, Unsupported
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.columns import ArmColumns, Columns, columns_of
from pytest_ddpscale.run.consistent import refuse_contradictions
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.profile_record import ArmProfile, latest_profiles
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import (
    GpuErrors,
    RoundEnd,
    SeededStep,
    SeededSteps,
    WorkloadFlops,
    gangs_by_number,
)
from pytest_ddpscale.run.run_directory import RunDirectory, broken_file
from pytest_ddpscale.run.run_record import ended, ends_of, studies_measured
from pytest_ddpscale.run.strict_json import each
from pytest_ddpscale.run.survey_record import Survey, post_mortems_of, surveys_of
from pytest_ddpscale.run.telemetry import NO_TELEMETRY, TelemetryBlock, TelemetryColumns, telemetry_columns_of
from pytest_ddpscale.run.training_record import RunRecords, trained_runs
from pytest_ddpscale.run.transport_record import RankTransport, transports_of

T = TypeVar("T")


class Unread(NamedTuple):
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
class Evidence:
    """The plan of a run, its measurements and its errors.

    Attributes:
        plan: the planned studies.
        columns: all measurements in rounds: of training, forward passes, probes and pairs of nodes.
        errors: error message of each study that broke, by study id.
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
        ranks_of_errors: places of all ranks, if there are any such errors.
        post_mortems: surveys of GPUs after ranks had failed, in order; empty if none did.
        out_of_time: ids of the studies that ended because the budget ran out.
        profiles: profiles of arms after their timed rounds, or why there are none.
        training: whole training runs, by id.
        hosts: names of all known hosts that took part, measured or not.
        goes_on: whether it is read while the run measures, without its telemetry.
        unread: expected readings that are missing, one for each arm and reading.
    """

    plan: Plan
    columns: Columns
    errors: Mapping[str, str]
    flops_per_sample: Mapping[str, float] = field(default_factory=dict)
    seeded_steps: Mapping[str, Mapping[Place, SeededStep]] = field(default_factory=dict)
    timed_arms: Mapping[str, Mapping[int, Collection[str]]] = field(default_factory=dict)
    interrupted: Mapping[str, str] = field(default_factory=dict)
    hosts: Collection[str] = ()
    unsupported: Mapping[str, str] = field(default_factory=dict)
    surveys: Mapping[str, Survey] = field(default_factory=dict)
    telemetry: TelemetryColumns = NO_TELEMETRY
    transports: Mapping[Place, RankTransport] = field(default_factory=dict)
    post_mortems: Sequence[Survey] = ()
    out_of_time: Collection[str] = ()
    profiles: Sequence[ArmProfile] = ()
    training: Mapping[str, RunRecords] = field(default_factory=dict)
    goes_on: bool = False
    gpu_errors: Sequence[GpuErrors] = ()
    ranks_of_errors: Sequence[Place] = ()
    unread: Sequence[Unread] = ()

    @property
    def probes(self) -> Sequence[ArmColumns]:
        """Measurements of each probe."""
        return list(self.columns.of_study(PROBES))

    def probed(self, probe: Arm) -> ArmColumns | None:
        """Measurements of one probe; None if there are none."""
        return self.columns.arms.get((PROBES, probe.name))

    @property
    def pairs(self) -> Sequence[ArmColumns]:
        """Measurements between pairs of nodes, if they were measured to find a slow node or link."""
        return list(self.columns.of_study(PAIRS))

    @cached_property
    def rounds_probed(self) -> Collection[int]:
        """Numbers of the rounds with any probe."""
        return frozenset(number for probe in self.probes for number in probe.numbers.tolist())

    def seeded_checksums(self, study_id: str) -> Mapping[int, str]:
        """Checksum of the seeded step, by rank; empty if none was computed.

        All are equal if most ranks could not repeat their own: then the model has an operation without a
        deterministic kernel, and different bits accuse nobody.
        """
        return self.once(("seeded", study_id), lambda: self._seeded_checksums(study_id))

    def is_repeatable(self, study_id: str) -> bool:
        """Whether most ranks repeated the seeded step of a study, so that their results can be compared."""
        steps = self.seeded_steps.get(study_id, {}).values()
        return 2 * sum(step.repeats for step in steps) > len(steps)

    def compared_alone(self) -> set[tuple[str, str]]:
        """Host and device of ranks whose own results some study compared, as most of its ranks repeated them."""
        return self.once("compared alone", self._compared_alone)

    def _compared_alone(self) -> set[tuple[str, str]]:
        studies = (steps for study, steps in self.seeded_steps.items() if self.is_repeatable(study))
        return {(place.host, place.uuid) for steps in studies for place in steps}

    @cached_property
    def _kept(self) -> dict[Hashable, Any]:
        return {}

    def once(self, key: Hashable, find_out: Callable[[], T]) -> T:
        """A derived value that many requirements need, computed on first access of its unique key."""
        if key not in self._kept:
            self._kept[key] = find_out()
        found: T = self._kept[key]
        return found

    def _seeded_checksums(self, study_id: str) -> dict[int, str]:
        steps = self.seeded_steps.get(study_id, {}).values()
        if not self.is_repeatable(study_id):
            return dict.fromkeys((step.rank for step in steps), "not repeatable")
        return {step.rank: step.checksum for step in steps}


def evidence_of(plan: Plan, columns: Columns, records: Sequence[AnyRecord]) -> Evidence:
    """The evidence in records of measurements.jsonl; studies may be unfinished.

    Args:
        plan: of the run.
        columns: the measurements in these records.
        records: all records.
    """
    gangs = gangs_by_number(records).values()
    return Evidence(
        plan,
        columns,
        ended(records, "error"),
        flops_of(records),
        seeded_steps_of(records),
        timed_arms_of(records),
        ended(records, "interrupted"),
        sorted({host for gang in gangs for host in gang.hosts}),
        unsupported_of(records),
        surveys_of(records),
        transports=transports_of(records),
        post_mortems=post_mortems_of(records),
        out_of_time=ended(records, "budget"),
        unread=unread_of(records),
        gpu_errors=[record for record in records if isinstance(record, GpuErrors)],
        ranks_of_errors=_ranks_of_errors(records),
    )


def _ranks_of_errors(records: Sequence[AnyRecord]) -> list[Place]:
    """Places of the ranks of all gangs; a gang that ended before it was announced had GPUs as surveyed."""
    if not any(isinstance(record, GpuErrors) for record in records):
        return []
    surveyed = [
        gpu.on(host)
        for host, survey in surveys_of(records).items()
        for gpu in survey.gpus
        if gpu.local_rank is not None
    ]
    gangs = gangs_by_number(records).values()
    return [*surveyed, *dict.fromkeys(place for gang in gangs for place in gang.places)]


DIED = "the run died before or while measuring this: its end was not recorded"


def read_evidence(run: RunDirectory, died: str = DIED, *, goes_on: bool = False) -> Evidence:
    """The evidence in a run directory.

    A study without a recorded end is an error: the fault that it should find may have killed it.

    Args:
        run: the directory.
        died: the message for such a study.
        goes_on: whether the run still goes on; such a study is then not measured yet.

    Raises:
        RunDirectoryError: a file is broken, plan.json and run.json belong to different runs, or measurements
            contradict themselves, the plan or each other.
    """
    record, plan, records = run.read_run(), run.read_plan(), run.read_records()
    if plan.sku != record.sku:
        raise broken_file(run.plan_json, f"plans for {plan.sku}, but run.json measured {record.sku}")
    ids, planned = plan.study_ids, [one.id for one in (*plan.timed, *plan.training_runs)]
    if len(set(planned)) != len(planned):
        raise broken_file(run.plan_json, "has two studies with the same id")
    is_imported, gangs = record.is_imported, gangs_by_number(records)
    simulated = record.is_simulated(place.uuid for gang in gangs.values() for place in gang.places)
    refuse_contradictions(run, plan, records, is_imported=is_imported, is_simulated=simulated)
    try:
        training = trained_runs(plan, records)
    except ValueError as error:
        raise broken_file(run.measurements_jsonl, str(error)) from None
    telemetry = telemetry_columns_of(_telemetry_of_blocks(run, plan, records), gangs)
    try:
        columns = columns_of((one for one in records if isinstance(one, Block)), gangs.values())
        evidence = replace(
            evidence_of(plan, columns, records),
            telemetry=telemetry,
            profiles=latest_profiles(one for one in records if isinstance(one, ArmProfile)),
            training=training,
        )
    except ValueError as error:
        raise broken_file(run.measurements_jsonl, f"holds blocks that contradict each other ({error})") from None
    if not is_imported:
        ended = ends_of(records)
        unfinished = {study: died for study in ids if study not in ended}
        finish_it = "" if run.suite_json.exists() else f"; --ddp-resume={run.path} finishes it"
        interrupted = {study: f"interrupted: {why}{finish_it}" for study, why in evidence.interrupted.items()}
        if goes_on or record.status == "interrupted":
            evidence = replace(evidence, interrupted=unfinished | interrupted)
        else:
            evidence = replace(evidence, errors={**evidence.errors, **unfinished}, interrupted=interrupted)
    return evidence


def _telemetry_of_blocks(run: RunDirectory, plan: Plan, records: Sequence[AnyRecord]) -> list[TelemetryBlock]:
    """The telemetry of measured blocks.

    Telemetry is written before its block, so an unfinished study may have telemetry without a block: that is left out.

    Args:
        run: its directory, for the message.
        plan: what should have been measured.
        records: all lines.

    Raises:
        RunDirectoryError: a line is of a block that was not measured, or a block has two lines; the message has the
            line.
    """
    timed: dict[tuple[str, str, int], list[Block]] = {}
    for block in records:
        if isinstance(block, Block):
            timed.setdefault(block.key, []).append(block)
    ended = studies_measured(records)
    found: dict[tuple[str, str, int], TelemetryBlock] = {}
    for line, one in enumerate(records, start=1):
        if not isinstance(one, TelemetryBlock):
            continue
        key = one.study, one.arm, one.round
        of, blocks = f"line {line} is telemetry of {one.study}, {one.arm}, round {one.round}", timed.get(key)
        if blocks is None:
            if one.study in ended or plan.arm(one.study, one.arm) is None:
                raise broken_file(run.measurements_jsonl, f"{of}, which was not measured")
            continue
        measured = [(block.ranks, block.began_unix_s) for block in blocks]
        if blocks[0].gang != one.gang or not np.array_equal(
            _times(measured), _times([(one.ranks, one.started_unix_s)])
        ):
            raise broken_file(run.measurements_jsonl, f"{of}, which was measured by other ranks or at another time")
        if key in found:
            raise broken_file(run.measurements_jsonl, f"{of}, which an earlier line has already")
        found[key] = one
    return list(found.values())


def _times(turns: Sequence[tuple[Any, Any]]) -> FloatArray:
    """Ranks and start times of all turns, in order, (2, ranks)."""
    began = [np.broadcast_to(np.asarray(when), len(ranks)) for ranks, when in turns]
    times = np.stack([np.concatenate(began), np.concatenate([np.asarray(ranks) for ranks, _ in turns])])
    return times[:, np.lexsort(times)]


def seeded_steps_of(records: Sequence[AnyRecord]) -> dict[str, dict[Place, SeededStep]]:
    """The seeded steps among records, by study and in rank order; the last line of a study counts."""
    gangs, found = gangs_by_number(records), dict[str, dict[Place, SeededStep]]()
    for line in records:
        if isinstance(line, SeededSteps):
            steps = sorted(line.ranks, key=lambda one: one.rank)
            found[line.study] = {gangs[line.gang].ranks[one.rank].place: one for one in steps}
    return found


def flops_of(records: Sequence[AnyRecord]) -> dict[str, float]:
    """Floating-point operations per sample of forward and backward pass, by study, if counted."""
    return {one.study: one.flops_per_sample for one in records if isinstance(one, WorkloadFlops)}


def timed_arms_of(records: Sequence[AnyRecord]) -> dict[str, dict[int, frozenset[str]]]:
    """Names of the arms that each finished round timed, by study and round number."""
    found: dict[str, dict[int, frozenset[str]]] = {}
    for record in records:
        if isinstance(record, RoundEnd):
            found.setdefault(record.study, {})[record.round] = frozenset(record.arms)
    return found


def unsupported_of(records: Sequence[AnyRecord]) -> dict[str, str]:
    """Why arms could not be timed on a rank, by name."""
    gangs = gangs_by_number(records)
    return {
        line.arm: f"{gangs[line.gang].ranks[line.ranks[-1]].place.host}: {each(line.reasons, len(line.ranks))[-1]}"
        for line in records
        if isinstance(line, Unsupported)
    }


def unread_of(records: Sequence[AnyRecord]) -> list[Unread]:
    """Expected readings that blocks among the records lack, in the order of the first of each arm and reading."""
    gangs, found = gangs_by_number(records), dict[tuple[str, str, str], Unread]()
    for block in (one for one in records if isinstance(one, Block)):
        for name, reasons in block.unread.items():
            told = zip(block.ranks, each(reasons, len(block.ranks)), strict=True)
            lacking = [(rank, why) for rank, why in told if why]
            if lacking:
                rank, why = lacking[0]
                host = gangs[block.gang].ranks[rank].place.host
                key = block.study, block.arm, name
                first = found.get(key, Unread(*key, host, int(rank), why, 0))
                found[key] = first._replace(blocks=first.blocks + len(lacking))
    return list(found.values())
