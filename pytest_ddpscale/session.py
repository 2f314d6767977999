"""One acceptance session in the pytest process: what is asked, measured and concluded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_ddpscale.cluster import THIS_MACHINE, Cluster, find_cluster, place_of
from pytest_ddpscale.devices import devices_per_node, gpus_here, measured_sku, needs_no_gpu
from pytest_ddpscale.errors import OptionError, RunDirectoryError, SkuError, WritingError
from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.place import Place
from pytest_ddpscale.launch.supervisor import Listener, Supervisor
from pytest_ddpscale.packaged import packaged
from pytest_ddpscale.plan.estimate import estimate
from pytest_ddpscale.plan.metric import METRICS
from pytest_ddpscale.plan.planner import PACES, Pace, Question, build_plan
from pytest_ddpscale.plan.study import DeviceType, Plan
from pytest_ddpscale.results.places import why_not_one_machine
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_lock import RunLock
from pytest_ddpscale.results.run_opening import judging_directory, new_run_directory, reopened
from pytest_ddpscale.results.run_record import (
    SIMULATED_NOTE,
    finish_run,
    is_simulated,
    now_iso,
    resumption_notes,
    start_run,
)
from pytest_ddpscale.resuming import Resumption, extra_launches, read_resumption, refuse_other_devices
from pytest_ddpscale.settings import AUTO, Settings
from pytest_ddpscale.sku.matching import resolve_sku
from pytest_ddpscale.thresholds.cases import Case, cases_for, device_type
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.verdict.by_node import devices_covered
from pytest_ddpscale.verdict.deciding import Decider
from pytest_ddpscale.verdict.evaluation import judge, samples_of
from pytest_ddpscale.verdict.evidence import DIED, Evidence, read_evidence
from pytest_ddpscale.verdict.matching import covers
from pytest_ddpscale.verdict.outcome import Caveats, conclude, may_accept, qualified
from pytest_ddpscale.verdict.verdict import Judgement, Verdict

DEFAULT_NAME = "thresholds.yaml"


@dataclass(frozen=True)
class Site:
    """Where the session runs and by what it judges.

    Attributes:
        settings: what the user asked for.
        rootdir: pytest's root directory.
        invocation_dir: where pytest was started.
        argv: the command line, for the record.
        collect_only: nothing will be measured, so no device is needed.
    """

    settings: Settings
    rootdir: Path
    invocation_dir: Path
    argv: tuple[str, ...] = ()
    collect_only: bool = False


@dataclass
class AcceptanceSession:
    """State of one session; made by `open_session`.

    Attributes:
        site: settings and place.
        thresholds: the file judged by.
        sku: canonical SKU name.
        cases: every requirement of the SKU.
        devices: GPUs (CPU: ranks) that may be used, on all nodes; None if unknown, as on a laptop that only plans.
        judged_run: the run directory of an earlier run, when judging without measuring.
        resumed: an earlier run that is gone on with, and what it lacks.
        cluster: the nodes.
        writing_problem: why not all that was measured could be written; empty if it was.
    """

    site: Site
    thresholds: ThresholdsFile
    sku: str
    cases: list[Case]
    devices: int | None
    judged_run: RunDirectory | None
    resumed: Resumption | None = None
    cluster: Cluster = THIS_MACHINE
    writing_problem: str = ""
    selected: list[Case] = field(default_factory=list)
    plan: Plan | None = None
    run: RunDirectory | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    _evidence: Evidence | None = None
    _extra_launches: int = 0
    _was_launched: bool = False
    _lock: RunLock | None = None

    @property
    def device_type(self) -> DeviceType:
        """``cpu`` or ``cuda``."""
        return device_type(self.thresholds.thresholds.skus[self.sku])

    @property
    def plan_to_measure(self) -> Plan:
        """The plan, or what an earlier run lacks of it."""
        assert self.plan is not None  # select comes first
        return self.resumed.missing_plan if self.resumed is not None else self.plan

    @property
    def expected_img_per_s(self) -> dict[str, float]:
        """Throughput of one GPU that the thresholds expect, by workload; for estimates of time only."""
        throughput = [c.requirement for c in self.cases if c.requirement.metric == "throughput_per_gpu"]
        return {r.workload: r.source.measured or r.bound for r in throughput if r.world_size == 1}

    def select(self, cases: Sequence[Case]) -> None:
        """Settle what is asked, and plan exactly that.

        Raises:
            RunDirectoryError: the run that is to be judged or resumed is broken.
            OptionError: the run that is to be resumed was begun on other devices.
        """
        self.selected = list(cases)
        if self.judged_run is not None:
            self.plan = self.judged_run.read_plan()
            return
        fresh = self._plan_for([case.question for case in self._measurable(cases)])
        if self.resumed is not None:
            refuse_other_devices(self.resumed.run, self.devices, fresh)
        self.plan = self.resumed.plan if self.resumed is not None else fresh

    def open_run(self) -> None:
        """Make the run directory and record what is about to happen.

        Raises:
            RunDirectoryError: it cannot be written, another process writes it, or the run that is to be judged or
                resumed is broken.
        """
        try:
            self._open_run()
        except BaseException:
            self.release_run()
            raise

    def _open_run(self) -> None:
        assert self.plan is not None  # select comes first
        if self.judged_run is not None:
            self._evidence = read_evidence(self.judged_run)  # refuses a broken run before any item runs
            self.run, self._lock = judging_directory(self.judged_run, self.site.settings.run_dir)
            return
        if self.resumed is not None:
            self._reopen_run(self.resumed.run.path)
            return
        self._place(self.site.settings.run_dir or Path())  # what cannot be started leaves no run behind
        run, self._lock = new_run_directory(self.site.settings.run_dir, self.sku)
        thresholds = self.thresholds
        # First, so that a run killed on the way is known for one, and begun anew in its directory.
        start_run(run, self.sku, self.site.argv, thresholds.path, thresholds.sha256, self.devices)
        run.write_json(run.plan_json, self.plan.as_json())
        self.run = run

    def _reopen_run(self, path: Path) -> None:
        """Go on with an earlier run, as it is now that nobody else writes it."""
        run, self._lock = reopened(path)
        evidence = read_evidence(run)  # refuses a broken run before anything is changed
        self.resumed = read_resumption(run)
        self.plan, self._extra_launches = self.resumed.plan, extra_launches(self.resumed.plan)
        self.resumed.begin(self.site.argv, self.thresholds.sha256)
        self.run, self._evidence = run, None if self.resumed.missing else evidence

    def needs_measuring(self) -> bool:
        """Whether the next verdict has to wait for a measurement."""
        return self._evidence is None

    def measure(self, listener: Listener) -> None:
        """Measure the whole plan, once."""
        assert self.plan is not None
        assert self.run is not None
        if self._was_launched:
            raise RunDirectoryError(str(self.run.path), "could not be read after measuring", "", "See the first error.")
        self._was_launched = True
        with self._writing():
            if self.resumed is not None:
                self.resumed.set_aside()
            self._launch(self.plan_to_measure, listener)
        self._evidence = read_evidence(self.run, self.writing_problem or DIED)

    def judge(self, case: Case, listener: Listener) -> Verdict:
        """The verdict on one requirement, measured first if it has not been."""
        if case.id not in self.verdicts:
            self.verdicts[case.id] = self._verdict(case, listener)
        return self.verdicts[case.id]

    def samples(self, metric: str, workload: str, world_size: int, listener: Listener) -> list[float]:
        """Per-round values of a metric, in its unit, whether any requirement asks for it or not.

        Raises:
            OptionError: no such metric or workload, or more ranks than there are devices.
        """
        question = self._question(metric, workload, world_size)
        evidence = self._evidence_for(question, listener)
        return [sample.value for sample in samples_of(question, evidence)]

    def conclude(self, *, interrupted: bool, spoiled: Sequence[str]) -> Judgement:
        """All verdicts and what they come to.

        Args:
            interrupted: the session was cut short.
            spoiled: names of items that were skipped, or failed for something else than their verdict.
        """
        for case in self.selected:
            if case.id not in self.verdicts:
                self.verdicts[case.id] = self._late_verdict(case, interrupted)
        verdicts = tuple(self.verdicts[case.id] for case in self.cases if case.id in self.verdicts)
        outcome, reason = conclude(verdicts, len(self.cases), interrupted)
        caveats = Caveats(
            spoiled=spoiled,
            present=self._devices_present(),
            covered=self._devices_covered(),
            not_one_machine=why_not_one_machine(self._source.read_records()),
            is_simulated=self._is_simulated,
        )
        outcome, reason = qualified(outcome, reason, caveats)
        return Judgement(self.sku, outcome, reason, verdicts, self._notes(), self._basis())

    @property
    def _is_simulated(self) -> bool:
        if self.judged_run is None:
            return False
        devices = {one.device for one in self._evidence.measurements} if self._evidence else set()
        return is_simulated(self.judged_run.read_run(), devices)

    @property
    def _source(self) -> RunDirectory:
        """The run that was measured."""
        source = self.judged_run or self.run
        assert source is not None
        return source

    def _devices_present(self) -> int:
        """GPUs of the machine that was measured, whether an arm used them or not; 0 if unknown, or on a CPU."""
        present = self.judged_run.read_run().get("devices_present") if self.judged_run else self.devices
        return present if isinstance(present, int) and self.device_type != "cpu" else 0

    def _devices_covered(self) -> int:
        """GPUs that took part in what was judged; on several nodes, in a published bound that was kept."""
        if self.plan is None or self.plan.nodes == 1:
            return self.plan.world_size if self.plan else 0
        kept = [case for case in self.selected if may_accept(self.verdicts[case.id])]
        return devices_covered(self.plan, [case.question for case in kept])

    def _basis(self) -> dict[str, str]:
        """By which thresholds, on which measurements and when this was judged."""
        source = self._source
        return {
            "judged_at": now_iso(),
            "thresholds_path": str(self.thresholds.path),
            "thresholds_sha256": self.thresholds.sha256,
            "measurements_path": str(source.measurements_jsonl),
            "measurements_sha256": source.measurements_sha256(),
        }

    def close_run(self, status: str) -> None:
        """Record how the session ended; an earlier run that was judged keeps its record."""
        if self.run is not None and self.judged_run is None:
            finish_run(self.run, status)

    def release_run(self) -> None:
        """Let other processes write the run directory: the last thing a session does with it."""
        if self._lock is not None:
            self._lock.release()

    def _notes(self) -> tuple[str, ...]:
        record = self._source.read_run()
        own = tuple(resumption_notes(record)) + ((self._lock.note,) if self._lock and self._lock.note else ())
        if self.judged_run is None:
            return own
        notes = record.get("notes")
        kept = (*map(str, notes), *own) if isinstance(notes, list) else own
        if self._is_simulated and SIMULATED_NOTE not in kept:
            kept = (SIMULATED_NOTE, *kept)
        return (f"judged from {self.judged_run.path}, nothing was measured", *kept)

    def _measurable(self, cases: Sequence[Case]) -> list[Case]:
        return [case for case in cases if self._why_not_measurable(case) is None]

    def _why_not_measurable(self, case: Case) -> str | None:
        """What this machine lacks for a requirement, or nothing."""
        requirement = case.requirement
        if self.devices is not None and requirement.world_size > self.devices:
            return f"needs {requirement.world_size} {self._devices_word()}"
        if requirement.placement == "spread" and self.cluster.nodes == 1 and not self.site.collect_only:
            return "needs several nodes to spread ranks over; there is 1"
        return None

    def _plan_for(self, questions: Sequence[Question]) -> Plan:
        nodes = self.cluster.nodes if self.devices is not None else 1
        per_node = None if self.devices is None else self.devices // nodes
        return build_plan(self.sku, self.device_type, questions, self._pace(), nodes=nodes, ranks_per_node=per_node)

    def _pace(self) -> Pace:
        settings, default = self.site.settings, PACES[self.device_type]
        return replace(default, rounds=settings.rounds or default.rounds, block_s=settings.block_s or default.block_s)

    def _verdict(self, case: Case, listener: Listener) -> Verdict:
        why_not = self._why_not_measurable(case) if self.judged_run is None else None
        if why_not is not None:
            return self._judged_without_data(case, why_not)
        return judge(case, self._evidence_for(case.question, listener), self.site.settings.confidence)

    def _late_verdict(self, case: Case, interrupted: bool) -> Verdict:
        """Of a case whose test never asked: from what is there, without measuring."""
        if self._evidence is not None:
            return judge(case, self._evidence, self.site.settings.confidence)
        if self.run is not None and self.plan is not None and self.run.measurements_jsonl.exists():
            return judge(case, read_evidence(self.run), self.site.settings.confidence)
        return self._judged_without_data(case, "the session was interrupted" if interrupted else "its test did not ask")

    def _judged_without_data(self, case: Case, reason: str) -> Verdict:
        nothing = Evidence(Plan(self.sku, self.device_type, ()), (), {})
        return replace(judge(case, nothing, self.site.settings.confidence), reason=reason)

    def _devices_word(self) -> str:
        what = "GPUs; {} can be used here" if self.device_type == "cuda" else "ranks; {} can be used here"
        return what.format(self.devices)

    def _question(self, metric: str, workload: str, world_size: int) -> Question:
        workloads = self.thresholds.thresholds.skus[self.sku].workloads
        if metric not in METRICS or METRICS[metric].takes_versus:
            askable = [name for name, definition in METRICS.items() if not definition.takes_versus]
            raise OptionError("run.samples", f"found metric {metric!r}", f"one of {', '.join(askable)}")
        if workload not in workloads:
            raise OptionError("run.samples", f"found workload {workload!r}", f"one of {', '.join(workloads)}")
        if self.devices is not None and world_size > self.devices:
            raise OptionError("run.samples", f"found world size {world_size}", f"at most {self.devices}")
        return Question(METRICS[metric], workloads[workload], world_size)

    def _evidence_for(self, question: Question, listener: Listener) -> Evidence:
        """Evidence that covers a question, by a further launch if the plan did not foresee it."""
        if self._evidence is None:
            self.measure(listener)
        assert self._evidence is not None
        may_measure = self.judged_run is None and not self.writing_problem
        if may_measure and not covers(self._evidence.plan, question):
            self._measure_outside_the_plan(question, listener)
        return self._evidence

    def _measure_outside_the_plan(self, question: Question, listener: Listener) -> None:
        assert self._evidence is not None
        assert self.run is not None
        self._extra_launches += 1
        extra = self._plan_for([question])
        named = tuple(
            replace(s, workload=replace(s.workload, name=f"{s.workload.name}-extra{self._extra_launches}"))
            for s in extra.studies
        )
        # A second search would number its rounds as the first one did.
        extra = replace(extra, studies=named, pairs=None if self._evidence.pairs else extra.pairs)
        with self._writing():
            self.run.write_json(self.run.plan_json, self._evidence.plan.joined(extra).as_json())
            self._launch(extra, listener)
        self._evidence = read_evidence(self.run, self.writing_problem or DIED)

    def _launch(self, plan: Plan, listener: Listener) -> None:
        assert self.run is not None
        settings = self.site.settings
        expected_s = estimate(plan, isolate=settings.isolate, img_per_s=self.expected_img_per_s).most_seconds
        limits = Limits(
            budget_s=settings.budget_s,
            inactivity_s=settings.inactivity_limit_s,
            startup_s=settings.inactivity_limit_s,
            # Several times what it takes if the machine is as expected: a slow one is to be measured, not cut off.
            total_s=settings.total_limit_s or 5 * expected_s + settings.inactivity_limit_s,
            queue_s=settings.queue_limit_s,
        )
        judge = Decider(plan, self.selected, settings.confidence)
        place = self._place(self.run.path)
        Supervisor(place, self.run, limits, listener, isolate=settings.isolate, judge=judge).measure(plan)

    def _place(self, run_path: Path) -> Place:
        return place_of(self.cluster, self.site.settings, self.device_type, run_path, os.environ)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A disk that is full while measuring ends the measuring, not the session: what was measured is judged."""
        assert self.run is not None
        try:
            yield
        except WritingError as error:
            self.writing_problem = str(error)
        except OSError as error:
            self.writing_problem = str(self.run.unwritten(self.run.path, error))


