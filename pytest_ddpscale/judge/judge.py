"""Judge a requirement by the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_ddpscale.judge.agreement import with_agreement
from pytest_ddpscale.judge.answering_rounds import ALL_RANKS, node_of, rounds_of, values_of
from pytest_ddpscale.judge.answering_study import matching_study, why_no_study
from pytest_ddpscale.judge.bounds import against_bound, blank_verdict
from pytest_ddpscale.judge.caveats import (
    credible_values,
    suspect_nodes,
    with_host_bound,
    with_missing_rounds,
    with_plausibility,
    with_skipped_steps,
    with_slow_node,
    with_spent_budget,
)
from pytest_ddpscale.judge.culprits import RankComparison, with_culprits
from pytest_ddpscale.judge.devices import notes_without_telemetry, with_stalled_devices
from pytest_ddpscale.judge.each import combined, judge_each
from pytest_ddpscale.judge.estimating import Clear, Estimates, Found
from pytest_ddpscale.judge.failed_nodes import JudgedNode, why_nodes_missing, with_failed_nodes
from pytest_ddpscale.judge.launches import at_place, combined_launches
from pytest_ddpscale.judge.node_checks import judge_check
from pytest_ddpscale.judge.probing import judge_probe
from pytest_ddpscale.judge.rounds import ArmRounds, hosts_of, rounds_begun, together
from pytest_ddpscale.judge.samples import MeasuredArms
from pytest_ddpscale.plan.metric import Scale
from pytest_ddpscale.plan.per_round import PerRound
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.probe import STUDY_ID as PROBES
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, GenerationComparison, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase


def judge(case: AnyCase, evidence: Evidence, confidence: float) -> Verdict:
    """The verdict on one requirement.

    Args:
        case: the requirement.
        evidence: the measurements, in any order.
        confidence: of the interval, valid for all rounds together, 0 … 1.

    Returns:
        ``passed`` if the whole interval is on the good side of the bound, ``failed`` if the whole interval is on the
        bad side, ``inconclusive`` if the bound lies inside, if there are too few rounds (`bounds`) or if the numbers
        cannot be trusted (`caveats`); ``not_measured`` without data, ``error`` if the study broke. With several nodes,
        a requirement that fits one node is judged on each of them (`each`). With several launches the interval is that
        of their means, and a caveat in one launch counts for all (`launches`).
    """
    blank = blank_verdict(case, confidence)
    if isinstance(case, NodeCase):
        return _judge_node(blank, case, evidence, confidence)
    blank, launches = replace(blank, launches=evidence.plan.launches), list[_Asked]()
    for one in evidence.launches:
        study = matching_study(one.plan, case.question)
        if study is None:
            return replace(blank, reason=why_no_study(one.plan, case.question))
        launches.append(_Asked(blank, case, study, one))
    verdict = _judge_launches(launches, confidence) if len(launches) > 1 else _judge_launch(launches[0], confidence)
    return _with_both_throughputs(_with_only_launch(verdict, evidence), case)


def _judge_launches(launches: Sequence[_Asked], confidence: float) -> Verdict:
    """Judge each launch with the value and interval of all; ranks with wrong results count in each launch alone."""
    if not launches[0].case.requirement.definition.compares_results:
        of_launches = tuple(Estimates({} if _why_not(one) else one.samples, one.scale) for one in launches)
        launches = [replace(one, of_launches=of_launches) for one in launches]
    return combined_launches([_judge_launch(one, confidence) for one in launches])


def _judge_launch(asked: _Asked, confidence: float) -> Verdict:
    verdict = _why_not(asked) or _judge_study(asked, confidence)
    return with_spent_budget(verdict, asked.study.id, asked.evidence.out_of_time)


def _with_only_launch(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Flag a single launch on a CPU: launches differ more than rounds do, so its interval is too narrow."""
    is_doubtful = evidence.plan.device_type == "cpu" and verdict.launches == 1 and verdict.interval is not None
    return replace(verdict, flags=(*verdict.flags, THIS_LAUNCH_ONLY)) if is_doubtful else verdict


