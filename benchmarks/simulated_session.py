"""A simulated session in memory: measured in rounds, judged after each, and ended like a real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.judge.coverage import coverage_of
from pytest_ddpscale.judge.judge import Decider, judge
from pytest_ddpscale.judge.links import slow_links
from pytest_ddpscale.judge.outcome import RunFacts, conclude
from pytest_ddpscale.judge.values import matching_study
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.report.words.reasons import say, worded
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.evidence import Evidence, evidence_of
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.run.verdicts import Culprit, RunOutcome, Verdict
from pytest_ddpscale.simulate.cluster import SimulatedCluster
from pytest_ddpscale.simulate.machine import Performance
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.writing import after_training, before_measuring, gang_of, measured, telemetry_of_turns
from pytest_ddpscale.thresholds.cases import AnyCase, training_cases


def of_cluster(performance: Performance, seed: int) -> Performance:
    """The same performance on other nodes and GPUs of that kind, whose differences follow from the seed."""
    return replace(performance, spread=replace(performance.spread, seed=seed))


@dataclass(frozen=True)
class DecidedStudy:
    """A finished study: the arms that each round timed, and the verdicts on all requirements that it decides."""

    study: Study
    rounds: tuple[tuple[Arm, ...], ...]
    verdicts: tuple[Verdict, ...]


def decide(run: SimulatedRun, cases: Sequence[AnyCase], confidence: float) -> list[DecidedStudy]:
    """Simulate a session that stops each study once all training requirements on it are decided."""
    plan, records = run.plan, list[AnyRecord]()
    rounds = _train(run, Decider(plan, cases, confidence), records)
    evidence = replace(evidence_of(plan, None, records), goes_on=True)  # telemetry is read later
    verdicts: dict[str, list[Verdict]] = {study.id: [] for study in plan.studies}
    for case in training_cases(cases):
        answering = matching_study(plan, case.question)
        if answering is not None:
            verdicts[answering.id].append(worded(judge(case, evidence, confidence)))
    return [DecidedStudy(study, tuple(rounds[study.id]), tuple(verdicts[study.id])) for study in plan.studies]


def decide_all(run: SimulatedRun, cluster: SimulatedCluster, confidence: float) -> tuple[Verdict, ...]:
    """Verdicts of such a session on all requirements, including node checks, probes and pairs of nodes.

    Comparisons with earlier runs are left out, because there are none.
    """
    return tuple(_judge_all(run, cluster, confidence)[0].values())


def conclude_all(
    run: SimulatedRun, cluster: SimulatedCluster, confidence: float
) -> tuple[RunOutcome, str, tuple[Verdict, ...]]:
    """The outcome of such a session as if it had measured a machine, its reason, and the verdicts of `decide_all`."""
    outcome, reason, verdicts, _ = conclude_with_links(run, cluster, confidence)
    return outcome, reason, verdicts


def conclude_with_links(
    run: SimulatedRun, cluster: SimulatedCluster, confidence: float
) -> tuple[RunOutcome, str, tuple[Verdict, ...], list[Culprit]]:
    """As `conclude_all`, and the nodes and links that the search among nodes names: see `slow_links`."""
    verdicts, cases, evidence = _judge_all(run, cluster, confidence)
    coverage = coverage_of(evidence, cases, verdicts, {}, run.plan.layout.ranks_per_node)
    found, links = tuple(verdicts.values()), slow_links(evidence)
    facts = RunFacts(found, len(found), coverage=coverage, slow_links=[say(one.because) for one in links])
    outcome, why, _ = conclude(facts)
    return outcome, say(why), found, links


def _judge_all(
    run: SimulatedRun, cluster: SimulatedCluster, confidence: float
) -> tuple[dict[str, Verdict], list[AnyCase], Evidence]:
    plan, expectation = run.plan, cluster.expectation(run.plan)
    probes = [] if plan.probes is None else measured(run, plan.probes)
    records: list[AnyRecord] = [*before_measuring(run, cluster), *probes]
    _train(run, Decider(plan, cluster.cases, confidence), records)
    records += after_training(run, cluster)
    said = [
        telemetry_of_turns([record], expectation, run.faults)
        for record in records
        if cluster.is_watched and isinstance(record, Block)
    ]
    evidence = evidence_of(plan, None, [*records, *said])
    asked = [one for one in cluster.cases if one.requirement.definition.subject != "node"]
    return {case.id: worded(judge(case, evidence, confidence)) for case in asked}, asked, evidence


def _train(run: SimulatedRun, decider: Decider, records: list[AnyRecord]) -> dict[str, list[tuple[Arm, ...]]]:
    """Measure until all requirements are decided, and append the records. Returns the arms that each round timed."""

    def hear(*heard: AnyRecord) -> None:
        for record in heard:
            decider.hear(record)
            records.append(record)

    if not any(isinstance(record, GangRecord) for record in records):
        records.append(gang_of(run.plan))
    for record in records:
        decider.hear(record)
    rounds: dict[str, list[tuple[Arm, ...]]] = {study.id: [] for study in run.plan.studies}
    for study in run.plan.studies:
        hear(*run.before_rounds(study))
        done, timed = rounds[study.id], study.arms
        while timed and len(done) < study.rounds:
            hear(*run.measure_round(study, len(done), timed))
            done.append(timed)
            needed = decider.needed_arms(study.id)
            timed = tuple(arm for arm in timed if arm.name in needed)
    return rounds
