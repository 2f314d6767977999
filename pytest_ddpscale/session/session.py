"""One acceptance session in the pytest process: its verdicts and their conclusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

from pytest_ddpscale.errors import HistoryError, OptionError
from pytest_ddpscale.history.regression import Baseline, judge_regression, may_be_widened, with_launch_deviation
from pytest_ddpscale.history.store import DEFAULT_HISTORY, history_sku
from pytest_ddpscale.judge.answer import blank_verdict
from pytest_ddpscale.judge.coverage import coverage_of, notes_on_variables
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.links import slow_links, unasked_wrong_data
from pytest_ddpscale.judge.outcome import (
    RunFacts,
    conclude,
    rests_on_published,
    uniform_loss,
    with_waiver,
)
from pytest_ddpscale.judge.sustained import sustained_notes
from pytest_ddpscale.judge.values import matching_study, samples_of
from pytest_ddpscale.report.where_time_goes import problem_lines
from pytest_ddpscale.report.words.reasons import say, worded
from pytest_ddpscale.run.coverage import Coverage
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.record_lines import Listener
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import now_iso
from pytest_ddpscale.run.run_record import lost_hosts, why_not_one_machine
from pytest_ddpscale.run.verdicts import ACCEPTING, Blocker, Judgement, RunOutcome, Verdict
from pytest_ddpscale.session.interim import Interim
from pytest_ddpscale.session.past_runs import baseline_of, recent_runs
from pytest_ddpscale.session.sources import EvidenceSource
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase, json_of, training_cases
from pytest_ddpscale.thresholds.waiver import today


def other_blockers(run: RunFacts) -> tuple[Blocker, ...]:
    """Reasons other than requirements why a machine is not accepted: `Judgement.other_blockers`.

    A reason on the run as a whole is returned only if there is no other. With `RunFacts.allows_unmeasured`,
    requirements that were not measured count as not required.
    """
    if run.spoiled or any(v.blocks(allows_unmeasured=run.allows_unmeasured) for v in run.verdicts):
        return tuple(run.spoiled)
    if run.allows_unmeasured:
        measured = [v for v in run.verdicts if v.outcome != "not_measured"]
        run = run._replace(verdicts=measured, required=run.required - (len(run.verdicts) - len(measured)))
    outcome, reason, cause = conclude(run)
    return () if outcome in (*ACCEPTING, "partial") else (Blocker("run", "acceptance", say(reason), cause),)


class AcceptanceSession:
    """One session: verdicts by requirement id, on evidence from a source.

    `interim` writes reports while measuring.
    """

    def __init__(self, source: EvidenceSource) -> None:
        self.source = source
        self.subject = source.subject
        self.verdicts: dict[str, Verdict] = {}
        self.interim = Interim(source, self.so_far)

    @property
    def sku(self) -> str:
        """Canonical SKU name."""
        return self.subject.sku

    @property
    def run(self) -> RunDirectory | None:
        """Directory for verdicts and reports; None before it is opened."""
        return self.source.run

    @property
    def history_file(self) -> Path:
        """The site's history, wherever the run is kept."""
        return self.subject.settings.history or DEFAULT_HISTORY

    def judge(self, case: AnyCase, listener: Listener) -> Verdict:
        """The verdict on one requirement, measured first if necessary."""
        if case.id not in self.verdicts:
            self.verdicts[case.id] = self._verdict(case, self.interim.listening(listener))
        return self.verdicts[case.id]

    def samples(self, metric: str, workload: str, world_size: int, listener: Listener) -> list[float]:
        """Per-round values of a metric, in its unit.

        Raises:
            OptionError: no requirement has that metric, workload and world size, or the plan does not measure it.
        """
        refusal = OptionError(
            "run.samples", f"found {metric} of {workload} at world size {world_size}, which the plan does not measure",
            "what a selected requirement needs",
            "Add a requirement on it to the thresholds file: with `severity: warn` it rejects nothing.",
        )  # fmt: skip
        required = [(case, case.requirement) for case in training_cases(self.source.cases)]
        named = [
            case
            for case, one in required
            if (one.metric, one.workload, case.world_size) == (metric, workload, world_size)
            if not (one.definition.takes_versus or one.definition.takes_peak)
        ]
        if not named:
            raise refusal
        question = named[0].question
        evidence = self.source.measured(self.interim.listening(listener))
        study = matching_study(evidence.plan, question)
        if study is None or not set(question.arms) <= set(study.arms):
            raise refusal
        return [float(value) for value in samples_of(question, evidence)]

    def conclude(self, *, interrupted: bool, spoiled: Sequence[Blocker], stopped: str = "") -> Judgement:
        """All verdicts and their conclusion.

        Args:
            interrupted: the session ended before every selected item was judged.
            spoiled: items that were skipped, or failed without a verdict.
            stopped: why pytest ran no further items, in its words; empty if it ran all.
        """
        source, measured = self.source, self.source.measured_so_far()
        evidence = measured or self.subject.evidence_of_nothing(source.plan)
        why_not_asked = "the session was interrupted" if interrupted else "its test did not ask for a verdict"
        why_not_asked = f"pytest ended before its test: {stopped}" if stopped else why_not_asked
        for case in source.selected:  # judge requirements whose tests did not ask, too, without measuring
            if case.id not in self.verdicts:
                late = self._judged(case, measured) if measured else self._judged_without_data(case, why_not_asked)
                self.verdicts[case.id] = late
        judged = [case for case in source.cases if case.id in self.verdicts]
        verdicts = tuple(self.verdicts[case.id] for case in judged)
        coverage, slow = (
            self._coverage(evidence),
            {say(because("slow-between", one.hosts, one.because)): set(one.hosts) for one in slow_links(evidence)},
        )
        probes_asked = {case.probe.name for case in source.selected if isinstance(case, NodeCase) and case.probe}
        variables = [*notes_on_variables(evidence, source.cases)]
        run = RunFacts(
            verdicts, len(source.cases), interrupted=interrupted, coverage=coverage, spoiled=spoiled,
            not_one_machine=why_not_one_machine(source.measured_run.read_records()),
            is_simulated=source.is_simulated, silent=source.machine.silent,
            lost=lost_hosts(source.measured_run.read_records()), slow_links=tuple(slow),
            allows_unmeasured=self.subject.settings.allow_incomplete,
            wrong_data=[say(why) for why in unasked_wrong_data(evidence, probes_asked)],
            variables=variables,
            calibrate=self.subject.calibrate_command(source.measured_run.path, is_simulated=source.is_simulated),
        )  # fmt: skip
        (outcome, why, cause), rehearsed, blockers = conclude(run), "", other_blockers(run)
        if self.subject.settings.rehearse and run.is_simulated:
            as_measured = run._replace(is_simulated=False)
            would_be, why_so, _ = concluded = conclude(as_measured)
            still = other_blockers(as_measured)
            if still or any(one.blocks(allows_unmeasured=run.allows_unmeasured) for one in verdicts):
                (outcome, why, cause), blockers = concluded, still
            else:
                rehearsed = f"would be {would_be.replace('_', ' ')}, {say(why_so)}"
        reason = say(why)
        if interrupted and outcome == "incomplete" and self.interim.interruption:
            reason = f"{self.interim.interruption}; {reason}"
        accused = {host for v in verdicts for c in v.culprits for host in c.hosts}
        of_links = [f"communication is slow at {words}" for words, hosts in slow.items() if not hosts <= accused]
        unprofiled = [f"--ddp-profile: {line}" for line in problem_lines(evidence.profiles)]
        wrong = [f"{one}, on which no requirement is judged" for one in run.wrong_data[cause == "wrong-data" :]]
        sku = history_sku(self.sku, is_simulated=source.is_simulated)
        recent = recent_runs(source.measured_run, self.history_file, sku, evidence)
        stretches = sustained_notes(evidence)
        further = (because("text", one) for one in (*of_links, *unprofiled, *filter(None, [recent])))
        remarks = (*(because("text", one) for one in wrong), *variables, *stretches, *source.notes(verdicts), *further)
        by_id, confidence = (
            {case.id: case for case in (*source.cases, *source.selected)},
            self.subject.settings.confidence,
        )
        loss = uniform_loss(verdicts, confidence, lambda name, at: judge(by_id[name], evidence, at))
        return Judgement(
            self.sku, outcome, reason, verdicts, tuple(map(say, remarks)), self._basis(), coverage,
            run.allows_unmeasured, run.is_simulated, blockers, self.subject.extends, self.subject.lowered,
            self._altered(outcome, verdicts, coverage), loss,
            len(source.cases) - len(verdicts), source.measured_run.read_run().is_unfinished,
            requirements=json_of(judged), remarks=remarks, rehearsed=rehearsed,
        )  # fmt: skip

    def _altered(self, outcome: RunOutcome, verdicts: Sequence[Verdict], coverage: Coverage) -> tuple[str, ...]:
        """What the site changed in the SKU; of an acceptance also whether only the site's own bounds or a whole file of
        its own lead to it, or another file than when it was measured.
        """
        if outcome not in ACCEPTING:
            return self.subject.altered
        used, began_with = self.subject.thresholds, self.source.measured_run.read_run().thresholds
        own = self.subject.own_bounds(self.source.cases)
        others = [replace(one, provisional=one.provisional or one.id in own) for one in verdicts]
        further = {
            "the bounds that it is accepted by": own and not rests_on_published(others, coverage),
            "the whole thresholds file": not used.rests_on_packaged,
            "the thresholds since it was measured": began_with is not None and began_with.digests != used.digests,
        }
        return (*self.subject.altered, *(what for what, holds in further.items() if holds))

    def so_far(self, evidence: Evidence, why: str, reason: str) -> Judgement:
        """The judgement if the run ended now, with its reason; `why` says why a study has no end yet."""
        verdicts = tuple(self._verdict_so_far(case, evidence, why) for case in self.source.selected)
        remarks = (*notes_on_variables(evidence, self.source.cases), *self.source.notes(verdicts))
        return Judgement(
            self.sku, "incomplete", reason, verdicts, tuple(map(say, remarks)), self._basis(),
            extends=self.subject.extends, lowered=self.subject.lowered, altered=self.subject.altered,
            not_selected=len(self.source.cases) - len(verdicts), unfinished=True,
            requirements=json_of(self.source.selected), remarks=remarks,
        )  # fmt: skip

    def _verdict_so_far(self, case: AnyCase, evidence: Evidence, why: str) -> Verdict:
        why_not = self.source.why_not(case) or (why if _compares_with_earlier_runs(case) else None)
        if why_not:
            return self._judged_without_data(case, why_not)
        # Without the history, whose baseline is fixed when the run is over.
        return worded(with_waiver(judge(case, evidence, self.subject.settings.confidence), case, evidence, today()))

    def _verdict(self, case: AnyCase, listener: Listener) -> Verdict:
        if self.source.why_not(case) is None:
            self.source.measure(listener)
            # The case may now be for fewer nodes.
            case = next((one for one in self.source.selected if one.id == case.id), case)
        why_not = self.source.why_not(case)
        if why_not is not None:
            return self._judged_without_data(case, why_not)
        return self._judged(case, self.source.measured(listener))

    def _judged(self, case: AnyCase, evidence: Evidence) -> Verdict:
        return worded(with_waiver(self._judged_by_bound(case, evidence), case, evidence, today()))

    def _judged_by_bound(self, case: AnyCase, evidence: Evidence) -> Verdict:
        confidence = self.subject.settings.confidence
        if not _compares_with_earlier_runs(case):
            return self._with_earlier_launches(worded(judge(case, evidence, confidence)), case, evidence)
        try:
            baseline = self._baseline(evidence)
        except HistoryError as error:
            return replace(blank_verdict(case, confidence), outcome="inconclusive", reason=str(error))
        return judge_regression(case, evidence, baseline, confidence)

    def _with_earlier_launches(self, verdict: Verdict, case: AnyCase, evidence: Evidence) -> Verdict:
        """Widen the interval by the history's spread between launches, if known."""
        if not (isinstance(case, Case) and may_be_widened(verdict, case)):
            return verdict
        try:
            baseline = self._baseline(evidence)
        except HistoryError as error:
            return replace(verdict, notes=(*verdict.notes, f"spread between launches is unknown: {error}"))
        return with_launch_deviation(verdict, case, evidence, baseline) if baseline is not None else verdict

    def _baseline(self, evidence: Evidence) -> Baseline | None:
        """The nodes' earlier results, saved beside the verdicts. Raises HistoryError."""

        def find_out() -> Baseline | None:
            return baseline_of(self.source.measured_run, self.history_file, self.sku, evidence)

        baseline = evidence.once("baseline", find_out)
        if baseline is not None:
            self.source.keep_baseline(baseline)
        return baseline

    def _judged_without_data(self, case: AnyCase, reason: str) -> Verdict:
        nothing = self.subject.evidence_of_nothing()
        return worded(replace(judge(case, nothing, self.subject.settings.confidence), reason=reason, because=None))

    def _coverage(self, evidence: Evidence) -> Coverage:
        """How much of the measured machine was tested."""
        record = self.source.measured_run.read_run()
        per_node = (record.devices_present or 0) // evidence.plan.nodes if self.subject.device_type == "cuda" else 0
        found = coverage_of(evidence, self.source.selected, self.verdicts, record.left_out, per_node)
        return replace(found, why_paths_are_missing=say(found.why_paths_are_missing))

    def _basis(self) -> dict[str, str]:
        """Thresholds, measurements and time of this judgement; for an earlier run also this session's notes."""
        measured, thresholds = self.source.measured_run, self.subject.thresholds
        return {
            "judged_at": now_iso(), "thresholds_path": str(thresholds.path), "thresholds_sha256": thresholds.sha256,
            "measurements_path": str(measured.measurements_jsonl),
            **measured.digests(),
            "verdicts_path": str((self.source.run or measured).verdicts_json), **self.source.judged_for(),
        }  # fmt: skip


def _compares_with_earlier_runs(case: AnyCase) -> TypeGuard[NodeCase]:
    return isinstance(case, NodeCase) and case.requirement.definition.subject == "node"
