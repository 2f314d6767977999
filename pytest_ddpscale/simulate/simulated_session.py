"""A simulated session in memory: measured round by round, judged after each, ended as a real one would end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpscale.evidence.columns import columns_of
from pytest_ddpscale.evidence.evidence import evidence_of
from pytest_ddpscale.plan.study import Arm, Study
from pytest_ddpscale.results.record_lines import AnyRecord
from pytest_ddpscale.results.records import Block
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_nodes import gang_of
from pytest_ddpscale.thresholds.cases import AnyCase, training_cases
from pytest_ddpscale.verdict.answering_study import matching_study
from pytest_ddpscale.verdict.deciding import Decider
from pytest_ddpscale.verdict.judge import judge


@dataclass(frozen=True)
class DecidedStudy:
    """How a study ended: which arms each of its rounds timed, and the verdicts on all requirements that it answers."""

    study: Study
    rounds: tuple[tuple[Arm, ...], ...]
    verdicts: tuple[Verdict, ...]


def decide(
    run: SimulatedRun, cases: Sequence[AnyCase], confidence: float, family_confidence: float | None = None
) -> list[DecidedStudy]:
    """Simulate a session that stops each study once all requirements on training that it answers are decided."""
    plan, decider = run.plan, Decider(run.plan, cases, confidence, family_confidence)
    records: list[AnyRecord] = []

    def hear(*heard: AnyRecord) -> None:
        for record in heard:
            decider.hear(record)
            records.append(record)

    gang = gang_of(plan)
    hear(gang)
    rounds: dict[str, list[tuple[Arm, ...]]] = {study.id: [] for study in plan.studies}
    for study in plan.studies:
        hear(*run.before_rounds(study))
        done, timed = rounds[study.id], study.arms
        while timed and len(done) < study.rounds:
            hear(*run.measure_round(study, len(done), timed))
            done.append(timed)
            needed = decider.needed_arms(study.id)
            timed = tuple(arm for arm in timed if arm.name in needed)
    columns = columns_of((record for record in records if isinstance(record, Block)), [gang])
    evidence = evidence_of(plan, columns, records)
    verdicts: dict[str, list[Verdict]] = {study.id: [] for study in plan.studies}
    for case in training_cases(cases):
        answering = matching_study(plan, case.question)
        if answering is not None:
            verdicts[answering.id].append(judge(case, evidence, confidence))
    return [DecidedStudy(study, tuple(rounds[study.id]), tuple(verdicts[study.id])) for study in plan.studies]
