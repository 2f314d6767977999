"""One acceptance session in the pytest process: verdicts on what is asked, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

from pytest_ddpscale.blame.slow_links import slow_links
from pytest_ddpscale.errors import HistoryError
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.history.baseline import Baseline
from pytest_ddpscale.history.database import history_file_of
from pytest_ddpscale.history.judging import judge_regression
from pytest_ddpscale.history.launch_deviation import may_be_widened, with_launch_deviation
from pytest_ddpscale.results.coverage import Coverage
from pytest_ddpscale.results.gangs import why_not_one_machine
from pytest_ddpscale.results.notices import Listener
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import now_iso
from pytest_ddpscale.results.verdicts import ACCEPTING, Judgement, RunOutcome, UniformLoss, Verdict
from pytest_ddpscale.session.interim import Interim
from pytest_ddpscale.session.live_page import LivePage
from pytest_ddpscale.session.past_runs import acceptance_before, baseline_of
from pytest_ddpscale.session.sources import EvidenceSource
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase
from pytest_ddpscale.thresholds.waiver import today
from pytest_ddpscale.verdict.answering_rounds import samples_of
from pytest_ddpscale.verdict.bounds import blank_verdict
from pytest_ddpscale.verdict.covering import coverage_of
from pytest_ddpscale.verdict.family import with_family_confidence
from pytest_ddpscale.verdict.judge import judge
from pytest_ddpscale.verdict.run_outcome import (
    ONE_NODE,
    RunCaveats,
    conclude,
    other_blockers,
    qualified,
    rests_on_published,
)
from pytest_ddpscale.verdict.uniform_loss import uniform_loss
from pytest_ddpscale.verdict.waiving import with_waiver


class AcceptanceSession:
    """One session: the verdicts that were asked for, by the id of their requirement, on evidence from a source.

    `interruption` says when and why somebody ended it while it measured; empty if nobody did. `live_page` is
    report.html meanwhile.
    """

    def __init__(self, source: EvidenceSource) -> None:
        self.source = source
        self.subject = source.subject
        self.verdicts: dict[str, Verdict] = {}
        self.interruption = ""
        self.live_page = LivePage(self)

    @property
    def sku(self) -> str:
        """Canonical SKU name."""
        return self.subject.sku

    @property
    def run(self) -> RunDirectory | None:
        """Where verdicts and reports go; None before it is opened."""
        return self.source.run

    @property
    def history_file(self) -> Path | None:
        """The site's history; None if this session keeps none."""
        return history_file_of(self.subject.settings.history, self.run) if self.run is not None else None

    def judge(self, case: AnyCase, listener: Listener) -> Verdict:
        """The verdict on one requirement, measured first if it has not been."""
        if case.id not in self.verdicts:
            self.verdicts[case.id] = self._verdict(case, Interim(self, listener))
            if self.subject.settings.family_confidence is not None:  # what counts depends on all others
                others = [one for one in self.source.selected if one.id not in self.verdicts]
                self.verdicts |= {one.id: self._verdict(one, listener) for one in others}
                self._correct_failures()
        return self.verdicts[case.id]

    def _correct_failures(self) -> None:
        family_confidence = self.subject.settings.family_confidence
        if family_confidence is not None:
            corrected = with_family_confidence(tuple(self.verdicts.values()), family_confidence)
            self.verdicts |= {one.id: one for one in corrected}

    def samples(self, metric: str, workload: str, world_size: int, listener: Listener) -> list[float]:
        """Per-round values of a metric, in its unit, whether any requirement asks for it or not.

        Raises:
            OptionError: no such metric or workload, or more ranks than there are devices.
        """
        question = self.source.question(metric, workload, world_size)
        evidence = self.source.covering(question, Interim(self, listener))
        return [sample.value for sample in samples_of(question, evidence)]

    def conclude(self, *, interrupted: bool, spoiled: Sequence[str]) -> Judgement:
        """All verdicts and what they come to, if these items were skipped or failed for something else than theirs."""
        source, measured = self.source, self.source.measured_so_far()
        evidence = measured or self.subject.evidence_of_nothing(source.plan)
        why_not_asked = "the session was interrupted" if interrupted else "its test did not ask"
        for case in source.selected:  # also those whose tests never asked: from what is there, without measuring
            if case.id not in self.verdicts:
                late = self._judged(case, measured) if measured else self._judged_without_data(case, why_not_asked)
                self.verdicts[case.id] = late
        self._correct_failures()
        verdicts = tuple(self.verdicts[case.id] for case in source.cases if case.id in self.verdicts)
        coverage, slow = self._coverage(evidence), slow_links(evidence)
        not_one_machine = why_not_one_machine(source.measured_run.read_records())
        caveats = RunCaveats(
            spoiled=spoiled,
            coverage=coverage,
            not_one_machine=not_one_machine,
            is_simulated=source.is_simulated,
            silent=source.machine.silent,
            slow_links=tuple(slow),
            allows_unmeasured=self.subject.settings.allow_incomplete,
        )
        # Hosts that took turns over the studies are several machines, between which nothing was to be measured.
        known = (verdicts, len(source.cases), interrupted, ONE_NODE if not_one_machine else coverage)
        outcome, reason = qualified(*conclude(*known), caveats)
        if interrupted and outcome == "incomplete" and self.interruption:
            reason = f"{self.interruption}; {reason}"
        accused = {host for v in verdicts for c in v.culprits for host in (c.host, c.peer_host)}
        of_links = [f"communication is slow at {words}" for words, hosts in slow.items() if not hosts <= accused]
        notes = (*source.notes(), *of_links)
        allows, others = caveats.allows_unmeasured, other_blockers(*known, caveats)
        return Judgement(
            self.sku, outcome, reason, verdicts, notes, self._basis(), coverage, allows, caveats.is_simulated, others,
            self.subject.extends, self.subject.lowered, self._altered(outcome, verdicts, coverage),
            self._uniform_loss(verdicts, evidence), self.subject.settings.family_confidence,
            acceptance_before(source.measured_run, self.history_file, self.sku, evidence, verdicts),
        )  # fmt: skip

    def _uniform_loss(self, verdicts: Sequence[Verdict], evidence: Evidence) -> UniformLoss | None:
        by_id = {case.id: case for case in (*self.source.cases, *self.source.selected)}
        confidence = self.subject.settings.confidence
        return uniform_loss(verdicts, confidence, lambda name, at: judge(by_id[name], evidence, at))

    def _altered(self, outcome: RunOutcome, verdicts: Sequence[Verdict], coverage: Coverage) -> tuple[str, ...]:
        """What the site changed of the SKU, and whether it is accepted by nothing but bounds of the site's own."""
        own = self.subject.own_bounds(self.source.cases)
        others = [replace(one, provisional=one.provisional or one.id in own) for one in verdicts]
        if outcome not in ACCEPTING or not own or rests_on_published(others, coverage):
            return self.subject.altered
        return (*self.subject.altered, "the bounds that it is accepted by")

    def so_far(self, evidence: Evidence, why: str, reason: str) -> Judgement:
        """What the run comes to if it goes no further, for that reason; `why` a study has no end yet."""
        verdicts = tuple(self._verdict_so_far(case, evidence, why) for case in self.source.selected)
        family_confidence = self.subject.settings.family_confidence
        if family_confidence is not None:
            verdicts = with_family_confidence(verdicts, family_confidence)
        return Judgement(
            self.sku, "incomplete", reason, verdicts, self.source.notes(), self._basis(),
            extends=self.subject.extends, lowered=self.subject.lowered, altered=self.subject.altered,
            family_confidence=family_confidence,
        )  # fmt: skip

    def _verdict_so_far(self, case: AnyCase, evidence: Evidence, why: str) -> Verdict:
        why_not = self.source.why_not(case) or (why if _compares_with_earlier_runs(case) else None)
        if why_not:
            return self._judged_without_data(case, why_not)
        # Without the history: what was of a run's nodes is settled when it is over.
        return with_waiver(judge(case, evidence, self.subject.settings.confidence), case, evidence, today())

    def _verdict(self, case: AnyCase, listener: Listener) -> Verdict:
        if self.source.why_not(case) is None:
            self.source.measure(listener)
            # It may be asked of fewer nodes now.
            case = next((one for one in self.source.selected if one.id == case.id), case)
        why_not = self.source.why_not(case)
        if why_not is not None:
            return self._judged_without_data(case, why_not)
        question = case.question if isinstance(case, Case) else None
        return self._judged(case, self.source.covering(question, listener))

    def _judged(self, case: AnyCase, evidence: Evidence) -> Verdict:
        return with_waiver(self._judged_by_bound(case, evidence), case, evidence, today())

    def _judged_by_bound(self, case: AnyCase, evidence: Evidence) -> Verdict:
        confidence = self.subject.settings.confidence
        if not _compares_with_earlier_runs(case):
            return self._with_earlier_launches(judge(case, evidence, confidence), case, evidence)
        try:
            baseline = self._baseline(evidence)
        except HistoryError as error:
            return replace(blank_verdict(case, confidence), outcome="inconclusive", reason=str(error))
        return judge_regression(case, evidence, baseline, confidence)

    def _with_earlier_launches(self, verdict: Verdict, case: AnyCase, evidence: Evidence) -> Verdict:
        """The interval of a single launch with what the history knows of launches, if it knows anything."""
        if not (isinstance(case, Case) and may_be_widened(verdict, case)):
            return verdict
        try:
            baseline = self._baseline(evidence)
        except HistoryError as error:
            return replace(verdict, notes=(*verdict.notes, f"nothing is known of earlier launches: {error}"))
        return with_launch_deviation(verdict, case, evidence, baseline) if baseline is not None else verdict

    def _baseline(self, evidence: Evidence) -> Baseline | None:
        """What the nodes reached before, kept beside the verdicts. Raises HistoryError."""

        def find_out() -> Baseline | None:
            return baseline_of(self.source.measured_run, self.history_file, self.sku, evidence)

        baseline: Baseline | None = evidence.once("baseline", find_out)
        if baseline is not None:
            self.source.keep_baseline(baseline)
        return baseline

    def _judged_without_data(self, case: AnyCase, reason: str) -> Verdict:
        nothing = self.subject.evidence_of_nothing()
        return replace(judge(case, nothing, self.subject.settings.confidence), reason=reason)

    def _coverage(self, evidence: Evidence) -> Coverage:
        """What was tested of the machine that was measured."""
        record = self.source.measured_run.read_run()
        per_node = (record.devices_present or 0) // evidence.plan.nodes if self.subject.device_type == "cuda" else 0
        return coverage_of(evidence, self.source.selected, self.verdicts, record.left_out, per_node)

    def _basis(self) -> dict[str, str]:
        """By which thresholds, on which measurements and when this was judged; of an earlier run, also by whom."""
        measured, thresholds = self.source.measured_run, self.subject.thresholds
        return {
            "judged_at": now_iso(),
            "thresholds_path": str(thresholds.path),
            "thresholds_sha256": thresholds.sha256,
            "measurements_path": str(measured.measurements_jsonl),
            "measurements_sha256": measured.measurements_sha256(),
            **self.source.judged_for(),
        }


def _compares_with_earlier_runs(case: AnyCase) -> TypeGuard[NodeCase]:
    return isinstance(case, NodeCase) and case.requirement.definition.subject == "node"
