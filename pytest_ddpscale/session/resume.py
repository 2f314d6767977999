"""A session that resumes an interrupted run: what is kept, what is measured again, and its preconditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import OptionError, RunDirectoryError
from pytest_ddpscale.launch.supervisor import Judge
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import GangRecord, GangTransport, GpuErrors, Lost, RunStart, gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory, RunLock, broken_file, not_writable
from pytest_ddpscale.run.run_json import OPERATOR, Resumed, ThresholdsUsed, now_iso
from pytest_ddpscale.run.run_record import ends_of, studies_measured
from pytest_ddpscale.run.survey_record import STUDY_ID as SURVEY
from pytest_ddpscale.run.survey_record import PostMortem, Survey
from pytest_ddpscale.session.measure import MeasureSource
from pytest_ddpscale.session.sources import Machine, Subject, measured_layout
from pytest_ddpscale.thresholds.cases import AnyCase, cases_of
from pytest_ddpscale.util.masking import masked_arguments

# Files that a session concluded, not measured; they are moved out of the next session's way.
_CONCLUSIONS = (
    "verdicts.json", "baseline.json", "report.md", "report.html", "junit.xml", "pytest-report.json", "metrics.prom",
    "values.csv", "culprits.csv", "plots",
)  # fmt: skip


class ResumeSource(MeasureSource):
    """An earlier run that this session finishes, on the same machine."""

    def __init__(self, subject: Subject, machine: Machine, resumption: Resumption) -> None:
        super().__init__(subject, machine, measured_layout(resumption.run))
        self._resumption = resumption

    def select(self, cases: Sequence[AnyCase]) -> None:
        """Take the earlier run's plan, if it can be measured here."""
        self.selected = list(cases)
        refuse_other_devices(self._resumption.run, self.machine.devices, self.plan_for(self.selected))
        self._go_on_with(self._resumption)

    def _go_on_with(self, resumption: Resumption) -> None:
        self._resumption, self.plan = resumption, resumption.plan
        self.plan_to_measure = resumption.missing_plan if resumption.missing else None
        missing, planned = len(resumption.missing), len(resumption.plan.study_ids)
        kept = f"{planned - missing} of {planned} studies were measured and are kept"
        if not missing:
            kept = f"all {planned} studies were measured, so nothing is measured now"
        self.announcement = f", and resumes {resumption.run.path}: {kept}"

    def _open(self) -> None:
        """Lock the earlier run, read it again, and prepare to resume it."""
        self._refuse_wrong_arguments()
        run = RunDirectory.open(self._resumption.run.path)
        self._lock = RunLock.acquire(run.path)
        evidence = self._read_earlier(run)  # refuses a broken run before anything is changed
        self._go_on_with(read_resumption(run))
        self._resumption.begin(self.subject.site.argv, dict(self.subject.settings.note), self.subject.used)
        self.run = self.measured_run = run
        self.evidence = None if self._resumption.missing else evidence

    def judge_of(self, plan: Plan) -> Judge:
        """Decides by the requirements that the run was planned with."""
        from pytest_ddpscale.judge.judge import Decider

        return Decider(plan, self._resumption.decisive, self.subject.settings.confidence)

    def _make_room(self) -> None:
        self._resumption.set_aside()


