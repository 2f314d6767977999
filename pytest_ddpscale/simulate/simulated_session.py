"""A simulated session in memory: measured round by round, judged after each, ended as a real one would end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.results.records import Measurement, SeededStep
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.simulate.faults import Faults
from pytest_ddpscale.simulate.measuring import SimulatedRun, flops_per_image
from pytest_ddpscale.simulate.performance import Performance
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.verdict.answering_study import matching_study
from pytest_ddpscale.verdict.deciding import arms_needed
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
    plan: Plan, performance: Performance, faults: Faults, cases: Sequence[Case], confidence: float, seed: int
) -> Iterator[DecidedStudy]:
    """Simulate a session that stops each study once all its requirements are decided.

    Args:
        plan: what is measured.
        performance: what a sound cluster does.
        faults: what is wrong with this one.
        cases: what is judged.
        confidence: of the intervals.
        seed: of the noise.
    """
    session = _Session(SimulatedRun(plan, performance, faults, seed), plan, confidence)
    for study in plan.studies:
        yield session.decide(study, [case for case in cases if matching_study(plan, case.question) == study])


class _Session:
    """What has been measured so far."""

    def __init__(self, run: SimulatedRun, plan: Plan, confidence: float) -> None:
        self._run = run
        self._plan = plan
        self._confidence = confidence
        self._measurements: dict[str, list[Measurement]] = {}
        self._seeded: dict[str, list[SeededStep]] = {}
        self._timed: dict[str, dict[int, set[str]]] = {}

    def decide(self, study: Study, cases: Sequence[Case]) -> DecidedStudy:
        self._seeded[study.id] = list(self._run.seeded_steps(study))
        self._measurements[study.id] = []
        rounds: list[tuple[Arm, ...]] = []
        timed = study.arms
        while timed and len(rounds) < study.rounds:
            self._measure(study, len(rounds), timed)
            rounds.append(timed)
            if len(rounds) >= FEWEST_ROUNDS:
                needed = arms_needed(study, cases, self._evidence(study), self._confidence)
                timed = tuple(arm for arm in timed if arm.name in needed)
        evidence = self._evidence(study)
        return DecidedStudy(study, tuple(rounds), tuple(judge(case, evidence, self._confidence) for case in cases))

    def _measure(self, study: Study, number: int, timed: Sequence[Arm]) -> None:
        names = {arm.name for arm in timed}
        measured = self._run.measure_round(study, number)
        self._measurements[study.id].extend(one for one in measured if one.arm in names)
        self._timed.setdefault(study.id, {})[number] = names

    def _evidence(self, study: Study) -> Evidence:
        # Stragglers are looked for where ranks computed by themselves; the rest would be searched in vain, again
        # and again.
        wanted = {name for name in self._measurements if name == study.id or self._has_each(name)}
        told = [measurement for name in sorted(wanted) for measurement in self._measurements[name]]
        return Evidence(self._plan, told, {}, {study.id: flops_per_image(study)}, self._seeded, self._timed)

    def _has_each(self, study_id: str) -> bool:
        study = self._plan.study(study_id)
        return study is not None and any(arm.kind == "each" for arm in study.arms)
