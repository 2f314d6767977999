"""Training in one stretch against the rounds after it: what it shows, and which requirements it changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from msgspec import structs

from pytest_ddpscale.calibrate.node_values import node_values
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.sustained import sustained_loads, sustained_notes
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.report.charts import About
from pytest_ddpscale.report.figures import paces
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.block import read_steps, step_bytes
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.records import RankStretch, Sustained
from tests.builders.judged import (
    ALONE_SAMPLES_PER_S,
    CONFIDENCE,
    evidence_of_plan,
    make_case,
    make_measurement,
    plan_of,
)

CASE = make_case("throughput_per_gpu", 95.0, 2)
WEAK = make_case("weak_scaling_efficiency", 0.95, 2)


def run(
    *losses: float, stretch_s: float = 120.0, rounds: int = 16, noise: float = 0.003, batch_size: int = 4
) -> tuple[Study, Evidence]:  # fmt: skip
    """Rounds of two ranks on each node at 100 img/s each, and a stretch that falls by the node's loss within 20 s."""
    chance = random.Random(1)
    plan = plan_of([CASE, WEAK])
    arms = tuple(replace(arm, batch_size=batch_size) for arm in plan.studies[0].arms)
    study = replace(plan.studies[0], arms=arms, sustained_s=stretch_s, stretched_ranks=2, turns=1)
    plan = replace(plan, studies=(study,), nodes=len(losses), ranks_per_node=2)
    arm = study.stretched
    assert arm is not None
    pace = {node: ALONE_SAMPLES_PER_S * (1 + noise * chance.gauss(0, 1)) for node in range(len(losses) * rounds)}
    measured = [
        make_measurement(
            study.id, arm, number, 2 * node + rank, pace[node * rounds + number], host=f"n{node}", local_rank=rank
        )
        for number in range(rounds)
        for arm in study.arms
        for node in range(len(losses))
        for rank in range(arm.world_size)
    ]
    ranks = []
    for node, loss in enumerate(losses):
        steps, at_s = list[float](), 0.0
        while at_s < stretch_s:
            step_s = arm.batch_size / ALONE_SAMPLES_PER_S / (1 - loss * min(1, at_s / 20))
            steps.append(step_s * (1 + noise * chance.gauss(0, 1)))
            at_s += steps[-1]
        ranks += [RankStretch(rank=2 * node, step_s=step_bytes(steps)), RankStretch(rank=2 * node + 1)]
    said = Sustained(study=study.id, arm=arm.name, gang=0, ranks=tuple(ranks))
    return study, replace(evidence_of_plan(plan, measured), sustained={study.id: said})


@pytest.mark.parametrize(
    ("loss", "ratio", "counts"),
    [(0.0, 1.0, False), (-0.01, 1.01, False), (0.003, 0.997, False), (0.03, 0.97, True), (0.5, 0.5, True)],
)
def test_the_end_of_a_stretch_is_compared_with_the_rounds(loss: float, ratio: float, counts: bool) -> None:
    study, evidence = run(loss)
    [found] = sustained_loads(evidence, study)
    assert found.ratio == pytest.approx(ratio, rel=0.002)
    low, high = found.interval
    assert low < ratio < high < 1.01 * low
    assert found.counts is counts
    assert 57 <= len(found.times_s) <= 60
    assert found.times_s[-1] == pytest.approx(119, abs=1)
    [note] = sustained_notes(evidence)
    begins = f"the last 30 s of {found.times_s[-1]:.0f} s of weak/r in one stretch reach "
    assert say(note).startswith(f"{begins}{100 * found.ratio:.1f} % of the pace of the rounds (")
    assert say(note).endswith("judged times that") is counts


@pytest.mark.parametrize(("loss", "outcome"), [(0.0, "passed"), (0.003, "passed"), (0.03, "passed"), (0.08, "failed")])
def test_throughput_is_judged_at_the_pace_of_the_stretch(loss: float, outcome: str) -> None:
    study, evidence = run(loss)
    [found], verdict = sustained_loads(evidence, study), judge(CASE, evidence, CONFIDENCE)
    pace = ALONE_SAMPLES_PER_S * (found.ratio if found.counts else 1.0)
    assert verdict.value == pytest.approx(pace, rel=0.002)
    assert verdict.outcome == outcome
    alone = judge(CASE, replace(evidence, sustained={}), CONFIDENCE)
    assert verdict.interval is not None
    assert alone.interval is not None
    widths = [high / low for low, high in (verdict.interval, alone.interval)]
    assert (widths[0] > widths[1]) is found.counts, "it has an error of its own"
    assert judge(WEAK, evidence, CONFIDENCE) == judge(WEAK, replace(evidence, sustained={}), CONFIDENCE)


def test_calibration_rests_on_the_values_that_are_judged() -> None:
    _, evidence = run(0.03)
    judged = judge(CASE, evidence, CONFIDENCE)
    assert node_values(CASE, evidence)["n0"].value == pytest.approx(judged.value)


def test_steps_that_are_longer_than_a_part_are_compared_too() -> None:
    study, evidence = run(0.03, batch_size=250)
    [found] = sustained_loads(evidence, study)
    assert found.ratio == pytest.approx(0.97, rel=0.003)
    assert paces(About("sustained", "Pace"), evidence) is not None


def test_where_the_bound_is_nearer_than_the_ratio_is_sure_nothing_passes() -> None:
    _, evidence = run(0.05)
    assert judge(CASE, evidence, CONFIDENCE).outcome == "inconclusive"


@pytest.mark.parametrize(("stretch_s", "rounds"), [(12.0, 16), (120.0, 7)])
def test_what_is_too_short_shows_nothing(stretch_s: float, rounds: int) -> None:
    study, evidence = run(0.05, stretch_s=stretch_s, rounds=rounds)
    assert sustained_loads(evidence, study) == []
    nothing = "weak/r was not trained in one stretch that could be compared: what heat costs at full load is not seen"
    assert [*map(say, sustained_notes(evidence))] == [nothing]
    study, evidence = run(0.05)
    assert [*map(say, sustained_notes(replace(evidence, sustained={})))] == [nothing]


def test_a_stall_in_the_stretch_is_no_heat() -> None:
    study, evidence = run(0.0)
    [first, other] = evidence.sustained[study.id].ranks
    steps_s = read_steps(first.step_s)
    steps_s[-200] += 17.0
    said = structs.replace(
        evidence.sustained[study.id], ranks=(structs.replace(first, step_s=step_bytes(steps_s)), other)
    )
    evidence = replace(evidence, sustained={study.id: said})
    [found] = sustained_loads(evidence, study)
    assert found.ratio == pytest.approx(1.0, rel=0.003)
    assert judge(CASE, evidence, CONFIDENCE).outcome == "passed"


def test_each_node_is_judged_by_its_own_stretch_and_the_slowest_is_told() -> None:
    study, evidence = run(0.0, 0.08, 0.001)
    found = sustained_loads(evidence, study)
    assert [[*one.hosts] for one in found] == [["n1"], ["n2"], ["n0"]]
    verdict = judge(CASE, evidence, CONFIDENCE)
    assert (verdict.outcome, verdict.place) == ("failed", "n1")
    assert [(culprit.host, culprit.kind, culprit.is_certain) for culprit in verdict.culprits] == [("n1", "node", True)]
    [note] = sustained_notes(evidence)
    assert ", the slowest node: the paces" in say(note)
    assert " on n1" in say(note)
