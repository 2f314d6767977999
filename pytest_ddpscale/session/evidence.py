"""Where a session's evidence comes from: a run that it measures, one that it resumes, or an earlier run as it is."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from uuid import uuid4

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import OptionError, RunDirectoryError, SkuError, WritingError
from pytest_ddpscale.history.same_nodes import kept_baseline
from pytest_ddpscale.judge.checks import device_notes, unfit_nodes
from pytest_ddpscale.judge.judge import Decider
from pytest_ddpscale.judge.outcome import remark_on_unseen_loss
from pytest_ddpscale.judge.slow import pace_notes, rank_notes
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.gang_state import STARTUP_S, Limits
from pytest_ddpscale.launch.launcher import Cluster, Launch, container_of, launchers
from pytest_ddpscale.launch.supervisor import Judge, PreflightFailed, Supervisor
from pytest_ddpscale.plan.estimate import estimate
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.planner import PACES
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import DIED, Evidence, read_evidence
from pytest_ddpscale.run.reason import Why, because
from pytest_ddpscale.run.record_lines import AnyRecord, Listener, Unfit
from pytest_ddpscale.run.records import (
    GangTransport,
    GpuErrors,
    RunStart,
    StudyEnd,
    gangs_by_number,
)
from pytest_ddpscale.run.run_directory import (
    RunDirectory,
    RunLock,
    broken_file,
    judging_directory,
    new_run_directory,
)
from pytest_ddpscale.run.run_json import OPERATOR, Ending, Resumed, RunRecord, now_iso
from pytest_ddpscale.run.run_record import ends_of, studies_measured
from pytest_ddpscale.run.survey_record import STUDY_ID as SURVEY
from pytest_ddpscale.run.survey_record import PostMortem, Survey, surveys_of
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.run.verdicts import Verdict, read_judgement
from pytest_ddpscale.session.open import (
    THIS_MACHINE,
    Machine,
    Site,
    Subject,
    load_unchanged,
    resolve_machine,
    thresholds_path,
    usual_devices,
)
from pytest_ddpscale.settings import AUTO, LEAVE_OUT, MEASURE, Settings
from pytest_ddpscale.thresholds.cases import AnyCase, cases_for, cases_of, plan_of_cases, training_cases
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.waiver import today
from pytest_ddpscale.util.listing import alike, first_few
from pytest_ddpscale.util.masking import masked_arguments

# Variables that nsys needs in ranks, besides those passed anyway (CUDA_*, LD_PRELOAD).
_OF_NSYS = ("NVTX_*", "NSYS_*", "QUADD_*")
# Files that a session concluded, not measured; they are moved out of the next session's way.
_CONCLUSIONS = (
    "verdicts.json", "baseline.json", "report.md", "report.html", "junit.xml", "pytest-report.json", "metrics.prom",
    "values.csv", "culprits.csv", "plots",
)  # fmt: skip


def find_source(site: Site) -> EvidenceSource:
    """Load thresholds, determine the SKU, and choose the source of evidence.

    Raises:
        BadInput: thresholds, SKU, options, or the run to judge or resume are invalid.
    """
    settings, sku, path = site.settings, site.settings.gpu_sku, thresholds_path(site)
    named, thresholds = settings.judge or settings.resume, None
    earlier = RunDirectory.open(named) if named else None
    if earlier and settings.judge and not settings.thresholds:
        record = earlier.read_run()
        if used := [*filter(None, (record.thresholds, *(later.thresholds for later in record.resumed)))]:
            thresholds = load_unchanged(used[-1], path)
    thresholds = thresholds or load_thresholds(path, of_earlier_run=settings.resume is not None)
    if earlier:
        measured = earlier.read_run().sku
        if sku == AUTO:
            sku = thresholds.sku_name(measured, where=str(earlier.run_json))
        elif (sku := thresholds.sku_name(sku)) != thresholds.thresholds.canonical_name(measured):
            raise SkuError(  # a run is never judged by another SKU's thresholds
                "--gpu-sku", f"found {sku}, but {earlier.path} was measured on {measured}", measured,
                f"Omit --gpu-sku, or use --gpu-sku={measured}.",
            )  # fmt: skip
        if settings.judge:
            return EvidenceSource(Subject(site, thresholds, sku), Machine(), measured_layout(earlier), earlier)
        if earlier.is_only_begun:  # killed before it had a plan: measure a new run in its place
            site = replace(site, settings=settings._replace(resume=None, run_dir=earlier.path))
            earlier = None
    subject, machine = resolve_machine(site, thresholds, sku, judges_none=earlier is None)
    per_node = machine.per_node or usual_devices(thresholds.thresholds.skus[subject.sku])
    layout = Layout(machine.cluster.nodes, per_node) if earlier is None else measured_layout(earlier)
    return EvidenceSource(subject, machine, layout, earlier)


class EvidenceSource:
    """A session's source of evidence: what it plans, measures or reads, once.

    A new run is measured on the machine's devices, or planned for assumed ones if they are unknown; an earlier one is
    judged as it is with --ddp-judge, else finished on the same machine.

    Attributes:
        subject: SKU and thresholds.
        machine: nodes and devices to measure; without content if nothing is measured.
        cases: all requirements of the SKU.
        selected: the selected requirements; replaced if unfit nodes are left out.
        earlier: the run to judge or to resume; None for a new one.
        judges: whether an earlier run is only judged.
        named: name of a new run directory, after the time.
        announcement: text after "ddpscale judges by FILE" on the terminal.
        plan: the whole plan; empty before requirements are selected.
        plan_to_measure: the part that this session is to measure; None for nothing, and once it was launched.
        decisive: the requirements that a resumed run was planned with, which decide when its studies end.
        missing: by id how each study of a resumed run ended that is measured anew.
        run: directory for verdicts and reports; None before it is opened.
        measured_run: the run with the measurements; a session that measures has it once opened.
        evidence: the measurements; None before they exist.
        writing_problem: why some records could not be written; empty if all were.
    """

    announcement = writing_problem = ""
    plan_to_measure: Plan | None = None
    decisive: Sequence[AnyCase] = ()
    run: RunDirectory | None = None
    measured_run: RunDirectory
    evidence: Evidence | None = None
    _lock: RunLock | None = None

    def __init__(self, subject: Subject, machine: Machine, layout: Layout, earlier: RunDirectory | None = None) -> None:
        self.subject, self.machine, self.earlier = subject, machine, earlier
        self.judges, self.named = subject.settings.judge is not None, subject.sku
        self.cases, self.selected = cases_for(subject.thresholds, subject.sku, layout), list[AnyCase]()
        self.plan, self.missing = Plan(subject.sku, subject.device_type, ()), dict[str, str]()
        if earlier:
            self.measured_run = earlier
        if self.judges:
            self.announcement = f"; evidence from {self.measured_run.path} (no new measurement)"

    @property
    def expected_samples_per_s(self) -> dict[str, float]:
        """Expected throughput of one GPU by workload, from the thresholds; only for time estimates."""
        return {
            row.workload: row.source.measured or row.bound for case in training_cases(self.cases)
            if (row := case.requirement).definition is THROUGHPUT_PER_GPU and row.world_size == 1
        }  # fmt: skip

    @property
    def again(self) -> tuple[str, ...]:
        """The command that measures it again: as recorded in the run, else reconstructed."""
        return self.measured_run.read_run().again or self.subject.command_again(self.machine)

    @property
    def nothing(self) -> Evidence:
        """The evidence of a run of which nothing was measured."""
        return Evidence(self.plan, Columns(), {})

    def judge_of(self, plan: Plan) -> Judge | None:
        """Decides when a study of the plan has enough rounds; None measures all rounds."""
        return Decider(plan, self.decisive or self.selected, self.subject.settings.confidence)

    def why_not(self, case: AnyCase) -> str:
        """What this machine, or the thresholds, lack for a requirement; empty if nothing."""
        devices, cluster = self.machine.devices, self.machine.cluster
        if devices is not None and case.world_size > devices:
            unit = "GPUs" if self.subject.device_type == "cuda" else "ranks"
            return f"needs {case.world_size} {unit}; {devices} can be used here"
        is_spread = case.requirement.placement == "spread" and not (self.judges or self.subject.site.collect_only)
        if is_spread and cluster.nodes == 1:
            return "needs several nodes to spread ranks over; there is 1"
        return case.missing

    def plan_for(self, cases: Sequence[AnyCase]) -> Plan:
        """The plan for all requirements that can be measured here."""
        subject, settings, machine = self.subject, self.subject.settings, self.machine
        empty = Plan(
            subject.sku, subject.device_type, (), nodes=machine.cluster.nodes, ranks_per_node=machine.per_node,
            gpus_asked=machine.gpus_asked,
        )  # fmt: skip
        pace = PACES[subject.device_type]
        usual_s = min(pace.sustained_s, settings.inactivity_limit_s / 2)  # ranks record nothing in it
        pace = replace(
            pace, block_s=settings.block_s or pace.block_s, rounds=settings.rounds or pace.rounds,
            uncompared_rounds=settings.rounds or pace.uncompared_rounds,
            sustained_s=usual_s if settings.warm_up_s is None else settings.warm_up_s,
        )  # fmt: skip
        return plan_of_cases(empty, [case for case in cases if not self.why_not(case)], pace)

    def select(self, cases: Sequence[AnyCase]) -> None:
        """Set the selected requirements, and plan exactly those; read an earlier run, so that a broken one is refused.

        Raises:
            RunDirectoryError: the run to judge or resume is broken.
            OptionError: the run to resume was started on other devices.
        """
        self.selected, run = list(cases), self.earlier
        if run is None:
            self.plan = self.plan_to_measure = self.plan_for(cases)
        elif not self.judges:
            self.go_on(run)
        else:
            self.plan, self.evidence = run.read_plan(), self._read()
            if self.subject.settings.rehearse and not run.read_run().is_simulated(self.evidence.columns.devices):
                raise OptionError(
                    "--ddp-rehearse", f"found {run.path}, a run of a real machine", "a simulated run",
                    "Leave it out to judge this run.",
                )  # fmt: skip

    def go_on(self, run: RunDirectory) -> None:
        """Plan the missing studies of the earlier run, for the same ranks as its whole plan.

        Raises:
            RunDirectoryError: the run is broken, simulated, imported, or measured by another version.
            OptionError: there are more, fewer or otherwise arranged devices than it was started with.
        """
        record, records, plan = run.read_run(), run.read_records(), run.read_plan()
        places = {place.uuid for gang in gangs_by_number(records).values() for place in gang.places}
        if record.is_simulated(places) or record.is_imported:
            raise RunDirectoryError(
                str(run.path), "was imported or simulated, and cannot be resumed",
                "a measured run",
                f"Judge it with --ddp-judge={run.path}.",
            )  # fmt: skip
        measured_by = record.versions.get("pytest_ddpscale")
        if measured_by != __version__:
            raise RunDirectoryError(
                str(run.path), f"was measured by pytest-ddpscale {measured_by}",
                f"version {__version__}, which runs here",
                "Rounds of two versions are not comparable: install that one, or start a new run.",
            )  # fmt: skip
        try:
            self.decisive = cases_of(plan.requirements)
        except ValueError as error:
            raise broken_file(run.plan_json, f"has invalid content ({error})") from None
        devices, before, nodes = self.machine.devices, record.devices_present, self.machine.cluster.nodes
        if devices is not None and (devices, nodes) != (before, plan.nodes):
            raise OptionError(
                "--ddp-resume",
                f"{devices} devices on {nodes} nodes are here, not {before} on {plan.nodes}",
                "those that the run was started with",
                f"Type --ddp-nodes={plan.nodes} --ddp-gpus-per-node={(before or 0) // plan.nodes}, or start a new run.",
            )
        measured, planned = studies_measured(records), plan.study_ids
        ends = dict.fromkeys(planned, "no end") | {study: end.reason for study, end in ends_of(records).items()}
        self.missing = {study: ends[study] for study in planned if study not in measured}
        self.plan, self.plan_to_measure = plan, plan.part(self.missing) if self.missing else None
        kept = f"{len(planned) - len(self.missing)} of {len(planned)} studies were measured and are kept"
        self.announcement = f", and resumes {run.path}: {kept}"

    def open_run(self) -> None:
        """Open the run directory and record the session's start.

        Raises:
            RunDirectoryError: it cannot be written, another process writes it, or the run to judge or resume is
                broken.
            OSError: a file of the run to resume cannot be moved.
        """
        try:
            self._open()
        except BaseException:
            self.release()
            raise

    def _open(self) -> None:
        """Lock the run directory, creating it if missing, and record the session's start."""
        subject, settings, machine = self.subject, self.subject.settings, self.machine
        if self.judges:
            self.run, self._lock = judging_directory(self.measured_run, settings.run_dir)
            return
        checks = [case.requirement.check for case in self.selected]
        if machine.lacks_gpus and "gpus" not in checks:
            raise SkuError(
                f"--gpu-sku={subject.sku}", machine.silent[0], "a GPU that answers",
                "Without one, only node_check[gpus] can be judged, and it is not selected.",
            )  # fmt: skip
        launch_on(machine.cluster, settings, subject.device_type)  # refuses a container that cannot be started
        argv, noted, run = tuple(masked_arguments(subject.site.argv)), dict(settings.note), self.earlier
        if run:
            self._lock = RunLock.acquire(run.path)
            evidence = self._read()  # refuses a broken run before anything is changed
            self.go_on(run)  # with what another session may have measured meanwhile
            run.cut_torn_line()
            record = run.read_run()
            began = Resumed(
                at=now_iso(), argv=argv, status_before=record.status, measured_anew=self.missing, noted=noted,
                thresholds=subject.used,
            )  # fmt: skip
            kept = record.noted | {key: said for key, said in noted.items() if key != OPERATOR}  # operators are listed
            # First, as its number is that of a folder that nothing is in.
            run.note(status="running", finished_at=None, resumed=(*record.resumed, began), noted=kept)
            folder = run.path / f"before-resume-{len(record.resumed) + 1}"  # one, so that links stay valid
            for path in filter(os.path.exists, (run.path / name for name in _CONCLUSIONS)):
                folder.mkdir(exist_ok=True)
                path.rename(folder / path.name)
            self.run, self.evidence = run, None if self.missing else evidence
            return
        run, self._lock = new_run_directory(settings.run_dir, self.named)
        record = RunRecord(
            sku=subject.sku, id=uuid4().hex, status="running", started_at=now_iso(),
            argv=argv, again=subject.command_again(machine), noted=noted,
            thresholds=subject.used, devices_present=0 if machine.lacks_gpus else machine.devices,
            load=(
                (round(os.getloadavg()[0], 1), os.cpu_count() or 1)
                if machine.cluster.launcher == THIS_MACHINE.launcher else None
            ),
            versions={"python": platform.python_version(), "pytest": version("pytest"), "pytest_ddpscale": __version__},
        )  # fmt: skip
        # First, so that a run killed from here on is recognised and can be restarted in its directory.
        run.write_json(run.run_json, record)
        run.write_json(run.plan_json, self.plan)
        self.run = self.measured_run = run

    def measure(self, listener: Listener) -> Evidence:
        """The evidence, measured first if necessary, once.

        Raises:
            RunDirectoryError: it could not be read after measuring.
        """
        plan, self.plan_to_measure = self.plan_to_measure, None  # what then cannot be read is not measured again
        if plan:
            with self.writing():
                if self.missing:
                    self.set_aside()
                self._launch(plan, listener)
        self.evidence = self.evidence or self._read()
        return self.evidence

    def set_aside(self) -> None:
        """Move the records of studies to be measured again to superseded.jsonl. No rank may be writing.

        Surveys, errors of GPUs and transports are moved too, because nodes may have been replaced or repaired, except
        for surveys of nodes that were left out.

        Raises:
            OSError: a file cannot be written.
            RunDirectoryError: run.json is broken.
        """
        left_out = self.measured_run.read_run().left_out

        def is_measured_anew(record: AnyRecord) -> bool:
            if isinstance(record, Survey):
                return record.host not in left_out
            is_of_hardware = isinstance(record, PostMortem | GangTransport | GpuErrors)
            return is_of_hardware or getattr(record, "study", "") in (*self.missing, SURVEY)

        self.measured_run.set_aside(is_measured_anew)

    def _launch(self, plan: Plan, listener: Listener) -> None:
        subject, settings, run = self.subject, self.subject.settings, self.measured_run
        unfit: dict[str, str] = {}

        def preflight(surveys: Sequence[Survey]) -> str:
            """Why nothing may be launched on these nodes; empty if it may."""
            nonlocal unfit
            given = self.selected, plan, surveys_of(surveys), today()
            unfit = {host: say(why) for host, why in unfit_nodes(*given, hopeless=False).items()}
            if unfit:
                listener(Unfit(unfit))  # now, not hours later in the report
            refused: Mapping[str, Why] = unfit
            if settings.unfit == MEASURE and not self.machine.lacks_gpus:
                # Ranks that cannot run would only fail one study after another.
                refused = unfit_nodes(*given, hopeless=True)
            return "; ".join(alike({host: f"{host}: {say(why)}" for host, why in refused.items()}))

        expected_s = estimate(
            plan, isolate=settings.is_isolated, samples_per_s=self.expected_samples_per_s
        ).most_seconds
        startup_s = max(STARTUP_S, settings.inactivity_limit_s)
        limits = Limits(
            budget_s=settings.budget_s, inactivity_s=settings.inactivity_limit_s, startup_s=startup_s,
            # Several times the expected time, so that a slow machine is measured and not cut off. The time of a whole
            # training run is unknown.
            total_s=None if plan.training_runs else 5 * expected_s + startup_s,
        )  # fmt: skip
        supervisor = Supervisor(
            launch_on(self.machine.cluster, settings, subject.device_type), run, limits, listener,
            isolate=settings.is_isolated, judge=self.judge_of(plan), preflight=preflight,
        )  # fmt: skip
        if not run.read_records():
            run.append_record(RunStart(id=run.read_run().id))
        try:
            supervisor.measure(plan)
        except PreflightFailed as refusal:
            why = f"nothing was measured: {refusal}"
        else:
            return
        # Measure a whole plan on the other nodes; other results are compared with earlier ones on all nodes.
        cluster = self.machine.cluster.without(unfit)
        if cluster is None or settings.unfit != LEAVE_OUT or plan is not self.plan:
            run.append_records([StudyEnd(study, "error", why) for study in plan.study_ids])
            return
        self.machine = replace(self.machine, cluster=cluster)
        run.note(devices_present=self.machine.devices, left_out=unfit)
        # On fewer nodes `all` means fewer ranks; requirements on more nodes stay, unmeasured.
        cases = cases_for(subject.thresholds, subject.sku, Layout(cluster.nodes, self.machine.per_node or 1))
        now = {case.id: case for case in cases}
        self.cases, self.selected = ([now.get(case.id, case) for case in some] for some in (self.cases, self.selected))
        self.plan = self.plan_for(self.selected)
        run.write_json(run.plan_json, self.plan)
        self._launch(replace(self.plan, survey=False), listener)  # the surveys are already recorded

    def close(self, status: Ending) -> None:
        """Record how the session ended; an earlier run that is only judged keeps its record."""
        if not self.judges:
            self.measured_run.note(status=status, finished_at=now_iso())

    def release(self) -> None:
        """Release the lock of the run directory; the session does not use it after that."""
        if self._lock:
            self._lock.release()

    def measured_so_far(self) -> Evidence:
        """The measurements, even of an interrupted run; of nothing if measuring did not begin."""
        if self.evidence is None and self.measured_run.measurements_jsonl.exists():
            self.evidence = self._read()
        return self.evidence or self.nothing

    def _read(self) -> Evidence:
        """The evidence in the measured run; a broken baseline is refused, too, so that it does not look like a failed
        requirement later. Raises RunDirectoryError.
        """
        kept_baseline(self.measured_run)
        return read_evidence(self.measured_run, self.writing_problem or DIED)

    def notes(self, verdicts: Sequence[Verdict]) -> Iterator[Why]:
        """Notes for the reader about how this was measured, and about ranks that no verdict names."""
        run, seen, thresholds = self.measured_run, self.evidence, self.subject.thresholds
        record = run.read_run()
        if self.judges:
            yield because("judged-from", str(run.path))
            with suppress(RunDirectoryError):
                is_a_part = len(self.selected) < len(self.cases)
                if is_a_part and (whole := read_judgement(run.verdicts_json)).outcome == "rejected":
                    of_all = f"the verdicts.json of the run itself rejects it ({whole.reason})"
                    yield f"only a part is judged here: {of_all}"
            if record.is_unfinished:
                yield f"run.json says {record.status}: its session did not end regularly, or still runs"
            yield from record.notes
        if unseen := remark_on_unseen_loss(self.subject.device_type, self.cases, self.selected):
            yield unseen
        if seen is not None:
            peers = thresholds.thresholds.skus[self.subject.sku].peers
            yield from (*rank_notes(seen, peers.computing, verdicts), *pace_notes(seen), *device_notes(seen))
        yield from alike({host: f"{host} was left out: {why}" for host, why in record.left_out.items()})
        unbound = dict[str, dict[str, None]]()  # ranks by reason
        for gang in gangs_by_number(run.read_records()).values():
            for number, rank in enumerate(gang.ranks):
                unbound.setdefault(rank.numa_note, {})[f"rank {number} on {rank.place.host}"] = None
        yield from (f"{first_few([*ranks], 1)}: {reason}" for reason, ranks in unbound.items() if reason)
        yield from record.resumption_notes(thresholds.digests)
        if self._lock and self._lock.note:
            yield self._lock.note

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Catch write errors: a full disk ends measuring but not the session, which judges what was measured."""
        try:
            yield
        except WritingError as error:
            self.writing_problem = str(error)
        except OSError as error:
            self.writing_problem = str(self.measured_run.unwritten(self.measured_run.path, error))


def measured_layout(earlier: RunDirectory) -> Layout:
    """The nodes of an earlier run, with all devices of each, whether ranks used them or not.

    Raises:
        RunDirectoryError: its plan or run.json is broken.
    """
    plan, present = earlier.read_plan(), earlier.read_run().devices_present
    if any(study.launch > 1 for study in plan.studies):
        raise RunDirectoryError(
            str(earlier.plan_json), "has studies of several launches", "one launch",
            "Runs on several days measure several.",
        )  # fmt: skip
    per_node = -(-(present or 0) // plan.nodes)
    return Layout(plan.nodes, max(per_node, plan.layout.ranks_per_node))


def launch_on(
    cluster: Cluster, settings: Settings, device_type: DeviceType, environ: Mapping[str, str] = os.environ
) -> Launch:
    """How to start gangs on these nodes. Raises OptionError if the container cannot be started here."""
    launcher = launchers()[cluster.launcher](settings, environ)
    passed = (*settings.pass_env, *_OF_NSYS) if settings.nvtx else settings.pass_env
    environment = worker_environment(environ, device_type, pass_env=passed)
    container = container_of(settings.container, device_type, launcher.image_arguments)
    return Launch(launcher, environment, cluster.hosts, device_type, container, cluster.nodes)
