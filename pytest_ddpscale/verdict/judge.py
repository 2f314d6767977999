"""A requirement against what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_ddpscale.blame.culprits import RankComparison, peers_of, with_culprits
from pytest_ddpscale.blame.replicas import with_agreement
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.metrics.rounds import (
    NO_ROUNDS,
    ArmRounds,
    arm_rounds,
    node_rounds,
    on_hosts,
    rounds_begun,
    together,
)
from pytest_ddpscale.metrics.samples import MeasuredArms
from pytest_ddpscale.metrics.slowness import slowness_by_host, slowness_of
from pytest_ddpscale.plan.metric import Metric, baseline_arm, measured_arm
from pytest_ddpscale.plan.per_round import Sample
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.probe import STUDY_ID as PROBES
from pytest_ddpscale.plan.study import Arm, Study
from pytest_ddpscale.results.telemetry_record import Telemetry
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase
from pytest_ddpscale.verdict.answering_study import matching_study, why_no_study
from pytest_ddpscale.verdict.bounds import against_bound, blank_verdict
from pytest_ddpscale.verdict.caveats import (
    with_host_bound,
    with_missing_rounds,
    with_plausibility,
    with_skipped_steps,
    with_slow_node,
    with_spent_budget,
)
from pytest_ddpscale.verdict.checking import judge_check
from pytest_ddpscale.verdict.device_notes import with_stalled_devices
from pytest_ddpscale.verdict.each import combined, judge_each
from pytest_ddpscale.verdict.estimating import Estimates
from pytest_ddpscale.verdict.failed_nodes import JudgedNode, why_nodes_missing, with_failed_nodes
from pytest_ddpscale.verdict.probing import judge_probe

_EVERYBODY = "all ranks"  # the one place of what ranks did together


def judge(case: AnyCase, evidence: Evidence, confidence: float) -> Verdict:
    """The verdict on one requirement.

    Args:
        case: the requirement.
        evidence: what was measured, in any order.
        confidence: of the interval at all rounds together, 0 … 1.

    Returns:
        ``passed`` if the whole interval is on the good side of the bound, ``failed`` if the whole
        interval is on the bad side, ``inconclusive`` if the bound lies inside or there are too few rounds (`bounds`),
        or if something forbids what the numbers say (`caveats`); ``not_measured`` without data, ``error`` if the study
        broke. What fits one node of several is judged on each of them (`each`).
    """
    blank = blank_verdict(case, confidence)
    if isinstance(case, NodeCase):
        return _judge_node(blank, case, evidence, confidence)
    study = matching_study(evidence.plan, case.question)
    if study is None:
        return replace(blank, reason=why_no_study(evidence.plan, case.question))
    verdict = _judge_study(_Asked(blank, case, study, evidence), confidence)
    return with_spent_budget(verdict, study.id, evidence.out_of_time)


@dataclass(frozen=True)
class _Asked:
    """A requirement on training, and the study that answers it.

    Attributes:
        blank: the verdict ``not_measured`` on it.
        case: the requirement.
        study: that was to be measured.
        evidence: what was measured.
    """

    blank: Verdict
    case: Case
    study: Study
    evidence: Evidence

    @cached_property
    def rounds_due(self) -> int:
        """How many rounds there should be: all that were begun and that timed every arm in question."""
        return _rounds_due(self.case.question, self.study, self.evidence)


def _judge_study(asked: _Asked, confidence: float) -> Verdict:
    case, study, evidence = asked.case, asked.study, asked.evidence
    if study.id in evidence.errors:
        return replace(asked.blank, outcome="error", reason=evidence.errors[study.id])
    if study.id in evidence.interrupted:
        return replace(asked.blank, reason=evidence.interrupted[study.id])
    if case.question.placement == "spread" and evidence.plan.nodes == 1:
        return replace(asked.blank, reason="needs at least 2 nodes to spread ranks over; this run had one")
    if evidence.plan.layout.judged_by_node(case.question.arms):
        return _judge_by_node(asked, confidence)
    rounds = rounds_of(case.question, study, evidence)
    verdict = _judge_rounds(asked, rounds, _estimates(asked, {_EVERYBODY: rounds}), _EVERYBODY, confidence)
    if verdict.outcome == "not_measured":
        return verdict
    verdict = with_agreement(verdict, study, evidence)
    return with_culprits(verdict, case, RankComparison(study, evidence), lambda: rounds.measured)


def _judge_node(blank: Verdict, case: NodeCase, evidence: Evidence, confidence: float) -> Verdict:
    """On something else than training; what nodes reached before is judged where their history is."""
    subject = case.requirement.definition.subject
    if subject == "probe":
        verdict = judge_probe(blank, case, evidence, confidence, peak=case.peak)
        could_be_done = case.probe is not None and case.probe.id not in evidence.unsupported
        return with_spent_budget(verdict, PROBES, evidence.out_of_time) if could_be_done else verdict
    if subject == "check":
        return judge_check(blank, case, evidence)
    return blank


def _judge_by_node(asked: _Asked, confidence: float) -> Verdict:
    study, evidence = asked.study, asked.evidence
    rounds, peers = rounds_by_node(asked.case.question, study, evidence), RankComparison(study, evidence)

    estimates = _estimates(asked, rounds)

    def judge_node(node: JudgedNode, confidence: float) -> Verdict:
        verdict = _judge_rounds(asked, rounds[node.name], estimates, node.name, confidence)
        return with_slow_node(verdict, node.name, peers)

    planned = evidence.plan.nodes
    nodes = judge_each(judge_node, map(JudgedNode, rounds), planned, confidence)
    verdict = combined(asked.blank, nodes, planned, why_nodes_missing(nodes, evidence))
    verdict = with_agreement(verdict, study, evidence)
    alike = [rounds[node.place.name].measured for node in nodes if node.verdict.outcome == verdict.outcome]
    verdict = with_culprits(verdict, asked.case, peers, lambda: together(alike))
    return with_failed_nodes(verdict, nodes, planned)


def _estimates(asked: _Asked, rounds: Mapping[str, MeasuredArms]) -> Estimates[str]:
    """What a requirement's numbers come to at each place, by its name."""
    case = asked.case
    known = {
        name: replace(one, reference=case.reference_img_per_s, peak=case.peak_tflops) for name, one in rounds.items()
    }
    samples = {name: case.question.metric.samples_of(one) for name, one in known.items()}
    return Estimates(samples, case.requirement.definition.scale)


