"""A simulated session in memory: measured round by round, judged after each, ended as a real one would end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_ddpscale.evidence.columns import GrowingColumns
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.results.by_rank import seeded_steps_of
from pytest_ddpscale.results.records import SeededStep
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.simulate.faults import Faults
from pytest_ddpscale.simulate.measuring import SimulatedRun, flops_per_image
from pytest_ddpscale.simulate.performance import Performance
from pytest_ddpscale.simulate.simulated_nodes import gang_of
from pytest_ddpscale.thresholds.cases import AnyCase, Case, training_cases
from pytest_ddpscale.verdict.answering_study import matching_study
from pytest_ddpscale.verdict.deciding import arms_needed, still_open
from pytest_ddpscale.verdict.judge import judge


@dataclass(frozen=True)
class DecidedStudy:
    """How a study ended.

    Attributes:
        study: as planned.
        rounds: which arms each of them timed.
        verdicts: on all requirements that it answers.
    """

    study: Study
    rounds: tuple[tuple[Arm, ...], ...]
    verdicts: tuple[Verdict, ...]


def decide(
    plan: Plan, performance: Performance, faults: Faults, cases: Sequence[AnyCase], confidence: float, seed: int
) -> Iterator[DecidedStudy]:
    """Simulate a session that stops each study once all its requirements are decided.

    Args:
        plan: what is measured.
        performance: what a sound cluster does.
        faults: what is wrong with this one.
        cases: what is judged, as far as it is about training.
        confidence: of the intervals.
        seed: of the noise.
    """
    session = _Session(SimulatedRun(plan, performance, faults, seed), plan, confidence)
    trained = training_cases(cases)
    for study in plan.studies:
        yield session.decide(study, [case for case in trained if matching_study(plan, case.question) == study])


class _Session:
    """What has been measured so far."""

    def __init__(self, run: SimulatedRun, plan: Plan, confidence: float) -> None:
        self._run = run
        self._gang = gang_of(plan)
        self._plan = plan
        self._confidence = confidence
        self._columns = GrowingColumns()
        self._columns.add_gang(self._gang)
        self._each = {(study.id, arm.name) for study in plan.studies for arm in study.arms if arm.kind == "each"}
        self._seeded: dict[str, list[SeededStep]] = {}
        self._timed: dict[str, dict[int, set[str]]] = {}

    def decide(self, study: Study, cases: Sequence[Case]) -> DecidedStudy:
        self._seeded |= seeded_steps_of([self._gang, self._run.seeded_steps(study)])
        rounds: list[tuple[Arm, ...]] = []
        timed = study.arms
        while timed and len(rounds) < study.rounds:
            self._measure(study, len(rounds), timed)
            rounds.append(timed)
            if len(rounds) >= FEWEST_ROUNDS:
                needed = arms_needed(study, still_open(cases, self._evidence(study), self._confidence))
                timed = tuple(arm for arm in timed if arm.name in needed)
        evidence = self._evidence(study)
        return DecidedStudy(study, tuple(rounds), tuple(judge(case, evidence, self._confidence) for case in cases))

    def _measure(self, study: Study, number: int, timed: Sequence[Arm]) -> None:
        names = {arm.name for arm in timed}
        for block in self._run.measure_round(study, number):
            if block.arm in names:
                self._columns.add(block)
        self._timed.setdefault(study.id, {})[number] = names

    def _evidence(self, study: Study) -> Evidence:
        # Stragglers are looked for where ranks computed by themselves; the rest would be searched in vain, again
        # and again.
        columns = self._columns.columns({(study.id, arm.name) for arm in study.arms} | self._each)
        return Evidence(self._plan, columns, {}, {study.id: flops_per_image(study)}, self._seeded, self._timed)