def _with_both_throughputs(verdict: Verdict, case: Case) -> Verdict:
    """Add both throughputs to a ratio between generations."""
    reference, name = case.reference_samples_per_s, case.requirement.versus
    if reference is None or name is None or verdict.value is None:
        return verdict
    return replace(
        verdict, compared=GenerationComparison(verdict.value * reference, reference, name, case.reference_source)
    )


@dataclass(frozen=True)
class _Asked:
    """A requirement on training, and the study that answers it.

    Attributes:
        blank: the verdict ``not_measured`` on it.
        case: the requirement.
        study: the planned study.
        evidence: measurements of one launch.
        of_launches: estimates of all launches by place; empty if each launch is judged by its own values.
    """

    blank: Verdict
    case: Case
    study: Study
    evidence: Evidence
    of_launches: tuple[Estimates[str], ...] = ()

    @property
    def scale(self) -> Scale:
        """How the values err."""
        return self.case.requirement.definition.scale

    @cached_property
    def samples(self) -> Mapping[str, PerRound]:
        """Values of the rounds of this launch, by place."""
        case = self.case
        return values_of(case.question, self.study, self.evidence, case.reference_samples_per_s, case.peak_tflops)

    @cached_property
    def estimates(self) -> Estimates[str]:
        """Value and interval of each place from the rounds of this launch; several launches have a fixed length."""
        return Estimates(self.samples, self.scale, 0 if self.of_launches else self.study.rounds)

    def found(self, place: str, confidence: float) -> Found:
        """Value and interval of a place that are judged: of this launch or of all together."""
        if self.of_launches:
            return at_place(self.of_launches, place, confidence)
        return self.estimates.at(place, confidence)

    @cached_property
    def rounds_due(self) -> int:
        """Number of rounds that were begun and timed every arm of the question."""
        return _rounds_due(self.case.question, self.study, self.evidence)


def _why_not(asked: _Asked) -> Verdict | None:
    """The verdict on a study that was not measured completely, or cannot be; else None."""
    study, evidence = asked.study, asked.evidence
    if study.id in evidence.errors:
        return replace(asked.blank, outcome="error", reason=evidence.errors[study.id])
    if study.id in evidence.interrupted:
        return replace(asked.blank, reason=evidence.interrupted[study.id])
    if asked.case.question.placement == "spread" and evidence.plan.nodes == 1:
        return replace(asked.blank, reason="needs at least 2 nodes to spread ranks over; this run had one")
    return None


def _judge_study(asked: _Asked, confidence: float) -> Verdict:
    case, study, evidence = asked.case, asked.study, asked.evidence
    if evidence.plan.layout.judged_by_node(case.question.arms):
        return _judge_by_node(asked, confidence)
    rounds = rounds_of(case.question, study, evidence)
    verdict = _judge_rounds(asked, rounds, ALL_RANKS, confidence)
    if verdict.outcome == "not_measured":
        return verdict
    verdict = with_agreement(verdict, study, evidence)
    return with_culprits(verdict, case, RankComparison(study, evidence), lambda: rounds.measured)


def _judge_node(blank: Verdict, case: NodeCase, evidence: Evidence, confidence: float) -> Verdict:
    """The verdict on a requirement without training; ``no_regression`` is judged later, with the history."""
    subject = case.requirement.definition.subject
    if subject == "probe":
        verdict = judge_probe(blank, case, evidence, confidence, peak=case.peak)
        could_be_done = case.probe is not None and case.probe.id not in evidence.unsupported
        return with_spent_budget(verdict, PROBES, evidence.out_of_time) if could_be_done else verdict
    if subject == "check":
        return judge_check(blank, case, evidence)
    return blank


