"""A requirement against what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pytest_ddpscale.blame.culprits import RankComparison, peers_of, with_culprits, with_slow_node
from pytest_ddpscale.blame.replicas import with_agreement
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.metrics.rounds import ArmRound, arm_rounds, on_hosts, ranks_on_node, rounds_begun, together
from pytest_ddpscale.metrics.samples import (
    Sample,
    agreement_samples,
    ddp_overhead_samples,
    efficiency_samples,
    exposed_communication_samples,
    generation_ratio_samples,
    images_per_joule_samples,
    memory_spread_samples,
    model_flops_utilization_samples,
    peak_memory_samples,
    rank_uniformity_samples,
    step_time_cv_samples,
    step_time_p95_samples,
    strong_speedup_samples,
    throughput_samples,
    utilization_samples,
)
from pytest_ddpscale.metrics.slowness import Slowness, slowness_by_host, slowness_of
from pytest_ddpscale.plan.metric import baseline_arm, measured_arm
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.probe import STUDY_ID as PROBES
from pytest_ddpscale.plan.study import Arm, Study
from pytest_ddpscale.results.records import Measurement
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase
from pytest_ddpscale.verdict.answering_study import arms_of, matching_study, why_no_study
from pytest_ddpscale.verdict.bounds import against_bound, blank_verdict
from pytest_ddpscale.verdict.by_node import NodeVerdict, combined, judge_nodes, with_failed_nodes, worst_per_round
from pytest_ddpscale.verdict.caveats import (
    with_host_bound,
    with_missing_rounds,
    with_plausibility,
    with_skipped_steps,
    with_spent_budget,
)
from pytest_ddpscale.verdict.checking import judge_check
from pytest_ddpscale.verdict.device_notes import with_stalled_devices
from pytest_ddpscale.verdict.probing import judge_probe


def judge(case: AnyCase, evidence: Evidence, confidence: float) -> Verdict:
    """The verdict on one requirement.

    Args:
        case: the requirement.
        evidence: what was measured, in any order.
        confidence: of the interval at all rounds together, 0 … 1.

    Returns:
        ``passed`` if the whole interval is on the good side of the bound, ``failed`` if the whole
        interval is on the bad side, ``inconclusive`` if the bound lies inside or there are too few
        rounds, ``not_measured`` without data, ``error`` if the study broke. What fits one node of several is
        judged on each of them (`pytest_ddpscale.verdict.by_node`).
    """
    blank = blank_verdict(case, confidence)
    if isinstance(case, NodeCase):
        return _judge_node(blank, case, evidence, confidence)
    study = matching_study(evidence.plan, case.question)
    if study is None:
        return replace(blank, reason=why_no_study(evidence.plan, case.question))
    verdict = _judge_study(blank, case, study, evidence, confidence)
    return with_spent_budget(verdict, study.id, evidence.out_of_time)


def _judge_study(blank: Verdict, case: Case, study: Study, evidence: Evidence, confidence: float) -> Verdict:
    question = case.question
    if study.id in evidence.errors:
        return replace(blank, outcome="error", reason=evidence.errors[study.id])
    if study.id in evidence.interrupted:
        return replace(blank, reason=evidence.interrupted[study.id])
    if question.placement == "spread" and evidence.plan.nodes == 1:
        return replace(blank, reason="needs at least 2 nodes to spread ranks over; this run had one")
    if evidence.plan.layout.judged_by_node(question.arms):
        return _judge_by_node(blank, case, study, evidence, confidence)
    rounds = rounds_of(question, study, evidence)
    due = _rounds_due(question, study, evidence)
    verdict = _judge_rounds(blank, case, study, evidence, rounds, due, confidence)
    if verdict.outcome == "not_measured":
        return verdict
    peers = RankComparison(study, evidence)
    verdict = with_agreement(verdict, study, evidence)
    return with_culprits(verdict, case, peers, rounds.measured)


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


def _judge_by_node(blank: Verdict, case: Case, study: Study, evidence: Evidence, confidence: float) -> Verdict:
    rounds, peers = rounds_by_node(case.question, study, evidence), RankComparison(study, evidence)
    due = _rounds_due(case.question, study, evidence)

    def judge_node(host: str, confidence: float) -> NodeVerdict:
        theirs = rounds[host]
        verdict = _judge_rounds(blank, case, study, evidence, theirs, due, confidence)
        return NodeVerdict(host, with_slow_node(verdict, host, peers), theirs.measured)

    nodes = judge_nodes(judge_node, rounds, evidence.plan.nodes, confidence)
    verdict = with_agreement(combined(blank, nodes, evidence), study, evidence)
    alike = together(node.measured for node in nodes if node.verdict.outcome == verdict.outcome)
    verdict = with_culprits(verdict, case, peers, alike)
    return with_failed_nodes(verdict, nodes, evidence.plan.nodes)


def _judge_rounds(
    blank: Verdict, case: Case, study: Study, evidence: Evidence, rounds: ArmAndBaseline, due: int, confidence: float
) -> Verdict:
    """The verdict that the numbers give, or what forbids it; `due` is how many rounds there should be."""
    samples = _samples(case, study, rounds, evidence)
    if not samples:
        return replace(blank, reason=_why_no_samples(case.question, study, rounds))
    verdict = against_bound(blank, case.requirement, samples, confidence)
    verdict = with_missing_rounds(verdict, due)
    verdict = with_plausibility(verdict, evidence.plan)
    verdict = with_host_bound(verdict, case, evidence.plan, rounds.measured)
    if verdict.metric == "device_utilization":
        verdict = with_stalled_devices(verdict, rounds.measured, evidence.telemetry)
    return with_skipped_steps(verdict, rounds.measured)


def samples_of(question: Question, evidence: Evidence) -> list[Sample]:
    """Per-round values of what a question asks, in the metric's unit; empty if it was not measured.

    Of what several nodes measured, each for itself, the worst node's of each round.

    Raises:
        ValueError: the metric needs a number of the thresholds file.
    """
    study = matching_study(evidence.plan, question)
    if study is None:
        return []
    if not evidence.plan.layout.judged_by_node(question.arms):
        return _plain_samples(question, study, rounds_of(question, study, evidence), evidence)
    nodes = rounds_by_node(question, study, evidence).values()
    samples = [_plain_samples(question, study, rounds, evidence) for rounds in nodes]
    return worst_per_round(samples, question.metric) if len(samples) >= evidence.plan.nodes else []


@dataclass(frozen=True)
class ArmAndBaseline:
    """Complete rounds of the arm in question and of its baseline; the latter empty without one.

    Attributes:
        measured: of the arm in question.
        baseline: of what it is compared with.
        slowness: of the ranks, if they take turns as the baseline and it is known.
    """

    measured: dict[int, ArmRound]
    baseline: dict[int, ArmRound]
    slowness: Slowness = field(default_factory=dict)


def rounds_of(question: Question, study: Study, evidence: Evidence) -> ArmAndBaseline:
    """The complete rounds that answer a question: on several nodes those of the group with rank 0."""
    layout = evidence.plan.layout

    def ranks(arm: Arm) -> Sequence[int] | None:
        is_planned = arm.world_size <= layout.world_size  # else no rank can have measured it
        if layout.nodes == 1 or not is_planned:
            return None
        return range(layout.ranks_per_node) if arm.world_size == 1 else layout.groups(arm)[0]

    found = _rounds(question, study, evidence.measurements, ranks)
    if not _ranks_take_turns(question):
        return found
    hosts = {one.host for arm_round in found.measured.values() for one in arm_round.ranks}
    return replace(found, slowness=slowness_of(on_hosts(peers_of(study, evidence).rounds, hosts)))


def _ranks_take_turns(question: Question) -> bool:
    """Whether the baseline is one rank after the other, of others than the one that is compared with it."""
    return question.metric.baseline == "alone" and question.world_size > 1


def rounds_by_node(question: Question, study: Study, evidence: Evidence) -> dict[str, ArmAndBaseline]:
    """The same of every node that took part in the study, by its host's name; its arms fit a node."""
    nodes = evidence.by_node.get(study.id, {})
    found = {host: _rounds(question, study, theirs, partial(ranks_on_node, theirs)) for host, theirs in nodes.items()}
    if not _ranks_take_turns(question):
        return found
    slowness = slowness_by_host(peers_of(study, evidence).rounds)
    return {host: replace(rounds, slowness=slowness.get(host, {})) for host, rounds in found.items()}


