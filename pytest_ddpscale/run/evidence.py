"""Evidence for the judge from a run directory, refused if it contradicts itself."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.run.block import Block, Unsupported
from pytest_ddpscale.run.consistent import refuse_contradictions
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.profile_record import ArmProfile
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import (
    GangRecord,
    GpuErrors,
    RoundEnd,
    RunStart,
    SeededStep,
    SeededSteps,
    StudyEnd,
    WorkloadFlops,
    gangs_by_number,
)
from pytest_ddpscale.run.run_directory import RunDirectory, broken_file
from pytest_ddpscale.run.run_record import ended, ends_of
from pytest_ddpscale.run.strict_json import each
from pytest_ddpscale.run.survey_record import PostMortem, Survey, surveys_of
from pytest_ddpscale.run.table import ArmRounds, Columns, Keeping, columns_of
from pytest_ddpscale.run.telemetry import NO_TELEMETRY, TelemetryBlock, TelemetryColumns, telemetry_columns_of
from pytest_ddpscale.run.training_record import LaunchTime, OfTraining, TrainedEpoch, TrainedRun
from pytest_ddpscale.run.transport_record import GangTransport, RankTransport


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
class Evidence(Keeping):
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
        training: lines of whole training runs and ends of studies; `suites.trained_run` adds them up.
        gangs: the ranks of each launch.
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
    training: Sequence[OfTraining | StudyEnd] = ()
    goes_on: bool = False
    gpu_errors: Sequence[GpuErrors] = ()
    ranks_of_errors: Sequence[Place] = ()
    unread: Sequence[Unread] = ()
    gangs: Collection[GangRecord] = ()

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

    @property
    def pairs(self) -> Sequence[ArmRounds]:
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

        def find_out() -> dict[int, str]:
            steps, is_repeatable = self.seeded_steps.get(study_id, {}).values(), self.is_repeatable(study_id)
            return {step.rank: step.checksum if is_repeatable else "not repeatable" for step in steps}

        return self.once(("seeded", study_id), find_out)

    def is_repeatable(self, study_id: str) -> bool:
        """Whether most ranks repeated the seeded step of a study, so that their results can be compared."""
        steps = self.seeded_steps.get(study_id, {}).values()
        return 2 * sum(step.repeats for step in steps) > len(steps)

    @cached_property
    def compared_alone(self) -> set[tuple[str, str]]:
        """Host and device of ranks whose own results some study compared, as most of its ranks repeated them."""
        studies = (steps for study, steps in self.seeded_steps.items() if self.is_repeatable(study))
        return {(place.host, place.uuid) for steps in studies for place in steps}


def evidence_of(plan: Plan, columns: Columns, records: Sequence[AnyRecord]) -> Evidence:
    """The evidence in records of measurements.jsonl; studies may be unfinished.

    Args:
        plan: of the run.
        columns: the measurements in these records.
        records: all records.
    """
    said = defaultdict[type, list[Any]](list)
    for one in records:
        said[type(one)].append(one)
    gangs = gangs_by_number(said[GangRecord])
    places = {number: gang.places for number, gang in gangs.items()}
    seeded, timed = dict[str, dict[Place, SeededStep]](), dict[str, dict[int, Collection[str]]]()
    for line in said[SeededSteps]:
        seeded[line.study] = {places[line.gang][step.rank]: step for step in sorted(line.ranks, key=attrgetter("rank"))}
    for line in said[RoundEnd]:
        timed.setdefault(line.study, {})[line.round] = frozenset(line.arms)
    connected = {one.rank: (places[line.gang][one.rank], one) for line in said[GangTransport] for one in line.ranks}
    unable = dict[str, str]()
    for line in said[Unsupported]:
        why = each(line.reasons, len(line.ranks))[-1]
        unable[line.arm] = f"{places[line.gang][line.ranks[-1]].host}: {why}"
    lacking, first = Counter[tuple[str, str, str]](), dict[tuple[str, str, str], tuple[str, int, str]]()
    for block in said[Block]:
        for name, reasons in block.unread.items():
            told = zip(block.ranks.tolist(), each(reasons, len(block.ranks)), strict=True)
            for rank, why in told:
                if why:
                    key = block.study, block.arm, name
                    first.setdefault(key, (places[block.gang][rank].host, rank, why))
                    lacking[key] += 1
    surveys, of_errors = surveys_of(said[Survey]), dict[Place, None]()
    if said[GpuErrors]:  # a gang that ended before it was announced had GPUs as surveyed
        seen = (gpu.on(one.host) for one in surveys.values() for gpu in one.gpus)
        of_errors = dict.fromkeys(chain((at for at in seen if at.local_rank is not None), *places.values()))
    return Evidence(
        plan,
        columns,
        ended(said[StudyEnd], "error"),
        {line.study: line.flops_per_sample for line in said[WorkloadFlops]},
        seeded,
        timed,
        ended(said[StudyEnd], "interrupted"),
        sorted({host for gang in gangs.values() for host in gang.hosts}),
        unable,
        surveys,
        transports=dict(connected[rank] for rank in sorted(connected)),
        post_mortems=[line.survey for line in said[PostMortem]],
        out_of_time=ended(said[StudyEnd], "budget"),
        training=list(chain.from_iterable(said[kind] for kind in (TrainedEpoch, TrainedRun, LaunchTime, StudyEnd))),
        profiles=tuple({(one.study, one.arm): one for one in said[ArmProfile]}.values()),
        unread=[Unread(*key, *first[key], blocks) for key, blocks in lacking.items()],
        gpu_errors=said[GpuErrors],
        ranks_of_errors=list(of_errors),
        gangs=gangs.values(),
    )


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
    starts = [one.id for one in records if isinstance(one, RunStart)]
    if starts and starts != [record.id]:
        raise broken_file(run.measurements_jsonl, "does not begin with the id in run.json: it is of another run")
    ids = [study.id for study in (*plan.timed, *plan.training_runs)]
    if len({*ids}) != len(ids):
        raise broken_file(run.plan_json, "has two studies with the same id")
    gangs = gangs_by_number(records)
    simulated = record.is_simulated(place.uuid for gang in gangs.values() for place in gang.places)
    refuse_contradictions(run, plan, records, is_imported=record.is_imported, is_simulated=simulated)
    blocks = [one for one in records if isinstance(one, Block)]
    measured = {block.key for block in blocks}  # telemetry is written before its block, which may be missing
    told = [one for one in records if isinstance(one, TelemetryBlock) and (one.study, one.arm, one.round) in measured]
    evidence = evidence_of(plan, columns_of(blocks, gangs.values()), records)
    evidence = replace(evidence, telemetry=telemetry_columns_of(told, gangs))
    if record.is_imported:
        return evidence
    ends = ends_of(records)
    unfinished = {study: died for study in plan.study_ids if study not in ends}
    finish_it = "" if run.suite_json.exists() else f"; --ddp-resume={run.path} finishes it"
    interrupted = {study: f"interrupted: {why}{finish_it}" for study, why in evidence.interrupted.items()}
    if goes_on or record.status == "interrupted":
        return replace(evidence, interrupted=unfinished | interrupted)
    return replace(evidence, errors={**evidence.errors, **unfinished}, interrupted=interrupted)
