"""A round is complete or it does not count, and its slowest rank sets the pace."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.metrics.rounds import GIB, ArmRound, arm_rounds, group_rounds, together
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Arm
from pytest_ddpscale.results.records import Measurement

ARM = Arm("ddp", 3, batch_size=8)


def block(rank: int, round_: int = 0, **changes: Any) -> Measurement:
    one = Measurement("weak/r", "ddp@3", round_, rank, rank, f"node{rank}", f"GPU-{rank}", 8, 10, 4.0, 1.7e9)
    return replace(one, **changes)


def test_the_slowest_rank_sets_the_pace_of_all() -> None:
    measured = ArmRound(0, (block(0, block_s=1.0), block(1, block_s=2.0), block(2, block_s=1.5)))
    assert measured.slowest.rank == 1
    assert measured.throughput_per_gpu_img_per_s == pytest.approx(8 * 10 / 2.0)


def test_pace_is_per_step_where_ranks_took_different_numbers_of_them() -> None:
    measured = ArmRound(0, (block(0, steps=10, block_s=2.0), block(1, steps=5, block_s=1.5)))
    assert measured.slowest.rank == 1
    assert measured.throughput_per_gpu_img_per_s == pytest.approx(8 * 5 / 1.5)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8))
def test_no_rank_is_slower_than_the_round(blocks_s: list[float]) -> None:
    ranks = tuple(block(rank, block_s=block_s) for rank, block_s in enumerate(blocks_s))
    assert ArmRound(0, ranks).throughput_per_gpu_img_per_s == min(rank.throughput_img_per_s for rank in ranks)


def test_the_least_busy_rank_is_the_one_with_the_lowest_utilization() -> None:
    ranks = tuple(block(rank, utilization=busy) for rank, busy in enumerate((0.9, 0.0, 0.5)))
    least = ArmRound(0, ranks).least_busy
    assert least is not None
    assert (least.rank, least.utilization) == (1, 0.0)


@pytest.mark.parametrize("unread", [None, math.nan])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_nobody_is_least_busy_while_one_rank_is_unread(unread: float | None, rank: int) -> None:
    ranks = tuple(block(r, utilization=unread if r == rank else 0.9) for r in range(3))
    assert ArmRound(0, ranks).least_busy is None


def test_images_per_joule_are_those_of_the_gpu_that_got_fewest() -> None:
    ranks = tuple(block(rank, energy_j=energy_j) for rank, energy_j in enumerate((40.0, 50.0, 20.0)))
    assert ArmRound(0, ranks).images_per_joule == pytest.approx(8 * 10 / 50.0)


@pytest.mark.parametrize("unread", [None, 0.0])  # nobody trains for nothing
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_images_per_joule_are_unknown_while_the_energy_of_one_gpu_is(unread: float | None, rank: int) -> None:
    ranks = tuple(block(r, energy_j=unread if r == rank else 40.0) for r in range(3))
    assert ArmRound(0, ranks).images_per_joule is None


def test_peak_memory_is_the_fullest_ranks() -> None:
    ranks = tuple(block(rank, peak_memory_bytes=amount * GIB) for rank, amount in enumerate((1, 3, 2)))
    assert ArmRound(0, ranks).peak_memory_gib == 3.0


@pytest.mark.parametrize("unknown", [None, 0])
def test_peak_memory_is_unknown_while_one_ranks_is(unknown: int | None) -> None:
    ranks = (block(0, peak_memory_bytes=GIB), block(1, peak_memory_bytes=unknown))
    assert ArmRound(0, ranks).peak_memory_gib is None


def test_memory_spread_is_relative_to_the_fullest_rank() -> None:
    ranks = tuple(block(rank, peak_memory_bytes=amount * GIB) for rank, amount in enumerate((3, 4, 2)))
    assert ArmRound(0, ranks).memory_spread == 0.5


@pytest.mark.parametrize("unknown", [None, 0])
def test_memory_spread_is_unknown_while_one_ranks_memory_is(unknown: int | None) -> None:
    ranks = (block(0, peak_memory_bytes=GIB), block(1, peak_memory_bytes=unknown))
    assert ArmRound(0, ranks).memory_spread is None


def test_the_step_time_of_a_round_is_the_slowest_ranks_mean() -> None:
    measured = ArmRound(0, (block(0, steps=10, block_s=2.0), block(1, steps=5, block_s=1.5)))
    assert measured.step_s == pytest.approx(0.3)


def test_error_of_an_imported_sample_is_that_of_the_slowest_ranks_mean_step() -> None:
    slow = block(0, steps=100, block_s=50.0, step_stdev_s=0.1, single_sample=True)
    fast = block(1, steps=100, block_s=25.0, step_stdev_s=9.9, single_sample=True)
    # 0.1 s of 0.5 s a step, over the square root of 100 steps
    assert ArmRound(0, (slow, fast)).single_sample_error == pytest.approx(0.02)


@pytest.mark.parametrize("change", [{"single_sample": False}, {"step_stdev_s": None}])
def test_a_round_of_our_own_has_no_error_of_its_own(change: dict[str, Any]) -> None:
    one = block(0, **({"step_stdev_s": 0.1, "single_sample": True} | change))
    assert ArmRound(0, (one,)).single_sample_error is None


def test_a_round_without_all_its_ranks_is_left_out() -> None:
    whole = [block(rank, 0) for rank in range(3)]
    part = [block(rank, 1) for rank in (0, 2)]
    assert set(arm_rounds(whole + part, "weak/r", ARM)) == {0}


def test_a_round_with_a_rank_too_many_is_left_out() -> None:
    assert arm_rounds([block(rank) for rank in range(4)], "weak/r", ARM) == {}


@pytest.mark.parametrize("change", [{"study": "weak/s"}, {"arm": "ddp@2"}, {"batch_size": 16}])
def test_what_belongs_elsewhere_is_left_out(change: dict[str, Any]) -> None:
    foreign = [block(rank, **change) for rank in range(3)]
    assert arm_rounds(foreign, "weak/r", ARM) == {}


def test_of_a_repeated_measurement_the_first_counts() -> None:
    first = [block(rank, block_s=1.0) for rank in range(3)]
    again = [block(rank, block_s=9.0) for rank in range(3)]
    rounds = arm_rounds(first + again, "weak/r", ARM)
    assert rounds == {0: ArmRound(0, tuple(first))}


@given(st.randoms(use_true_random=False))
def test_rounds_and_ranks_come_in_order_whatever_the_order_of_lines(shuffler: random.Random) -> None:
    lines = [block(rank, number) for number in range(3) for rank in range(3)]
    rounds = arm_rounds(shuffler.sample(lines, len(lines)), "weak/r", ARM)
    assert list(rounds) == [0, 1, 2]
    assert all([m.rank for m in rounds[n].ranks] == [0, 1, 2] for n in rounds)


def on_node(node: int, local_rank: int, round_: int = 0, **changes: Any) -> Measurement:
    """A block of the arm on a node of four ranks."""
    rank = 4 * node + local_rank
    return block(rank, round_, local_rank=local_rank, host=f"n{node}", **changes)


class TestGroupsOnSeveralNodes:
    layout = Layout(nodes=3, ranks_per_node=4)

    def test_each_node_has_rounds_of_its_own(self) -> None:
        blocks = [on_node(node, rank) for node in (2, 0, 1) for rank in range(3)]
        groups = group_rounds(blocks, "weak/r", ARM, self.layout)
        assert [[one.rank for one in rounds[0].ranks] for rounds in groups] == [[0, 1, 2], [4, 5, 6], [8, 9, 10]]

    def test_a_node_that_lacks_a_rank_costs_the_others_nothing(self) -> None:
        blocks = [on_node(node, rank) for node in range(3) for rank in range(3) if (node, rank) != (1, 2)]
        together_ = together(group_rounds(blocks, "weak/r", ARM, self.layout))
        assert [one.rank for one in together_[0].ranks] == [0, 1, 2, 8, 9, 10]

    def test_a_rank_beyond_the_arm_is_passed_over(self) -> None:
        blocks = [on_node(0, rank) for rank in range(4)]
        assert [one.rank for one in group_rounds(blocks, "weak/r", ARM, self.layout)[0][0].ranks] == [0, 1, 2]

    def test_ranks_of_a_larger_arm_are_one_group(self) -> None:
        large = Arm("ddp", 6, 8)
        blocks = [replace(on_node(*divmod(rank, 4)), arm="ddp@6") for rank in range(6)]
        (rounds,) = group_rounds(blocks, "weak/r", large, self.layout)
        assert [one.rank for one in rounds[0].ranks] == list(range(6))
        (nothing,) = group_rounds(blocks[:-1], "weak/r", large, self.layout)
        assert nothing == {}

    def test_spread_ranks_are_those_that_were_planned(self) -> None:
        spread = Arm("ddp", 3, 8, "spread")
        blocks = [replace(on_node(node, 0), arm="ddp@3-spread") for node in range(3)]
        (rounds,) = group_rounds(blocks, "weak/r", spread, self.layout)
        assert [one.rank for one in rounds[0].ranks] == [0, 4, 8]
        (nothing,) = group_rounds(blocks, "weak/r", spread, Layout(1, 12))
        assert nothing == {}

    def test_one_node_is_read_as_ever(self) -> None:
        blocks = [block(rank) for rank in range(3)]
        assert group_rounds(blocks, "weak/r", ARM, Layout(1, 4)) == [arm_rounds(blocks, "weak/r", ARM)]
        assert group_rounds([*blocks, block(3)], "weak/r", ARM, Layout(1, 4)) == [{}]