def _rounds(
    question: Question,
    study: Study,
    measurements: Sequence[Measurement],
    ranks: Callable[[Arm], Sequence[int] | None],
) -> ArmAndBaseline:
    asked = question.metric, question.workload, question.world_size, question.placement
    measured, baseline = measured_arm(*asked), baseline_arm(*asked)
    return ArmAndBaseline(
        arm_rounds(measurements, study.id, measured, ranks(measured)),
        arm_rounds(measurements, study.id, baseline, ranks(baseline)) if baseline else {},
    )


def _rounds_due(question: Question, study: Study, evidence: Evidence) -> int:
    """How many rounds there should be: all that were begun and that timed every arm in question."""
    arms = {arm.name for arm in arms_of(question)}
    timed = evidence.timed_arms.get(study.id, {})
    begun = rounds_begun(evidence.measurements, study.id)
    return sum(number not in timed or arms <= set(timed[number]) for number in begun)


def _samples(case: Case, study: Study, rounds: ArmAndBaseline, evidence: Evidence) -> list[Sample]:
    question, flops = case.question, evidence.flops_per_image.get(study.id)
    if question.metric.name == "generation_ratio":
        assert case.reference_img_per_s is not None  # the thresholds model saw to it
        return generation_ratio_samples(rounds.measured, case.reference_img_per_s)
    if question.metric.name == "model_flops_utilization":
        assert case.peak_tflops is not None  # likewise
        return model_flops_utilization_samples(rounds.measured, flops, case.peak_tflops) if flops else []
    return _plain_samples(question, study, rounds, evidence)


