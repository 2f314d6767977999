"""The rounds that answer a question: of all ranks together, or of each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pytest_ddpscale.judge.answering_study import matching_study
from pytest_ddpscale.judge.culprits import RankComparison
from pytest_ddpscale.judge.per_place import PerPlace, of_nodes
from pytest_ddpscale.judge.rounds import NO_ROUNDS, ArmRounds, arm_rounds, node_rounds, on_hosts, rows_of_nodes
from pytest_ddpscale.judge.samples import MeasuredArms
from pytest_ddpscale.judge.slowness import Slowness, slowness_of, slowness_within_hosts
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.per_round import PerRound, Sample
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence

ALL_RANKS = "all ranks"  # the only place of a question on all ranks together


def samples_of(question: Question, evidence: Evidence) -> list[Sample]:
    """Per-round values of a question's metric, in its unit, launch by launch; empty if it was not measured.

    If each node is judged alone, the worst node's value of each round.

    Raises:
        ValueError: the metric needs a number from the thresholds file.
    """
    if question.metric.takes_sku:
        raise ValueError(f"{question.metric.name} needs a number from the thresholds file")
    return [sample for launch in evidence.launches for sample in _samples_of_launch(question, launch)]


def _samples_of_launch(question: Question, evidence: Evidence) -> list[Sample]:
    metric, study = question.metric, matching_study(evidence.plan, question)
    if study is None:
        return []
    samples = {place: list(values) for place, values in values_of(question, study, evidence).items()}
    if ALL_RANKS in samples:
        return samples[ALL_RANKS]
    return worst_per_round(list(samples.values()), metric) if len(samples) >= evidence.plan.nodes else []


def worst_per_round(samples: Sequence[Sequence[Sample]], metric: Metric) -> list[Sample]:
    """The worst value of each round over several nodes, for the rounds that all nodes have."""
    worst = max if metric.upper_bound else min
    return [worst(of_round, key=lambda sample: sample.value) for of_round in zip(*samples, strict=False)]


def rounds_of(question: Question, study: Study, evidence: Evidence) -> MeasuredArms:
    """The complete rounds that answer a question; with several nodes, those of the group with rank 0."""
    layout = evidence.plan.layout

    def ranks(arm: Arm) -> Sequence[int] | None:
        is_planned = arm.world_size <= layout.world_size
        if layout.nodes == 1 or not is_planned:
            return None
        return range(layout.ranks_per_node) if layout.takes_turns(arm) else layout.groups(arm)[0]

    def rounds(arm: Arm) -> ArmRounds:
        return arm_rounds(evidence.columns, study.id, arm, ranks(arm))

    measured, baseline = question.measured, question.baseline
    compared = rounds(baseline) if baseline else NO_ROUNDS
    found = _of_arms(question, study, evidence, rounds(measured), compared)
    if not _ranks_take_turns(question):
        return found
    hosts = found.measured.ranks.by_host.keys()
    return replace(found, slowness=slowness_of(on_hosts(RankComparison(study, evidence).rounds, hosts)))


def _ranks_take_turns(question: Question) -> bool:
    """Whether the baseline is measured by one rank after the other, while several ranks are compared with it."""
    return question.metric.baseline == "alone" and question.world_size > 1


class RowsByNode(NamedTuple):
    """Measurements of several nodes, with rows for each node.

    Attributes:
        hosts: host of each node.
        arms: input of metrics.
    """

    hosts: Sequence[str]
    arms: MeasuredArms


def rows_by_node(question: Question, study: Study, evidence: Evidence) -> list[RowsByNode]:
    """The complete rounds of each node that answer a question whose arms fit a node."""
    arms = [arm for arm in (question.measured, question.baseline) if arm]
    slowness = _within_hosts(question, study, evidence)
    found = []
    for hosts, (measured, *compared) in rows_of_nodes(evidence.columns, study.id, arms):
        one = _of_arms(question, study, evidence, measured, compared[0] if compared else NO_ROUNDS)
        found.append(RowsByNode(hosts, replace(one, slowness=slowness)))
    return found


def node_of(question: Question, study: Study, evidence: Evidence, host: str) -> MeasuredArms:
    """The complete rounds of one host."""
    measured, baseline = question.measured, question.baseline
    compared = node_rounds(evidence.columns, study.id, baseline, host) if baseline else NO_ROUNDS
    found = _of_arms(question, study, evidence, node_rounds(evidence.columns, study.id, measured, host), compared)
    return replace(found, slowness=_within_hosts(question, study, evidence))


def _within_hosts(question: Question, study: Study, evidence: Evidence) -> Slowness:
    """Slowness of the ranks that take turns, compared with those of their own host; empty if none do."""
    if not _ranks_take_turns(question):
        return {}
    key = ("slowness", study.id)
    found: Slowness = evidence.once(key, lambda: slowness_within_hosts(RankComparison(study, evidence).rounds))
    return found


def _of_arms(
    question: Question, study: Study, evidence: Evidence, measured: ArmRounds, compared: ArmRounds
) -> MeasuredArms:
    return MeasuredArms(
        measured,
        compared,
        question.world_size,
        flops_per_sample=evidence.flops_per_sample.get(study.id),
        seeded_checksums=evidence.seeded_checksums(study.id),
    )


def values_of(
    question: Question, study: Study, evidence: Evidence, reference: float | None = None, peak: float | None = None
) -> Mapping[str, PerRound]:
    """Per-round values of a question's metric, by host if each node is judged alone, else under `ALL_RANKS`.

    Args:
        question: its metric, workload and number of ranks.
        study: the one that answers it.
        evidence: of one launch.
        reference: `MeasuredArms.reference`.
        peak: `MeasuredArms.peak`.
    """
    if evidence.plan.layout.judged_by_node(question.arms):
        return values_of_nodes(question, study, evidence, reference, peak)
    rounds = replace(rounds_of(question, study, evidence), reference=reference, peak=peak)
    return {ALL_RANKS: question.metric.samples_of(rounds)}


def values_of_nodes(
    question: Question, study: Study, evidence: Evidence, reference: float | None = None, peak: float | None = None
) -> PerPlace[str]:
    """`values_of` by host, of a question whose arms fit a node."""
    found = []
    for one in rows_by_node(question, study, evidence):
        rows = replace(one.arms, reference=reference, peak=peak)
        found.append((one.hosts, question.metric.samples_of(rows)))
    return of_nodes(found)
