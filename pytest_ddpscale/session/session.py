"""One acceptance session in the pytest process: what is asked, measured and concluded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_ddpscale.blame.slow_links import slow_links
from pytest_ddpscale.errors import HistoryError, RunDirectoryError, WritingError
from pytest_ddpscale.evidence.evidence import DIED, Evidence, read_evidence
from pytest_ddpscale.history.judging import judge_regression
from pytest_ddpscale.launch.gang_setup import GangSetup
from pytest_ddpscale.launch.supervisor import Listener, NotAdmitted, Supervisor
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import DeviceType, Plan
from pytest_ddpscale.results.coverage import Coverage
from pytest_ddpscale.results.gangs import why_not_one_machine
from pytest_ddpscale.results.records import StudyEnd
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_lock import RunLock
from pytest_ddpscale.results.run_opening import judging_directory, new_run_directory, reopened
from pytest_ddpscale.results.run_record import (
    SIMULATED_NOTE,
    binding_notes,
    finish_run,
    is_simulated,
    left_out_nodes,
    left_out_notes,
    note_left_out,
    now_iso,
    resumption_notes,
    start_run,
)
from pytest_ddpscale.results.verdicts import Judgement, Verdict
from pytest_ddpscale.session.admission import Admission
from pytest_ddpscale.session.cluster import THIS_MACHINE, Cluster, place_of, refuse_wrong_arguments
from pytest_ddpscale.session.interim import Interim
from pytest_ddpscale.session.past_runs import baseline_of, history_file_of, keep_baseline, refuse_broken_baseline
from pytest_ddpscale.session.planning import Planning, limits_of
from pytest_ddpscale.session.resume import Resumption, extra_launches, read_resumption, refuse_other_devices
from pytest_ddpscale.settings import LEAVE_OUT, Settings
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase, cases_for, device_type, training_cases
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.verdict.answering_study import covers
from pytest_ddpscale.verdict.bounds import blank_verdict
from pytest_ddpscale.verdict.covering import coverage_of
from pytest_ddpscale.verdict.deciding import Decider
from pytest_ddpscale.verdict.device_notes import device_notes
from pytest_ddpscale.verdict.judge import judge, samples_of
from pytest_ddpscale.verdict.outcome import ONE_NODE, Caveats, conclude, lacks_only_measurements, qualified


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
        gpus_asked: that each node should have, if that is more than this one has.
        silent: what is known of GPUs that are missing here, or do not answer.
        writing_problem: why not all that was measured could be written; empty if it was.
        interruption: when and why somebody ended the session while it measured; empty if nobody did.
    """

    site: Site
    thresholds: ThresholdsFile
    sku: str
    cases: list[AnyCase]
    devices: int | None
    judged_run: RunDirectory | None
    resumed: Resumption | None = None
    cluster: Cluster = THIS_MACHINE
    gpus_asked: int | None = None
    silent: tuple[str, ...] = ()
    writing_problem: str = ""
    interruption: str = ""
    selected: list[AnyCase] = field(default_factory=list)
    plan: Plan | None = None
    run: RunDirectory | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    _evidence: Evidence | None = None
    _extra_launches: int = 0
    _was_launched: bool = False
    _was_refused: bool = False  # its nodes are unfit: nothing is to run on them
    _lock: RunLock | None = None

    @property
    def device_type(self) -> DeviceType:
        """``cpu`` or ``cuda``."""
        return device_type(self.thresholds.thresholds.skus[self.sku])

    @property
    def _planning(self) -> Planning:
        site = self.site
        return Planning(
            self.sku, self.device_type, site.settings, self.cluster, self.devices, self.gpus_asked, site.collect_only
        )

    @property
    def plan_to_measure(self) -> Plan:
        """The plan, or what an earlier run lacks of it."""
        assert self.plan is not None  # select comes first
        return self.resumed.missing_plan if self.resumed is not None else self.plan

    @property
    def expected_img_per_s(self) -> dict[str, float]:
        """Throughput of one GPU that the thresholds expect, by workload; for estimates of time only."""
        throughput = [c.requirement for c in training_cases(self.cases) if c.requirement.metric == "throughput_per_gpu"]
        return {r.workload: r.source.measured or r.bound for r in throughput if r.world_size == 1}

    def select(self, cases: Sequence[AnyCase]) -> None:
        """Settle what is asked, and plan exactly that.

        Raises:
            RunDirectoryError: the run that is to be judged or resumed is broken.
            OptionError: the run that is to be resumed was begun on other devices.
        """
        self.selected = list(cases)
        if self.judged_run is not None:
            self.plan = self.judged_run.read_plan()
            self._evidence = read_evidence(self.judged_run)  # refuses a broken run before any item runs
            refuse_broken_baseline(self.judged_run)
            return
        fresh = self._planning.plan_for(self._planning.measurable(cases))
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
            self.run, self._lock = judging_directory(self.judged_run, self.site.settings.run_dir)
            return
        # What cannot be started leaves no run behind.
        refuse_wrong_arguments(self._place(self.site.settings.run_dir or Path()), self.cluster.nodes)
        if self.resumed is not None:
            self._reopen_run(self.resumed.run.path)
            return
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
        refuse_broken_baseline(run)
        self.resumed = read_resumption(run)
        self.plan, self._extra_launches = self.resumed.plan, extra_launches(self.resumed.plan)
        self.resumed.begin(self.site.argv, self.thresholds.sha256)
        self.run, self._evidence = run, None if self.resumed.missing else evidence

    @property
    def evidence(self) -> Evidence | None:
        """What was measured, once it has been read."""
        return self._evidence

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

    def judge(self, case: AnyCase, listener: Listener) -> Verdict:
        """The verdict on one requirement, measured first if it has not been."""
        if case.id not in self.verdicts:
            self.verdicts[case.id] = self._verdict(case, listener)
        return self.verdicts[case.id]

    def samples(self, metric: str, workload: str, world_size: int, listener: Listener) -> list[float]:
        """Per-round values of a metric, in its unit, whether any requirement asks for it or not.

        Raises:
            OptionError: no such metric or workload, or more ranks than there are devices.
        """
        workloads = self.thresholds.thresholds.skus[self.sku].workloads
        question = self._planning.question(metric, workloads, workload, world_size)
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
        evidence = self._measured_so_far()
        coverage, slow = self._coverage(evidence), slow_links(evidence)
        not_one_machine = why_not_one_machine(self._source.read_records())
        caveats = Caveats(
            spoiled=spoiled,
            coverage=coverage,
            not_one_machine=not_one_machine,
            is_simulated=self._is_simulated,
            silent=self.silent,
            slow_links=tuple(slow),
        )
        # Hosts that took turns over the studies are several machines, between which nothing was to be measured.
        known = (verdicts, len(self.cases), interrupted, ONE_NODE if not_one_machine else coverage)
        outcome, reason = qualified(*conclude(*known), caveats)
        if interrupted and outcome == "incomplete" and self.interruption:
            reason = f"{self.interruption}; {reason}"
        accused = {host for v in verdicts for c in v.culprits for host in (c.host, c.peer_host)}
        of_links = [f"communication is slow at {words}" for words, hosts in slow.items() if not hosts <= accused]
        notes = (*self._notes(), *of_links)
        may_lack = lacks_only_measurements(*known, caveats)
        return Judgement(self.sku, outcome, reason, verdicts, notes, self._basis(), coverage, may_lack)

    def so_far(self, why: str, reason: str) -> Judgement:
        """What the run comes to if it goes no further, for that reason; `why` a study has no end yet."""
        evidence = read_evidence(self._source, why, goes_on=True)
        verdicts = tuple(self._verdict_so_far(case, evidence, why) for case in self.selected)
        return Judgement(self.sku, "incomplete", reason, verdicts, self._notes(), self._basis())

    def _verdict_so_far(self, case: AnyCase, evidence: Evidence, why: str) -> Verdict:
        with_earlier_runs = isinstance(case, NodeCase) and case.requirement.definition.subject == "node"
        why_not = self._planning.why_not(case) or (why if with_earlier_runs else None)
        return self._judged_without_data(case, why_not) if why_not else self._judged(case, evidence)

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

    @property
    def _has_records(self) -> bool:
        return self.run is not None and self.plan is not None and self.run.measurements_jsonl.exists()

    def _measured_so_far(self) -> Evidence:
        """What was measured; nothing, if measuring did not begin."""
        if self._evidence is not None:
            return self._evidence
        if self.run is not None and self._has_records:
            return read_evidence(self.run)
        return Evidence(self.plan or Plan(self.sku, self.device_type, ()), (), {})

    def _coverage(self, evidence: Evidence) -> Coverage:
        """What was tested of the machine that was measured."""
        record = self._source.read_run()
        present = record.get("devices_present") if self.judged_run else self.devices
        per_node = present // evidence.plan.nodes if isinstance(present, int) and self.device_type != "cpu" else 0
        return coverage_of(evidence, self.selected, self.verdicts, left_out_nodes(record), per_node)

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
        conspicuous = tuple(device_notes(self._evidence)) if self._evidence else ()
        own = (
            conspicuous
            + tuple(left_out_notes(record) + binding_notes(self._source.read_records()))
            + tuple(resumption_notes(record))
            + ((self._lock.note,) if self._lock and self._lock.note else ())
        )
        if self.judged_run is None:
            return own
        notes = record.get("notes")
        kept = (*map(str, notes), *own) if isinstance(notes, list) else own
        if self._is_simulated and SIMULATED_NOTE not in kept:
            kept = (SIMULATED_NOTE, *kept)
        return (f"judged from {self.judged_run.path}, nothing was measured", *kept)

    def _verdict(self, case: AnyCase, listener: Listener) -> Verdict:
        if self.needs_measuring() and self._why_not(case) is None:
            self.measure(listener)
            case = next((one for one in self.selected if one.id == case.id), case)  # it may be asked of fewer nodes now
        why_not = self._why_not(case)
        if why_not is not None:
            return self._judged_without_data(case, why_not)
        question = case.question if isinstance(case, Case) else None
        return self._judged(case, self._evidence_for(question, listener))

    def _why_not(self, case: AnyCase) -> str | None:
        return self._planning.why_not(case) if self.judged_run is None else case.missing or None

    def _judged(self, case: AnyCase, evidence: Evidence) -> Verdict:
        confidence = self.site.settings.confidence
        if not isinstance(case, NodeCase) or case.requirement.definition.subject != "node":
            return judge(case, evidence, confidence)
        try:
            baseline = baseline_of(self._source, self.history_file, self.sku, evidence)
        except HistoryError as error:
            return replace(blank_verdict(case, confidence), outcome="inconclusive", reason=str(error))
        if baseline is not None and self.run is not None and not self.writing_problem:
            with self._writing():
                keep_baseline(self.run, baseline)
        return judge_regression(case, evidence, baseline, confidence)

    @property
    def history_file(self) -> Path | None:
        """The site's history; None if this session keeps none."""
        return history_file_of(self.site.settings.history, self.run) if self.run is not None else None

    def _late_verdict(self, case: AnyCase, interrupted: bool) -> Verdict:
        """Of a case whose test never asked: from what is there, without measuring."""
        if self._evidence is not None or self._has_records:
            return self._judged(case, self._measured_so_far())
        return self._judged_without_data(case, "the session was interrupted" if interrupted else "its test did not ask")

    def _judged_without_data(self, case: AnyCase, reason: str) -> Verdict:
        nothing = Evidence(Plan(self.sku, self.device_type, ()), (), {})
        return replace(judge(case, nothing, self.site.settings.confidence), reason=reason)

    def _evidence_for(self, question: Question | None, listener: Listener) -> Evidence:
        """Evidence that covers a question, by a further launch if the plan did not foresee it; None asks for none."""
        if self._evidence is None:
            self.measure(listener)
        assert self._evidence is not None
        may_measure = self.judged_run is None and not self.writing_problem and not self._was_refused
        if may_measure and question is not None and not covers(self._evidence.plan, question):
            self._measure_outside_the_plan(question, listener)
        return self._evidence

    def _measure_outside_the_plan(self, question: Question, listener: Listener) -> None:
        assert self._evidence is not None
        assert self.run is not None
        self._extra_launches += 1
        extra = self._planning.plan_of(question)
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
        limits = limits_of(plan, settings, self.expected_img_per_s)
        judge = Decider(plan, self.selected, settings.confidence)
        admission = Admission(self.selected, plan, settings.unfit, listener)
        run, isolate, heard = self.run, settings.isolate, Interim(self, listener)
        supervisor = Supervisor(
            self._place(run.path), run, limits, heard, isolate=isolate, judge=judge, admit=admission
        )
        try:
            supervisor.measure(plan)
        except NotAdmitted:
            self._without_unfit_nodes(plan, admission, listener)

    def _without_unfit_nodes(self, plan: Plan, admission: Admission, listener: Listener) -> None:
        """Measure on the other nodes, if that was asked and is possible; else nothing."""
        assert self.run is not None
        others = self.cluster.without(admission.unfit)
        may_choose = self.site.settings.unfit == LEAVE_OUT and plan is self.plan and self.resumed is None
        if others is None or not may_choose or self.devices is None:
            self._was_refused = True
            why = f"nothing was measured: {admission.in_words}"
            self.run.append_records([StudyEnd(study, "error", why).as_json() for study in plan.study_ids])
            return
        self.devices = self.devices // self.cluster.nodes * others.nodes
        self.cluster = others
        note_left_out(self.run, self.devices, admission.unfit)
        self._ask_anew(Layout(others.nodes, self.devices // others.nodes))
        self.plan = self._planning.plan_for(self._planning.measurable(self.selected))
        self.run.write_json(self.run.plan_json, self.plan.as_json())
        # What the nodes are is known.
        self._launch(replace(self.plan, survey=False), listener)

    def _ask_anew(self, layout: Layout) -> None:
        """Of fewer nodes: `all` is fewer ranks. What is about more nodes than are left stays, and is not measured."""
        now = {case.id: case for case in cases_for(self.thresholds, self.sku, layout)}
        self.cases = [now.get(case.id, case) for case in self.cases]
        self.selected = [now.get(case.id, case) for case in self.selected]

    def _place(self, run_path: Path) -> GangSetup:
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