def _judge_by_node(asked: _Asked, confidence: float) -> Verdict:
    case, study, evidence = asked.case, asked.study, asked.evidence
    peers = RankComparison(study, evidence)
    clear = _clear_nodes(asked, peers, confidence)

    def rounds_of_node(host: str) -> MeasuredArms:
        return node_of(case.question, study, evidence, host)

    def judge_node(node: JudgedNode, confidence: float) -> Verdict:
        verdict = _judge_rounds(asked, rounds_of_node(node.name), node.name, confidence)
        return with_slow_node(verdict, node.name, peers)

    planned, hosts = evidence.plan.nodes, hosts_of(evidence.columns, study.id)
    nodes = judge_each(judge_node, map(JudgedNode, hosts), planned, confidence, lambda node: clear.get(node.name))
    verdict = combined(asked.blank, nodes, planned, why_nodes_missing(nodes, evidence))
    verdict = with_agreement(verdict, study, evidence)

    def alike() -> ArmRounds:
        return together(rounds_of_node(one.place.name).measured for one in nodes if one.outcome == verdict.outcome)

    return with_failed_nodes(with_culprits(verdict, case, peers, alike), nodes, planned)


def _clear_nodes(asked: _Asked, peers: RankComparison, confidence: float) -> dict[str, Clear]:
    """Nodes that pass without any caveat, as `_judge_rounds` would find; none of several launches."""
    if asked.of_launches:
        return {}
    requirement, plan = asked.case.requirement, asked.evidence.plan
    credible = credible_values(requirement.definition.name, asked.case.world_size, plan)
    clear = asked.estimates.clear_passes(requirement, credible, asked.rounds_due, confidence)
    if not clear:
        return {}
    suspects = {straggler.host for straggler in peers.stragglers}
    suspects |= suspect_nodes(asked.case, asked.study, asked.evidence)
    notes: tuple[str, ...] = ()
    if asked.case.question.metric.reads_utilization:
        suspects |= asked.evidence.telemetry.hosts
        notes = notes_without_telemetry(plan)
    return {host: one._replace(notes=notes) for host, one in clear.items() if host not in suspects}


def _judge_rounds(asked: _Asked, rounds: MeasuredArms, place: str, confidence: float) -> Verdict:
    """The verdict from the numbers of a place, with caveats."""
    case, evidence, samples = asked.case, asked.evidence, asked.samples.get(place)
    if not samples:
        return replace(asked.blank, reason=_why_no_samples(case.question, asked.study, rounds))
    verdict = against_bound(asked.blank, case.requirement, samples.values, lambda: asked.found(place, confidence))
    verdict = with_missing_rounds(verdict, asked.rounds_due)
    verdict = with_plausibility(verdict, evidence.plan)
    if asked.of_launches and verdict.outcome in ("passed", "failed"):
        here = asked.estimates.at(place, confidence).value
        verdict = replace(with_plausibility(replace(verdict, value=here), evidence.plan), value=verdict.value)
    verdict = with_host_bound(verdict, case, evidence.plan, rounds.measured)
    if case.question.metric.reads_utilization:
        arm = rounds.measured.measured
        telemetry = evidence.telemetry.of_arm(arm.study, arm.arm, arm.ranks.by_host)
        verdict = with_stalled_devices(verdict, rounds.measured, telemetry)
    return with_skipped_steps(verdict, rounds.measured)


def _rounds_due(question: Question, study: Study, evidence: Evidence) -> int:
    arms = {arm.name for arm in question.arms}
    timed = evidence.timed_arms.get(study.id, {})
    begun = rounds_begun(evidence.columns, study.id)
    return sum(number not in timed or arms <= set(timed[number]) for number in begun)


def _why_no_samples(question: Question, study: Study, rounds: MeasuredArms) -> str:
    if not rounds.measured:
        return f"no complete round of {question.world_size} ranks in {study.id}"
    if question.baseline and not rounds.compared:
        return f"{study.id} has no complete round of the arm {question.baseline.name} to compare with"
    return f"{question.metric.name} could not be read on every rank"
