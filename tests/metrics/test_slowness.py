"""How much slower each rank is than a typical one."""

from __future__ import annotations

import pytest

from pytest_ddpscale.metrics.rounds import ArmRound, Rounds
from pytest_ddpscale.metrics.samples import efficiency_samples
from pytest_ddpscale.metrics.slowness import slowness_by_host, slowness_of
from pytest_ddpscale.plan.study import Arm
from pytest_ddpscale.results.records import Measurement
from tests.verdict.sample import make_measurement, with_steps

EACH, ALONE = Arm("each", 4, 4), Arm("alone", 1, 4)


def rounds(*step_s: tuple[float, ...], per_host: int = 4, arm: Arm = EACH) -> Rounds:
    return {
        number: ArmRound(number, tuple(block(arm, number, rank, step, per_host) for rank, step in enumerate(steps)))
        for number, steps in enumerate(step_s)
    }


def block(arm: Arm, number: int, rank: int, step_s: float, per_host: int = 4) -> Measurement:
    host, local_rank = f"n{rank // per_host}", rank % per_host
    return with_steps(make_measurement("weak/r", arm, number, rank, host=host, local_rank=local_rank), [step_s] * 4)


def test_a_slow_rank_is_as_slow_as_it_is_whatever_a_round_was_like() -> None:
    found = slowness_of(rounds((1.0, 1.0, 1.1, 1.0), (2.0, 2.0, 2.2, 2.0)))
    assert found == pytest.approx({("n0", 0): 1.0, ("n0", 1): 1.0, ("n0", 2): 1.1, ("n0", 3): 1.0})


def test_of_two_the_faster_one_is_typical() -> None:
    assert slowness_of(rounds((1.2, 1.0))) == pytest.approx({("n0", 0): 1.2, ("n0", 1): 1.0})


def test_ranks_of_a_host_are_compared_with_each_other() -> None:
    found = slowness_by_host(rounds((1.0, 1.1, 2.0, 2.0), per_host=2))
    assert found == {
        "n0": pytest.approx({("n0", 0): 1.0, ("n0", 1): 1.1}),
        "n1": pytest.approx({("n1", 0): 1.0, ("n1", 1): 1.0}),
    }


def test_without_rounds_nobody_is_known() -> None:
    assert slowness_of({}) == {}


def test_a_rank_alone_counts_as_a_typical_one() -> None:
    many = rounds((1.1,) * 4, (1.1,) * 4)
    turns = {n: ArmRound(n, (block(ALONE, n, rank, step),)) for n, rank, step in ((0, 0, 1.0), (1, 2, 1.1))}
    slowness = slowness_of(rounds((1.0, 1.0, 1.1, 1.0)))
    assert [s.value for s in efficiency_samples(many, turns, slowness)] == pytest.approx([1 / 1.1] * 2)
    assert [s.value for s in efficiency_samples(many, turns)] == pytest.approx([1 / 1.1, 1.0])