def _plain_samples(question: Question, study: Study, rounds: ArmAndBaseline, evidence: Evidence) -> list[Sample]:
    measured, baseline, slowness = rounds.measured, rounds.baseline, rounds.slowness
    samples: dict[str, Callable[[], list[Sample]]] = {
        "throughput_per_gpu": lambda: throughput_samples(measured),
        "weak_scaling_efficiency": lambda: efficiency_samples(measured, baseline, slowness),
        "strong_scaling_speedup": lambda: strong_speedup_samples(measured, baseline, question.world_size, slowness),
        "strong_scaling_efficiency": lambda: efficiency_samples(measured, baseline, slowness),
        "rank_uniformity": lambda: rank_uniformity_samples(measured),
        "exposed_communication": lambda: exposed_communication_samples(measured, baseline),
        "ddp_overhead": lambda: ddp_overhead_samples(measured, baseline),
        "step_time_p95": lambda: step_time_p95_samples(measured),
        "step_time_cv": lambda: step_time_cv_samples(measured),
        "device_utilization": lambda: utilization_samples(measured),
        "peak_memory_gib": lambda: peak_memory_samples(measured),
        "memory_spread": lambda: memory_spread_samples(measured),
        "images_per_joule": lambda: images_per_joule_samples(measured),
        "replica_agreement": lambda: agreement_samples(measured, evidence.seeded_checksums(study.id)),
    }
    if question.metric.name not in samples:
        raise ValueError(f"{question.metric.name} needs a number of the thresholds file")
    return samples[question.metric.name]()


def _why_no_samples(question: Question, study: Study, rounds: ArmAndBaseline) -> str:
    if not rounds.measured:
        return f"no complete round of {question.world_size} ranks in {study.id}"
    if question.metric.baseline and not rounds.baseline:
        return f"{study.id} has no complete round of the arm {question.metric.baseline} to compare with"
    return f"{question.metric.name} could not be read on every rank"