def _judge_rounds(
    asked: _Asked, rounds: MeasuredArms, estimates: Estimates[str], place: str, confidence: float
) -> Verdict:
    """The verdict that the numbers of a place give, or what forbids it."""
    case, evidence, samples = asked.case, asked.evidence, estimates.samples[place]
    if not samples:
        return replace(asked.blank, reason=_why_no_samples(case.question, asked.study, rounds))
    verdict = against_bound(asked.blank, case.requirement, samples.values, lambda: estimates.at(place, confidence))
    verdict = with_missing_rounds(verdict, asked.rounds_due)
    verdict = with_plausibility(verdict, evidence.plan)
    verdict = with_host_bound(verdict, case, evidence.plan, rounds.measured)
    if case.question.metric.reads_utilization:
        verdict = with_stalled_devices(verdict, rounds.measured, _telemetry_of(rounds.measured, evidence))
    return with_skipped_steps(verdict, rounds.measured)


def _telemetry_of(rounds: ArmRounds, evidence: Evidence) -> Sequence[Telemetry]:
    return evidence.telemetry_of_arms.get((rounds.measured.study, rounds.measured.arm), ())


def samples_of(question: Question, evidence: Evidence) -> list[Sample]:
    """Per-round values of what a question asks, in the metric's unit; empty if it was not measured.

    Of what several nodes measured, each for itself, the worst node's of each round.

    Raises:
        ValueError: the metric needs a number of the thresholds file.
    """
    metric, study = question.metric, matching_study(evidence.plan, question)
    if metric.takes_sku:
        raise ValueError(f"{metric.name} needs a number of the thresholds file")
    if study is None:
        return []
    if not evidence.plan.layout.judged_by_node(question.arms):
        return list(metric.samples_of(rounds_of(question, study, evidence)))
    samples = [list(metric.samples_of(node)) for node in rounds_by_node(question, study, evidence).values()]
    return worst_per_round(samples, metric) if len(samples) >= evidence.plan.nodes else []