def open_session(site: Site) -> AcceptanceSession:
    """Load thresholds and find out which SKU this is.

    Raises:
        BadInput: thresholds, SKU, options or the run to be judged or resumed are not usable.
    """
    settings = site.settings
    thresholds = load_thresholds(_thresholds_path(site))
    judged = RunDirectory.open(settings.judge) if settings.judge else None
    begun = RunDirectory.open(settings.resume) if settings.resume else None
    resumed = read_resumption(begun) if begun and not begun.is_only_begun else None
    if begun is not None and resumed is None:  # killed before it had a plan: measured as a new run, in its place
        settings = replace(settings, resume=None, run_dir=begun.path)
        site = replace(site, settings=settings)
    earlier = judged or begun
    sku = measured_sku(thresholds, settings, earlier) if earlier else settings.gpu_sku
    if judged is not None:
        return AcceptanceSession(site, thresholds, sku, cases_for(thresholds, sku), None, judged, resumed)
    cluster = find_cluster(settings, os.environ, plans_only=site.collect_only)
    no_devices_here = site.collect_only or cluster.is_elsewhere
    if sku == AUTO and cluster.is_elsewhere and not site.collect_only:
        raise SkuError(
            "--gpu-sku=auto", "the GPUs are on other machines", "their model", "Write --gpu-sku=b200, or as it is."
        )
    gpus = [] if needs_no_gpu(thresholds, sku, no_devices_here) else gpus_here(sku)
    sku = resolve_sku(thresholds, sku, gpus, require_devices=not no_devices_here)
    kind = device_type(thresholds.thresholds.skus[sku])
    per_node = devices_per_node(settings, kind, len(gpus), collect_only=site.collect_only, cluster=cluster)
    devices = None if per_node is None else per_node * cluster.nodes
    return AcceptanceSession(
        site, thresholds, sku, cases_for(thresholds, sku), devices, judged, resumed, cluster=cluster
    )


def _thresholds_path(site: Site) -> Path:
    if site.settings.thresholds is not None:
        return site.settings.thresholds
    here = [folder / DEFAULT_NAME for folder in (site.invocation_dir, site.rootdir)]
    return next((path for path in here if path.is_file()), None) or packaged(DEFAULT_NAME)
