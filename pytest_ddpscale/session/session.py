"""One acceptance session in the pytest process: its verdicts, their conclusion, and what the site's history knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from pytest_ddpscale.errors import BadInput, HistoryError, OptionError
from pytest_ddpscale.history.regression import Baseline, judge_regression, may_be_widened, with_launch_deviation
from pytest_ddpscale.history.same_nodes import baseline_of, recent_runs
from pytest_ddpscale.history.store import DEFAULT_HISTORY, history_sku, record_run
from pytest_ddpscale.judge.answer import blank_verdict
from pytest_ddpscale.judge.coverage import coverage_of, notes_on_variables
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.links import slow_links, unasked_wrong_data
from pytest_ddpscale.judge.outcome import RunFacts, conclude, rests_on_published, uniform_loss, with_waiver
from pytest_ddpscale.judge.sustained import sustained_notes
from pytest_ddpscale.judge.values import matching_study, samples_of
from pytest_ddpscale.report.files import live_page, write_live_page, write_reports
from pytest_ddpscale.report.where_time_goes import problem_lines
from pytest_ddpscale.report.while_measuring import REFRESH_S, Progress
from pytest_ddpscale.report.words.reasons import say, worded
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.reason import Why, because
from pytest_ddpscale.run.record_lines import AnyRecord, Interrupted, Notice
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_json import JUDGED_NOTE, now_iso
from pytest_ddpscale.run.run_record import ends_of, lost_hosts, why_not_one_machine
from pytest_ddpscale.run.verdicts import ACCEPTING, Blocker, Judgement, RunOutcome, Verdict
from pytest_ddpscale.session.evidence import EvidenceSource
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase, json_of, training_cases
from pytest_ddpscale.thresholds.changes import own_bounds
from pytest_ddpscale.thresholds.waiver import today

# Largest shares of the time: of interim judging, which takes seconds on many nodes, and of putting progress in.
_LARGEST_SHARE = 0.05
LARGEST_SHARE_OF_PROGRESS = 0.005


def other_blockers(run: RunFacts) -> tuple[Blocker, ...]:
    """Reasons other than requirements why a machine is not accepted: `Judgement.other_blockers`.

    A reason on the run as a whole is returned only if there is no other. With `RunFacts.allows_unmeasured`,
    requirements that were not measured count as not required.
    """
    if run.spoiled or any(v.blocks(allows_unmeasured=run.allows_unmeasured) for v in run.verdicts):
        return tuple(run.spoiled)
    if run.allows_unmeasured:
        measured = [v for v in run.verdicts if v.outcome != "not_measured"]
        run = run._replace(verdicts=measured, required=run.required - len(run.verdicts) + len(measured))
    outcome, reason, cause = conclude(run)
    return () if outcome in (*ACCEPTING, "partial") else (Blocker("run", "acceptance", say(reason), cause),)


class LiveReport:
    """Shows a session's run as it is measured: lines, the page, and reports after each study and on interruption.

    The page exists from `begin` on. Progress is put into it also while blocks are timed, by this process, which trains
    nothing: every `REFRESH_S` seconds, or less often where that would take more than its share of a core.

    Attributes:
        show: called with a progress line and whether the next one may overwrite it.
        interruption: when and why measuring was interrupted; empty if it was not.
    """

    def __init__(self, session: AcceptanceSession, now: Callable[[], float] = time.monotonic) -> None:
        self._session, self._source, self._now = session, session.source, now
        self.show: Callable[[str, bool], None] = lambda line, passing: None
        self.interruption = self._page = ""
        self._progress: Progress | None = None
        self._next_progress_s = self._next_judging_s = 0.0

    def begin(self) -> None:
        """Write the page of the plan, before anything is started."""
        source, plan = self._source, self._source.plan_to_measure
        if plan:
            self._progress = Progress(
                plan, lambda *said: self.show(*said), self._now, source.expected_samples_per_s,
                budget_s=source.subject.settings.budget_s,
            )  # fmt: skip
            nothing, why = source.nothing, "no requirement has been judged yet"
            with suppress(BadInput, OSError):  # read and write errors are reported at the end of the run
                self._put_page(self._session.so_far(nothing, why, why), nothing)

    def hear(self, record: AnyRecord | Notice) -> None:
        """Process one record or notice."""
        if self._progress:
            self._progress(record)
        if isinstance(record, Interrupted):
            self._page = ""  # which may not replace the final one
            self.interruption = f"interrupted at {now_iso()}: {say(record.message)}"
            self._judge(self.interruption, is_last=True)
        elif self._now() >= self._next_progress_s:
            with suppress(OSError):
                self._put_progress()
        began_s = self._now()
        if isinstance(record, StudyEnd) and record.reason != "interrupted" and began_s >= self._next_judging_s:
            self._judge(f"measuring was still running when this was written at {now_iso()}")
            self._next_judging_s = began_s + (self._now() - began_s) / _LARGEST_SHARE

    def _judge(self, why: str, *, is_last: bool = False) -> None:
        """Judge what was measured and write its reports."""
        run = self._source.measured_run
        with suppress(BadInput, OSError):  # as above
            evidence = read_evidence(run, why, goes_on=True)
            studies = evidence.plan.study_ids
            ended = ends_of(run.read_records()).keys() & set(studies)
            done = f"{len(ended)} of {len(studies)} studies had ended; --ddp-resume={run.path} measures the others"
            judgement = self._session.so_far(evidence, why, f"{why}; {done}")
            write_reports(run, judgement, run.read_run(), evidence, is_final=is_last)
            if not is_last:
                self._put_page(judgement, evidence)

    def _put_page(self, judgement: Judgement, evidence: Evidence) -> None:
        """Write the page of the latest judgement. Raises BadInput, OSError."""
        self._page = live_page(judgement, self._source.measured_run.read_run(), evidence)
        self._put_progress()

    def _put_progress(self) -> None:
        if self._page and self._progress:
            began_s = self._now()
            self._next_progress_s = began_s + REFRESH_S  # also if the disk is full
            write_live_page(self._source.measured_run, self._page, self._progress.section(now_iso()))
            self._next_progress_s = began_s + max(REFRESH_S, (self._now() - began_s) / LARGEST_SHARE_OF_PROGRESS)


class AcceptanceSession:
    """One session: verdicts by requirement id, on evidence from a source.

    `interim` writes reports while measuring; `history_file` is the site's, wherever the run is kept.
    """

    def __init__(self, source: EvidenceSource) -> None:
        self.source = source
        self.subject, self.sku = source.subject, source.subject.sku
        self.history_file = source.subject.settings.history or DEFAULT_HISTORY
        self.verdicts: dict[str, Verdict] = {}
        self.interim = LiveReport(self)

    def judge(self, case: AnyCase) -> Verdict:
        """The verdict on one requirement, measured first if necessary."""
        source = self.source

        def now() -> AnyCase:
            """For fewer nodes, once some were left out."""
            return next((selected for selected in source.selected if selected.id == case.id), case)

        if case.id not in self.verdicts:
            evidence = source.nothing
            if not source.why_not(now()):
                evidence = source.measure(self.interim.hear)
            self.verdicts[case.id] = self._judged(now(), evidence, source.why_not(now()))
        return self.verdicts[case.id]

    def samples(self, metric: str, workload: str, world_size: int) -> list[float]:
        """Per-round values of a metric, in its unit.

        Raises:
            OptionError: no requirement has that metric, workload and world size, or the plan does not measure it.
        """
        for case in training_cases(self.source.cases):
            row, question = case.requirement, case.question
            of = row.metric, row.workload, case.world_size
            if of != (metric, workload, world_size) or row.definition.takes_versus or row.definition.takes_peak:
                continue
            evidence = self.source.measure(self.interim.hear)
            study = matching_study(evidence.plan, question)
            if study and set(question.arms) <= set(study.arms):
                return list(map(float, samples_of(question, evidence)))
        raise OptionError(
            "run.samples", f"found {metric} of {workload} at world size {world_size}, which is not measured",
            "what a selected requirement needs",
            "Add a requirement on it to the thresholds, perhaps with `severity: warn`.",
        )  # fmt: skip

    def conclude(self, *, interrupted: bool, spoiled: Sequence[Blocker], stopped: str = "") -> Judgement:
        """All verdicts and their conclusion.

        Args:
            interrupted: the session ended before every selected item was judged.
            spoiled: items that were skipped, or failed without a verdict.
            stopped: why pytest ran no further items, in its words; empty if it ran all.
        """
        source, subject, settings = self.source, self.subject, self.subject.settings
        evidence, run = source.measured_so_far(), source.measured_run
        record = run.read_run()
        not_asked = "the session was interrupted" if interrupted else "its test did not ask for a verdict"
        if stopped:
            not_asked = f"pytest ended before its test: {stopped}"
        for case in source.selected:  # judge requirements whose tests did not ask, too, without measuring
            if case.id not in self.verdicts:
                self.verdicts[case.id] = self._judged(case, evidence, "" if source.evidence else not_asked)
        judged = {case.id: case for case in source.cases if case.id in self.verdicts}
        verdicts = tuple(map(self.verdicts.__getitem__, judged))
        is_simulated = record.is_simulated(evidence.columns.devices)
        slow = {
            say(because("slow-between", culprit.hosts, culprit.because)): set(culprit.hosts)
            for culprit in slow_links(evidence)
        }
        probes_asked = {case.probe.name for case in source.selected if isinstance(case, NodeCase) and case.probe}
        variables = [*notes_on_variables(evidence, source.cases)]
        per_node = (record.devices_present or 0) // evidence.plan.nodes if subject.device_type == "cuda" else 0
        coverage = coverage_of(evidence, source.selected, self.verdicts, record.left_out, per_node)
        facts = RunFacts(
            verdicts, len(source.cases), interrupted=interrupted, spoiled=spoiled,
            is_simulated=is_simulated,
            coverage=replace(coverage, why_paths_are_missing=say(coverage.why_paths_are_missing)),
            not_one_machine=why_not_one_machine(run.read_records()), lost=lost_hosts(run.read_records()),
            silent=source.machine.silent,
            slow_links=tuple(slow), variables=variables, allows_unmeasured=settings.allow_incomplete,
            wrong_data=[say(why) for why in unasked_wrong_data(evidence, probes_asked)],
            calibrate=subject.calibrate_command(run.path, is_simulated=is_simulated),
        )  # fmt: skip
        rehearsed, as_if = "", facts._replace(is_simulated=is_simulated and not settings.rehearse)
        outcome, why, cause = conclude(as_if)
        is_open = any(verdict.blocks(allows_unmeasured=settings.allow_incomplete) for verdict in verdicts)
        if as_if != facts and not (is_open or other_blockers(as_if)):
            rehearsed, as_if = f"would be {outcome.replace('_', ' ')}, {say(why)}", facts
            outcome, why, cause = conclude(facts)
        reason = say(why)
        if interrupted and outcome == "incomplete" and self.interim.interruption:
            reason = f"{self.interim.interruption}; {reason}"
        accused = {host for v in verdicts for c in v.culprits for host in c.hosts}
        remarks = (
            *(f"{reason}, on which no requirement is judged" for reason in facts.wrong_data[cause == "wrong-data" :]),
            *variables, *sustained_notes(evidence), *source.notes(verdicts),
            *(f"communication is slow at {words}" for words, hosts in slow.items() if not hosts <= accused),
            *(f"--ddp-profile: {line}" for line in problem_lines(evidence.profiles)),
            recent_runs(run, self.history_file, history_sku(self.sku, is_simulated=is_simulated), evidence),
        )  # fmt: skip
        altered = subject.altered
        if outcome in ACCEPTING:  # on the site's own bounds, by a whole file of its own, by another file than measured
            used, began_with = subject.thresholds, record.thresholds
            own = own_bounds(used, self.sku)
            others = [
                replace(verdict, provisional=True) if judged[verdict.id].requirement.key() in own else verdict
                for verdict in verdicts
            ]
            further = {
                "the bounds that it is accepted by": not rests_on_published(others, facts.coverage),
                "the whole thresholds file": not used.rests_on_packaged,
                "the thresholds since it was measured": began_with is not None and began_with.digests != used.digests,
            }
            altered += tuple(note for note, holds in further.items() if holds)
        loss = uniform_loss(verdicts, settings.confidence, lambda name, at: judge(judged[name], evidence, at))
        return self._judgement(
            outcome, reason, verdicts, remarks, judged.values(), altered=altered, uniform_loss=loss,
            coverage=facts.coverage, blockers=other_blockers(as_if), allows_unmeasured=settings.allow_incomplete,
            simulated=is_simulated, unfinished=record.is_unfinished, rehearsed=rehearsed,
        )  # fmt: skip

    def so_far(self, evidence: Evidence, why: str, reason: str) -> Judgement:
        """The judgement if the run ended now, with its reason; `why` says why a study has no end yet.

        It is without the history, whose baseline is fixed when the run is over.
        """
        source = self.source
        verdicts = tuple(
            self._judged(case, evidence, source.why_not(case) or why * _is_of_history(case), is_last=False)
            for case in source.selected
        )
        remarks = (*notes_on_variables(evidence, source.cases), *source.notes(verdicts))
        return self._judgement(
            "incomplete", reason, verdicts, remarks, source.selected, altered=self.subject.altered, unfinished=True
        )

    def _judgement(
        self, outcome: RunOutcome, reason: str, verdicts: tuple[Verdict, ...], remarks: Iterable[Why],
        judged: Iterable[AnyCase], **more: Any,
    ) -> Judgement:  # fmt: skip
        """A judgement, with what it is based on; of an earlier run also with this session's notes."""
        source, thresholds = self.source, self.subject.thresholds
        run, noted = source.measured_run, self.subject.settings.note if source.judges else ()
        reasons = tuple(because("text", remark) if isinstance(remark, str) else remark for remark in remarks if remark)
        basis = {
            "judged_at": now_iso(), "thresholds_path": str(thresholds.path), "thresholds_sha256": thresholds.sha256,
            "measurements_path": str(run.measurements_jsonl), **run.digests(),
            "verdicts_path": str((source.run or run).verdicts_json),
            **{JUDGED_NOTE + key: text for key, text in noted},
        }  # fmt: skip
        return Judgement(
            self.sku, outcome, reason, verdicts, tuple(map(say, reasons)), basis, remarks=reasons,
            extends=self.subject.used.extends, lowered=self.subject.lowered, requirements=json_of(judged),
            not_selected=len(source.cases) - len(verdicts), **more,
        )  # fmt: skip

    def _judged(self, case: AnyCase, evidence: Evidence, why_not: str, *, is_last: bool = True) -> Verdict:
        """The verdict on evidence; if `why_not` says why, it is not measured.

        The history's spread between launches widens the interval, if it is known and the verdict is the last one.
        """
        confidence = self.subject.settings.confidence
        blank = blank_verdict(case, confidence)
        if why_not:
            return replace(blank, reason=why_not)
        if _is_of_history(case):
            try:
                verdict = judge_regression(case, evidence, self._baseline, confidence)
            except HistoryError as error:
                verdict = replace(blank, outcome="inconclusive", reason=str(error))
        else:
            verdict = worded(judge(case, evidence, confidence))
            if is_last and isinstance(case, Case) and may_be_widened(verdict, case):
                try:
                    if baseline := self._baseline:
                        verdict = with_launch_deviation(verdict, case, evidence, baseline)
                except HistoryError as error:
                    unknown = f"spread between launches is unknown: {error}"
                    verdict = replace(verdict, notes=(*verdict.notes, unknown))
        return worded(with_waiver(verdict, case, evidence, today()))

    @cached_property
    def _baseline(self) -> Baseline | None:
        """The nodes' earlier results, saved once beside the verdicts that use them. Raises HistoryError."""
        source, run = self.source, self.source.run
        found = baseline_of(source.measured_run, self.history_file, self.sku, source.measured_so_far())
        if found is not None and run is not None and not (source.writing_problem or run.baseline_json.exists()):
            with source.writing():
                run.write_json(run.baseline_json, found)
        return found

    def remember(self, judgement: Judgement) -> str:
        """Add a new run to the site's history. Returns why that failed; empty if it did not.

        A failure does not affect the run, which can be added to the history later.
        """
        if not self.source.judges:
            try:
                record_run(self.history_file, self.source.measured_run, judgement, self.source.evidence)
            except BadInput as error:
                return f"the history was not updated: {error}"
        return ""


def _is_of_history(case: AnyCase) -> bool:
    """Whether a requirement compares with earlier runs."""
    return case.requirement.definition.subject == "node"
