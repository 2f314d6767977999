"""How much slower each rank is than a typical one."""

from __future__ import annotations

import pytest

from pytest_ddpscale.judge.rounds import NO_ROUNDS, ArmRounds
from pytest_ddpscale.judge.samples import MeasuredArms
from pytest_ddpscale.judge.slowness import slowness_of, slowness_within_hosts
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import WEAK_SCALING_EFFICIENCY
from tests.builders.judged import make_measurement, with_steps
from tests.builders.measurements import Measurement
from tests.builders.rounds import rounds_of

EACH, ALONE = Arm("each", 4, 4), Arm("alone", 1, 4)


def rounds(*step_s: tuple[float, ...], per_host: int = 4, arm: Arm = EACH) -> ArmRounds:
    times = [(n, rank, step) for n, steps in enumerate(step_s) for rank, step in enumerate(steps)]
    return rounds_of([block(arm, n, rank, step, per_host) for n, rank, step in times])


def block(arm: Arm, number: int, rank: int, step_s: float, per_host: int = 4) -> Measurement:
    host, local_rank = f"n{rank // per_host}", rank % per_host
    return with_steps(make_measurement("weak/r", arm, number, rank, host=host, local_rank=local_rank), [step_s] * 4)


def test_a_slow_rank_is_as_slow_as_it_is_whatever_a_round_was_like() -> None:
    found = slowness_of(rounds((1.0, 1.0, 1.1, 1.0), (2.0, 2.0, 2.2, 2.0)))
    assert found == pytest.approx({("n0", 0): 1.0, ("n0", 1): 1.0, ("n0", 2): 1.1, ("n0", 3): 1.0})


def test_of_two_the_faster_one_is_typical() -> None:
    assert slowness_of(rounds((1.2, 1.0))) == pytest.approx({("n0", 0): 1.2, ("n0", 1): 1.0})


def test_ranks_of_a_host_are_compared_with_each_other() -> None:
    found = slowness_within_hosts(rounds((1.0, 1.1, 2.0, 2.0), per_host=2))
    assert found == pytest.approx({("n0", 0): 1.0, ("n0", 1): 1.1, ("n1", 0): 1.0, ("n1", 1): 1.0})


def test_without_rounds_nobody_is_known() -> None:
    assert slowness_of(NO_ROUNDS) == {}


def test_a_rank_alone_counts_as_a_typical_one() -> None:
    many = rounds((1.1,) * 4, (1.1,) * 4)
    turns = rounds_of([block(ALONE, n, rank, step) for n, rank, step in ((0, 0, 1.0), (1, 2, 1.1))])
    slowness = slowness_of(rounds((1.0, 1.0, 1.1, 1.0)))
    assert [
        s.value for s in WEAK_SCALING_EFFICIENCY.samples_of(MeasuredArms(many, turns, 4, slowness))
    ] == pytest.approx([1 / 1.1] * 2)
    assert [s.value for s in WEAK_SCALING_EFFICIENCY.samples_of(MeasuredArms(many, turns, 4))] == pytest.approx(
        [1 / 1.1, 1.0]
    )
