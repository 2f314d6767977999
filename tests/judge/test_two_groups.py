"""Two groups of ranks are told apart, and noise makes none."""

from __future__ import annotations

import random

import pytest

from pytest_ddpscale.judge import stragglers
from pytest_ddpscale.judge.rounds import NO_ROUNDS, ArmRounds
from pytest_ddpscale.judge.stragglers import Straggler
from tests.judge.test_stragglers import LIMIT, devices, noisy, ranks, rounds_of

# Of a round on a GPU that shares its node with a busy host: enough for the deviation of the others to swallow 10 %.
NOISE = 0.01


def find_slow_group(measured: ArmRounds, limit: float = LIMIT) -> list[Straggler]:
    return stragglers.find_slow_group(measured, limit)


@pytest.mark.parametrize(("nodes", "per_host"), [(4, 1), (4, 2), (2, 8), (4, 8)])
def test_half_of_the_nodes_are_one_group_and_the_others_are_named(nodes: int, per_host: int) -> None:
    size = nodes * per_host
    slow = range(size // 2, size)
    factors = [1.1 if rank in slow else 1.0 for rank in range(size)]
    measured = noisy(factors, NOISE, seed=3, per_host=per_host)
    found = find_slow_group(measured)
    assert sorted(ranks(found)) == list(slow)
    assert all(straggler.ambiguous for straggler in found)
    assert {straggler.others for straggler in found} == {", ".join(f"node{i}" for i in range(nodes // 2))}
    assert found[0].ratio == pytest.approx(1.1, rel=0.03)


def test_two_of_four_gpus_of_a_node_are_told_by_their_ranks() -> None:
    found = find_slow_group(noisy([1.0, 1.1, 1.0, 1.1], NOISE, seed=1))
    assert devices(sorted(found, key=lambda one: one.rank)) == ["GPU-1", "GPU-3"]
    assert found[0].culprit.evidence.endswith("× the median of 2 peers (ranks 0, 2) in 9 of 9 rounds")


def test_a_majority_may_be_the_slow_one_and_a_minority_is_for_certain() -> None:
    most, few = (find_slow_group(noisy([1.0] * (8 - k) + [1.1] * k, NOISE, seed=2)) for k in (5, 3))
    assert (len(most), {one.ambiguous for one in most}) == (5, {True})
    assert (len(few), {one.ambiguous for one in few}) == (3, {False})


@pytest.mark.parametrize(
    "factors",
    [[1.0] * 8, [1.0] * 7 + [1.3], [1.0, 1.3, 1.3], [1.0, 1.3], [1 + 0.02 * rank for rank in range(8)]],
    ids=["all alike", "one of eight", "two of three", "one of two", "an even spread"],
)
def test_what_is_no_two_groups_names_nobody(factors: list[float]) -> None:
    assert find_slow_group(noisy(factors, 0.001, seed=7)) == []


@pytest.mark.parametrize(
    ("ratio", "limit", "certain"), [(1.029, 0.05, None), (1.031, 0.05, False), (1.051, 0.05, True), (1.051, 0.10, None)]
)
def test_groups_are_told_from_a_part_of_the_limit_and_accused_beyond_it(
    ratio: float, limit: float, certain: bool | None
) -> None:
    found = find_slow_group(rounds_of(*[[0.1] * 5 + [0.1 * ratio] * 3] * 6), limit)
    assert {not one.ambiguous for one in found} == (set() if certain is None else {certain})


def test_what_slows_all_ranks_in_some_rounds_parts_nobody_and_hides_nothing() -> None:
    rows = [[0.1 * pace * factor for factor in (1.0, 1.0, 1.1, 1.1)] for pace in (1, 2, 1, 3, 1, 1)]
    assert sorted(ranks(find_slow_group(rounds_of(*rows)))) == [2, 3]
    others = [[0.1 * pace] * 4 for pace in (1, 2, 1, 3, 1, 1)]
    assert find_slow_group(rounds_of(*others)) == []


def test_few_rounds_name_nobody() -> None:
    row = [0.1, 0.1, 0.2, 0.2]
    assert find_slow_group(rounds_of(*[row] * 4)) == []
    assert len(find_slow_group(rounds_of(*[row] * 5))) == 2
    assert find_slow_group(NO_ROUNDS) == []


@pytest.mark.parametrize(("size", "noise"), [(4, 0.12), (8, 0.03), (16, 0.003), (16, 0.12)])
def test_noise_alone_makes_two_groups_in_one_run_of_a_hundred_at_most(size: int, noise: float) -> None:
    """Noise of each rank, half of which stays from round to round, as that of a neighbour does."""
    runs = 200
    false = sum(bool(find_slow_group(rounds_of(*correlated(size, noise, seed)))) for seed in range(runs))
    assert false <= 0.02 * runs


def correlated(size: int, noise: float, seed: int, rho: float = 0.5) -> list[list[float]]:
    """Step times of six rounds."""
    source = random.Random(seed)
    state, rows = [source.gauss(0, noise) for _ in range(size)], []
    for _ in range(6):
        state = [rho * one + (1 - rho**2) ** 0.5 * source.gauss(0, noise) for one in state]
        rows.append([0.1 * max(0.2, 1 + one) for one in state])
    return rows
