"""Each rank's own pace by its forward passes, and where steps alone contradict it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.own_pace import forward_step_s, pace_notes
from pytest_ddpscale.judge.rounds import merged
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.evidence import Evidence, Unread
from tests.builders.judged import ALONE_SAMPLES_PER_S, evidence_of_plan, make_case, measure, plan_of
from tests.rows import rows

RANKS = 4
Slowness = Callable[[int], float]


def evidence_of(
    by_steps: Slowness, by_passes: Slowness | None, rounds: int = FEWEST_ROUNDS, noise: float = 0.003
) -> Evidence:
    """Of four ranks that are so many times slower by their steps alone and by their forward passes."""
    plan = plan_of([make_case("throughput_per_gpu", 0.9, RANKS)], rounds=rounds)
    (study,), rng = plan.studies, np.random.default_rng(5)
    found = []
    for one in measure(study, rounds, lambda arm, *_: ALONE_SAMPLES_PER_S):
        changes = rng.normal(1, noise, 2)
        if one.arm.startswith("each"):
            slower = by_steps(one.rank) * float(changes[0])
            steps = tuple(step_s * slower for step_s in one.step_s)
            one = replace(one, step_s=steps, block_s=one.block_s * slower)
        elif by_passes is not None:
            one = replace(one, forward_s=one.block_s / 4 * by_passes(one.rank) * float(changes[1]))
        found.append(one)
    return evidence_of_plan(plan, found)


def slow(ratio: float) -> Slowness:
    return lambda rank: ratio if rank == 2 else 1.0


def test_forward_passes_are_seconds_of_a_step_where_there_are_any() -> None:
    evidence = evidence_of(slow(1.0), slow(1.5), noise=0.0)
    (study,) = evidence.plan.studies
    ddp, each = (
        merged(evidence.columns, study.id, arm, evidence.plan.layout)
        for kind in ("ddp", "each")
        for arm in study.arms
        if arm.kind == kind
    )
    found = forward_step_s(ddp)
    assert found.shape == (FEWEST_ROUNDS, RANKS)
    np.testing.assert_allclose(found[:, 2] / found[:, 0], 1.5)
    np.testing.assert_allclose(found[:, 0], ddp.mean_step_s[:, 0] / 4)
    assert np.isnan(forward_step_s(each)).all()


@rows("slower", [1.0, 1.04, 1.5])
def test_paces_that_agree_are_not_worth_a_note(slower: float) -> None:
    assert pace_notes(evidence_of(slow(slower), slow(slower))) == []


def test_paces_less_than_a_point_apart_are_not_worth_a_note() -> None:
    assert pace_notes(evidence_of(slow(1.0), slow(1.008), noise=0.0005)) == []


def test_paces_that_clearly_differ_are_noted_by_rank() -> None:
    (note,) = pace_notes(evidence_of(slow(1.0), slow(1.05), noise=0.0001))
    assert note == (
        "own pace uncertain in weak/r, by forward passes in ddp@4 and by steps in each@4: "
        "rank 2 on node2 1.050× and 1.000× the median rank"
    )


def test_a_rank_that_is_slow_in_its_steps_only_is_noted_too() -> None:
    (note,) = pace_notes(evidence_of(slow(1.05), slow(1.0), noise=0.0001))
    assert "rank 2 on node2 1.000× and 1.050× the median rank" in note


def test_a_difference_within_the_noise_is_not_noted() -> None:
    assert pace_notes(evidence_of(slow(1.0), slow(1.02), noise=0.03)) == []


def test_too_few_rounds_or_no_reading_say_nothing() -> None:
    assert pace_notes(evidence_of(slow(1.0), slow(1.2), rounds=4, noise=0.0001)) == []
    assert pace_notes(evidence_of(slow(1.2), None)) == []


def test_an_expected_reading_that_is_missing_is_noted() -> None:
    unread = Unread("weak/r", "ddp@4", "forward_s", "n1", 3, "hooks saw nothing", 24)
    assert pace_notes(replace(evidence_of(slow(1.0), None), unread=(unread,))) == [
        "no own pace in 24 rank blocks of ddp@4 of weak/r, the first of rank 3 on n1: hooks saw nothing"
    ]
