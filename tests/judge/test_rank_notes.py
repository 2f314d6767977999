"""Ranks that are somewhat slow, or at times, are told in notes of the run; nobody else is."""

from __future__ import annotations

from collections.abc import Callable

from pytest_ddpscale.judge.rank_notes import rank_notes
from pytest_ddpscale.plan.arm import Arm
from tests.builders.judged import ALONE_SAMPLES_PER_S, evidence_of_plan, make_case, measure, plan_of

ROUNDS = 12


def notes(slowness: Callable[[int, int], float], rounds: int = ROUNDS) -> list[str]:
    """Of four ranks; `slowness` of round and rank."""
    plan = plan_of([make_case("rank_uniformity", 1.1, world_size=4)], "cuda", rounds)

    def samples_per_s(arm: Arm, number: int, rank: int) -> float:
        return ALONE_SAMPLES_PER_S / slowness(number, rank)

    found = [one for study in plan.studies for one in measure(study, rounds, samples_per_s, 2)]
    return rank_notes(evidence_of_plan(plan, found))


def test_a_rank_that_is_four_per_cent_slow_is_to_be_looked_at() -> None:
    assert notes(lambda number, rank: 1.04 if rank == 3 else 1.0) == [
        "look at rank 3 on node1, 1.04× (1.04 … 1.04×) the median of 3 peers: it is slower without communication, "
        "by too little to be named"
    ]


def test_a_rank_that_became_slow_is_told() -> None:
    assert notes(lambda number, rank: 1.2 if rank == 3 and number >= 6 else 1.0) == [
        "slow at times: rank 3 on node1, 1.20× the median of 3 peers in the last 6 of 12 rounds"
    ]


def test_nothing_is_said_of_ranks_that_are_alike_or_named_anyway() -> None:
    assert notes(lambda number, rank: 1.0) == []
    assert notes(lambda number, rank: 1.2 if rank == 3 else 1.0) == []
