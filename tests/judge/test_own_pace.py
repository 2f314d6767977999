"""Each rank's own pace by its forward passes, and where steps alone contradict it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.own_pace import own_pace_of, own_pace_s, pace_arm, pace_notes, study_before
from pytest_ddpscale.judge.rounds import merged
from pytest_ddpscale.judge.stragglers import find_slow_group
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.evidence import Evidence, Unread
from tests.builders.judged import ALONE_SAMPLES_PER_S, WORKLOAD, evidence_of_plan, make_case, measure, plan_of
from tests.builders.measurements import Measurement
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
    found = own_pace_s(ddp)
    assert found.shape == (FEWEST_ROUNDS, RANKS)
    np.testing.assert_allclose(found[:, 2] / found[:, 0], 1.5)
    np.testing.assert_allclose(found[:, 0], ddp.mean_step_s[:, 0] / 4)
    np.testing.assert_array_equal(own_pace_s(each), each.mean_step_s)


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


DDP4, DDP8 = (Arm("ddp", ranks, WORKLOAD.batch_size or 1) for ranks in (4, 8))
STUDY = Study("weak", WORKLOAD, (DDP4, DDP8), 16, 1.0, 1.0)
ROUNDS = 12
PLACES = [("node0", rank) for rank in range(8)]


def paced(
    pace: Callable[[int, int], float], change: Callable[[Measurement], Measurement | None] = lambda one: one
) -> Evidence:
    """Of eight ranks on a node, whose forward passes take so many times longer, by round and rank."""
    found = []
    for one in measure(STUDY, ROUNDS, ranks_per_host=8):
        changed = change(replace(one, forward_s=one.block_s / 3 * pace(one.round, one.rank)))
        found += [] if changed is None else [changed]
    return evidence_of_plan(Plan("a100", "cuda", (STUDY,), ranks_per_node=8), found)


def test_the_largest_arm_under_ddp_shows_paces() -> None:
    alone, each, spread = Arm("alone", 1, 4), Arm("each", 8, 4), Arm("ddp", 16, 4, placement="spread")
    assert pace_arm(replace(STUDY, arms=(alone, DDP4, DDP8, each, spread))) == DDP8
    assert pace_arm(replace(STUDY, arms=(alone, each))) is None


def test_paces_of_a_smaller_arm_count_where_the_largest_has_too_few_rounds() -> None:
    def without_largest(one: Measurement) -> Measurement | None:
        return None if one.arm == DDP8.name and one.round >= 3 else one

    found = own_pace_of(STUDY, paced(lambda *_: 1.0, without_largest))
    assert found is not None
    assert (found.rounds.measured.arm, len(found.rounds)) == (DDP4.name, ROUNDS)
    found = own_pace_of(STUDY, paced(lambda *_: 1.0))
    assert found is not None
    assert (found.rounds.measured.arm, len(found.rounds)) == (DDP8.name, ROUNDS)


def test_there_is_no_pace_without_any_reading() -> None:
    assert own_pace_of(STUDY, paced(lambda *_: 1.0, lambda one: replace(one, forward_s=None))) is None


def test_before_a_round_only_earlier_rounds_count() -> None:
    random = np.random.default_rng(4)
    paces = np.exp(0.01 * random.standard_normal((ROUNDS, 8)))
    found = own_pace_of(STUDY, paced(lambda number, rank: float(paces[number, rank])))
    assert found is not None
    numbers, cells = np.arange(ROUNDS), np.tile(np.arange(8), (ROUNDS, 1))
    told = found.before(numbers, PLACES, cells)
    logs = np.log(paces) - np.median(np.log(paces), axis=1, keepdims=True)
    assert np.isnan(told[0]).all()
    for number in range(1, ROUNDS):
        np.testing.assert_allclose(told[number], logs[:number].mean(axis=0), atol=1e-12)
    only = found.before(np.array([5]), PLACES[6:], np.array([[1]]))
    assert only[0, 0] == told[5, 7]
    assert np.isnan(found.before(np.array([5]), [("other", 0)], np.array([[0]]))).all()


def test_before_the_first_round_the_study_before_counts() -> None:
    found = own_pace_of(STUDY, paced(lambda _, rank: 1.2 if rank == 6 else 1.0))
    assert found is not None
    told = replace(found, earlier=found.usual).before(np.array([0, 1]), PLACES, np.tile(np.arange(8), (2, 1)))
    assert told.argmax(axis=1).tolist() == [6, 6]
    np.testing.assert_allclose(told[0, 6], np.log(1.2))


def test_a_rank_without_readings_does_not_hide_two_groups() -> None:
    def lacks(one: Measurement) -> Measurement:
        return replace(one, forward_s=None) if one.rank == 7 else one

    random = np.random.default_rng(4)
    noise = np.exp(0.001 * random.standard_normal((ROUNDS, 8)))
    found = own_pace_of(STUDY, paced(lambda number, rank: (1.04 if rank < 4 else 1.0) * noise[number, rank], lacks))
    assert found is not None
    assert [one.rank for one in find_slow_group(found.as_steps, 0.03)] != []
    assert found.usual[PLACES[0]] > 0
    assert np.isnan(found.usual[PLACES[7]])


def test_the_study_before_is_the_last_one_of_the_launch_with_paces() -> None:
    names = ("a", "b", "c", "d")
    first, alone, second, other = (replace(STUDY, workload=replace(WORKLOAD, name=name)) for name in names)
    alone, other = replace(alone, arms=(Arm("alone", 1, 4),)), replace(other, launch=2)
    studies = [first, alone, second, other]
    assert [study_before(one, studies) for one in studies] == [None, first, first, None]