def worst_per_round(samples: Sequence[Sequence[Sample]], metric: Metric) -> list[Sample]:
    """Of the values of several nodes, the worst of each round, as far as all nodes have rounds."""
    worst = max if metric.upper_bound else min
    return [worst(of_round, key=lambda sample: sample.value) for of_round in zip(*samples, strict=False)]


def rounds_of(question: Question, study: Study, evidence: Evidence) -> MeasuredArms:
    """The complete rounds that answer a question: on several nodes those of the group with rank 0."""
    layout = evidence.plan.layout

    def ranks(arm: Arm) -> Sequence[int] | None:
        is_planned = arm.world_size <= layout.world_size  # else no rank can have measured it
        if layout.nodes == 1 or not is_planned:
            return None
        return range(layout.ranks_per_node) if arm.world_size == 1 else layout.groups(arm)[0]

    def rounds(arm: Arm) -> ArmRounds:
        return arm_rounds(evidence.columns, study.id, arm, ranks(arm))

    measured, baseline = _arms(question)
    compared = rounds(baseline) if baseline else NO_ROUNDS
    found = _of_arms(question, study, evidence, rounds(measured), compared)
    if not _ranks_take_turns(question):
        return found
    hosts = found.measured.ranks.by_host.keys()
    return replace(found, slowness=slowness_of(on_hosts(peers_of(study, evidence).rounds, hosts)))


def _ranks_take_turns(question: Question) -> bool:
    """Whether the baseline is one rank after the other, of others than the one that is compared with it."""
    return question.metric.baseline == "alone" and question.world_size > 1


def rounds_by_node(question: Question, study: Study, evidence: Evidence) -> dict[str, MeasuredArms]:
    """The same of every node that took part in the study, by its host's name; its arms fit a node."""
    measured, baseline = _arms(question)
    nodes = node_rounds(evidence.columns, study.id, measured)
    compared = node_rounds(evidence.columns, study.id, baseline) if baseline else dict.fromkeys(nodes, NO_ROUNDS)
    found = {host: _of_arms(question, study, evidence, theirs, compared[host]) for host, theirs in nodes.items()}
    if not _ranks_take_turns(question):
        return found
    slowness = evidence.once(("slowness", study.id), lambda: slowness_by_host(peers_of(study, evidence).rounds))
    return {host: replace(rounds, slowness=slowness.get(host, {})) for host, rounds in found.items()}


def _arms(question: Question) -> tuple[Arm, Arm | None]:
    """The arm in question and its baseline, if the metric has one."""
    asked = question.metric, question.workload, question.world_size, question.placement
    return measured_arm(*asked), baseline_arm(*asked)


def _of_arms(
    question: Question, study: Study, evidence: Evidence, measured: ArmRounds, compared: ArmRounds
) -> MeasuredArms:
    return MeasuredArms(
        measured,
        compared,
        question.world_size,
        flops_per_image=evidence.flops_per_image.get(study.id),
        seeded_checksums=evidence.seeded_checksums(study.id),
    )


def _rounds_due(question: Question, study: Study, evidence: Evidence) -> int:
    """How many rounds there should be: all that were begun and that timed every arm in question."""
    arms = {arm.name for arm in question.arms}
    timed = evidence.timed_arms.get(study.id, {})
    begun = rounds_begun(evidence.columns, study.id)
    return sum(number not in timed or arms <= set(timed[number]) for number in begun)


def _why_no_samples(question: Question, study: Study, rounds: MeasuredArms) -> str:
    if not rounds.measured:
        return f"no complete round of {question.world_size} ranks in {study.id}"
    if question.metric.baseline and not rounds.compared:
        return f"{study.id} has no complete round of the arm {question.metric.baseline} to compare with"
    return f"{question.metric.name} could not be read on every rank"