@dataclass(frozen=True)
class Resumption:
    """An earlier run, the requirements of its plan, and by id how each unfinished study ended."""

    run: RunDirectory
    plan: Plan
    decisive: Sequence[AnyCase]
    missing: dict[str, str]

    @property
    def missing_plan(self) -> Plan:
        """The plan of missing studies, for the same ranks as the whole plan."""
        studies = tuple(study for study in self.plan.studies if study.id in self.missing)
        pairs = self.plan.pairs if self.plan.pairs and self.plan.pairs.id in self.missing else None
        probes = self.plan.probes if self.plan.probes and self.plan.probes.id in self.missing else None
        per_node, runs = self.plan.layout.ranks_per_node, self.plan.training_runs
        runs = tuple(run for run in runs if run.id in self.missing)
        return replace(
            self.plan, studies=studies, pairs=pairs, probes=probes, training_runs=runs, ranks_per_node=per_node
        )

    def begin(self, argv: Sequence[str], noted: Mapping[str, str], used: ThresholdsUsed) -> None:
        """Move earlier conclusions aside, and record the session's start. The run must be locked.

        Raises:
            RunDirectoryError: the directory is broken or cannot be written.
        """
        try:
            _keep_conclusions(self.run)
        except OSError as error:
            raise not_writable(self.run.path, error) from None
        self.run.cut_torn_line()
        record = self.run.read_run()
        began = Resumed(
            at=now_iso(), argv=tuple(masked_arguments(argv)), status_before=record.status, measured_anew=self.missing,
            noted=dict(noted), thresholds=used,
        )  # fmt: skip
        kept = record.noted | {key: said for key, said in noted.items() if key != OPERATOR}  # operators are listed
        self.run.note(status="running", finished_at=None, resumed=(*record.resumed, began), noted=kept)

    def set_aside(self) -> None:
        """Move the records of studies to be measured again to superseded.jsonl. No rank may be writing.

        Surveys, errors of GPUs and transports are moved too, because nodes may have been replaced or repaired, except
        for surveys of nodes that were left out. If no study is missing, nothing is moved.

        Raises:
            OSError: a file cannot be written.
            RunDirectoryError: run.json is broken.
        """
        left_out = self.run.read_run().left_out

        def is_measured_anew(record: AnyRecord) -> bool:
            if not self.missing:
                return False
            if isinstance(record, Survey):
                return record.host not in left_out
            if isinstance(record, PostMortem | GangTransport | GpuErrors):
                return True
            return not isinstance(record, RunStart | GangRecord | Lost) and record.study in (*self.missing, SURVEY)

        self.run.set_aside(is_measured_anew)


def read_resumption(run: RunDirectory) -> Resumption:
    """Find the unfinished studies of an earlier run.

    Raises:
        RunDirectoryError: the run is broken, simulated, imported, or measured by another version.
    """
    record = run.read_run()
    devices = {place.uuid for gang in gangs_by_number(run.read_records()).values() for place in gang.places}
    if record.is_simulated(devices) or record.is_imported:
        what = "imported" if record.is_imported else "simulated"
        raise RunDirectoryError(
            str(run.path), f"was {what} and cannot be resumed", "a measured run",
            f"Judge it with --ddp-judge={run.path}.",
        )  # fmt: skip
    measured_by = record.versions.get("pytest_ddpscale")
    if measured_by != __version__:
        raise RunDirectoryError(
            str(run.path), f"was measured by pytest-ddpscale {measured_by}", f"version {__version__}, which runs here",
            "Rounds of two versions are not comparable: install that version to resume, or start a new run.",
        )  # fmt: skip
    plan, records = run.read_plan(), run.read_records()
    try:
        decisive = cases_of(plan.requirements)
    except ValueError as error:
        raise broken_file(run.plan_json, f"has invalid content ({error})") from None
    measured = studies_measured(records)
    ends = {study: end.reason for study, end in ends_of(records).items()}
    missing = {study: ends.get(study, "no end") for study in plan.study_ids if study not in measured}
    return Resumption(run, plan, decisive, missing)


def refuse_other_devices(run: RunDirectory, devices: int | None, fresh: Plan) -> None:
    """Refuse to resume with more, fewer or otherwise arranged ranks than the run started with.

    `devices` can be used now (None if nothing will be measured), and `fresh` is a plan made for the present machine.

    Raises:
        OptionError: the devices or their arrangement differ.
    """
    before, plan = run.read_run().devices_present, run.read_plan()
    if devices is None:
        return
    layouts_differ = (fresh.nodes, fresh.layout.ranks_per_node) != (plan.nodes, plan.layout.ranks_per_node)
    if devices != before or (fresh.ranks_per_node is not None and layouts_differ):
        raise OptionError(
            "--ddp-resume",
            f"{devices} devices on {fresh.nodes} nodes can be used here, but {run.path} was started with {before} on "
            f"{plan.nodes}",
            "the same",
            "Resume it on the same machines with the same options "
            f"(--ddp-nodes={plan.nodes} --ddp-gpus-per-node={plan.layout.ranks_per_node}), or start a new run.",
        )


def _keep_conclusions(run: RunDirectory) -> None:
    """Move earlier conclusions into one folder, so that links between them stay valid. Raises OSError."""
    present = [run.path / name for name in _CONCLUSIONS if (run.path / name).exists()]
    if not present:
        return
    folders = (run.path / f"before-resume-{number}" for number in count(1))
    folder = next(folder for folder in folders if not folder.exists())
    folder.mkdir()
    for path in present:
        path.rename(folder / path.name)
