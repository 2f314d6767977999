"""A round is complete or it does not count, and its slowest rank sets the pace."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_ddpscale.judge.rounds import (
    NO_ROUNDS,
    ArmRounds,
    groups,
    hosts_of,
    merged,
    on_hosts,
)
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.columns import Columns
from tests.builders.measurements import Measurement
from tests.builders.rounds import columns_of, rounds_of
from tests.rows import rows

ARM = Arm("ddp", 3, batch_size=8)


def block(rank: int, round_: int = 0, **changes: Any) -> Measurement:
    one = Measurement("weak/r", "ddp@3", round_, rank, rank, f"node{rank}", f"GPU-{rank}", 8, 10, 4.0, 1.7e9)
    return replace(one, **changes)


def one_group(columns: Columns) -> ArmRounds:
    """Complete rounds of the arm on a single node."""
    return groups(columns, "weak/r", [ARM], Layout(1, 4))[0].arms[0]


def numbers(rounds: ArmRounds) -> dict[int, list[int]]:
    """Who took part in each round."""
    ranks = rounds.ranks.numbers
    return {n: ranks[there].tolist() for n, there in zip(rounds.numbers.tolist(), rounds.present, strict=True)}


def test_the_slowest_rank_sets_the_pace_of_all() -> None:
    measured = rounds_of([block(0, block_s=1.0), block(1, block_s=2.0), block(2, block_s=1.5)])
    assert measured.slowest.tolist() == [1]
    assert measured.samples_per_s_per_gpu.tolist() == pytest.approx([8 * 10 / 2.0])
    assert measured.step_s.tolist() == pytest.approx([0.2])


def test_a_round_of_ranks_that_take_turns_has_one_of_them() -> None:
    measured = rounds_of([block(2, 0, block_s=1.0), block(0, 1, block_s=2.0), block(2, 2, block_s=4.0)])
    assert measured.ranks.numbers[measured.slowest].tolist() == [2, 0, 2]
    assert measured.samples_per_s_per_gpu.tolist() == pytest.approx([80.0, 40.0, 20.0])
    assert measured.most_of("peak_memory_bytes").tolist() == pytest.approx([math.nan] * 3, nan_ok=True)


def test_a_round_of_groups_that_take_turns_has_one_of_them() -> None:
    groups = {0: (0, 1, 2), 1: (3, 4, 5), 2: (2, 3, 4, 5), 3: (0, 2, 3)}
    blocks = [block(rank, number) for number, ranks in groups.items() for rank in ranks]
    assert complete(blocks) == {0: [0, 1, 2], 1: [3, 4, 5]}


def test_images_per_joule_are_those_of_the_gpu_that_got_fewest() -> None:
    measured = rounds_of([block(rank, energy_j=energy_j) for rank, energy_j in enumerate((40.0, 50.0, 20.0))])
    assert measured.images_per_joule.tolist() == pytest.approx([8 * 10 / 50.0])


@rows("unread", [None, 0.0])  # nobody trains for nothing
@rows("rank", [0, 1, 2])
def test_images_per_joule_are_unknown_while_the_energy_of_one_gpu_is(unread: float | None, rank: int) -> None:
    measured = rounds_of([block(r, energy_j=unread if r == rank else 40.0) for r in range(3)])
    assert math.isnan(measured.images_per_joule[0])


def test_error_of_an_imported_sample_is_that_of_the_slowest_ranks_mean_step() -> None:
    slow = block(0, steps=100, block_s=50.0, step_stdev_s=0.1, single_sample=True)
    fast = block(1, steps=100, block_s=25.0, step_stdev_s=9.9, single_sample=True)
    # 0.1 s of 0.5 s a step, over the square root of 100 steps
    assert rounds_of([slow, fast]).single_sample_error.tolist() == pytest.approx([0.02])


def test_without_rounds_nothing_is_known_of_any() -> None:
    for name in ("slowest", "step_s", "samples_per_s_per_gpu", "utilization", "images_per_joule", "memory_spread"):
        assert len(getattr(NO_ROUNDS, name)) == 0


def complete(blocks: list[Measurement]) -> dict[int, list[int]]:
    return numbers(one_group(columns_of(blocks)))


def test_a_round_without_all_its_ranks_is_left_out() -> None:
    whole = [block(rank, 0) for rank in range(3)]
    part = [block(rank, 1) for rank in (0, 2)]
    assert complete(whole + part) == {0: [0, 1, 2]}


def test_a_round_with_a_rank_too_many_is_left_out() -> None:
    assert complete([block(rank) for rank in range(4)]) == {}
    assert complete([block(rank) for rank in (0, 1, 3)]) == {}


@rows("change", [{"study": "weak/s"}, {"arm": "ddp@2"}, {"batch_size": 16}])
def test_what_belongs_elsewhere_is_left_out(change: dict[str, Any]) -> None:
    assert complete([block(rank, **change) for rank in range(3)]) == {}


def test_ranks_elsewhere_are_left_out_and_rounds_without_any_others() -> None:
    measured = rounds_of([block(0, 0), block(1, 0), block(2, 1)])
    assert numbers(on_hosts(measured, {"node0", "node1"})) == {0: [0, 1]}
    assert numbers(on_hosts(measured, {"node2"})) == {1: [2]}


def on_node(node: int, local_rank: int, round_: int = 0, **changes: Any) -> Measurement:
    """A block of the arm on a node of four ranks."""
    rank = 4 * node + local_rank
    return block(rank, round_, local_rank=local_rank, host=f"n{node}", **changes)


class TestGroupsOnSeveralNodes:
    layout = Layout(nodes=3, ranks_per_node=4)
    places = tuple((node, rank) for node in range(3) for rank in range(3))

    def groups(self, blocks: list[Measurement], arm: Arm = ARM) -> list[dict[int, list[int]]]:
        found = groups(columns_of(blocks), "weak/r", [arm], self.layout)
        return [numbers(alike.at(place)[0]) for alike in found for place in range(len(alike.places))]

    def at(self, columns: Columns, host: str) -> ArmRounds:
        [alike] = groups(columns, "weak/r", [ARM], self.layout)
        return alike.at(alike.places.index(host))[0]

    def test_each_node_has_rounds_of_its_own(self) -> None:
        blocks = [on_node(node, rank) for node in (2, 0, 1) for rank in range(3)]
        assert self.groups(blocks) == [{0: [0, 1, 2]}, {0: [4, 5, 6]}, {0: [8, 9, 10]}]

    def test_a_node_that_lacks_a_rank_costs_the_others_nothing(self) -> None:
        columns = columns_of(on_node(*place) for place in self.places if place != (1, 2))
        assert numbers(merged(columns, "weak/r", ARM, self.layout)) == {0: [0, 1, 2, 8, 9, 10]}

    def test_a_node_that_lacks_a_rank_once_is_there_in_other_rounds(self) -> None:
        blocks = [on_node(*place, n) for n in range(2) for place in self.places if (n, *place) != (0, 1, 2)]
        blocks = [replace(one, skipped_steps=one.rank % 2, step_s=(0.1,) * 10) for one in blocks]
        found = merged(columns_of(blocks), "weak/r", ARM, self.layout)
        assert numbers(found) == {0: [0, 1, 2, 8, 9, 10], 1: [0, 1, 2, 4, 5, 6, 8, 9, 10]}
        assert found.samples_per_s_per_gpu.tolist() == [20.0, 20.0]
        assert np.nansum(found.measured.reading("skipped_steps"), axis=1).tolist() == [2, 3]
        assert (~found.measured.of_steps("step_s").any(axis=2)).sum() == 0
        assert [list(map(bool, there)) for there in found.present[:, 3:6]] == [[False] * 3, [True] * 3]

    def test_every_node_of_the_study_is_asked_for_whether_or_not_it_has_rounds_of_the_arm(self) -> None:
        elsewhere = replace(on_node(2, 0), arm="alone")
        columns = columns_of([*(on_node(node, rank) for node in (1, 0) for rank in range(3)), elsewhere])
        assert hosts_of(columns, "weak/r") == ["n0", "n1", "n2"]
        with_another = groups(columns, "weak/r", [ARM, Arm("alone", 1, 8)], self.layout)
        assert [(one.places, [len(rows) for rows in one.arms]) for one in with_another] == [
            (("n0", "n1"), [2, 0]), (("n2",), [0, 1]),
        ]  # fmt: skip
        assert groups(columns, "weak/r", [Arm("ddp", 2, 8)], self.layout) == []

    def test_rows_of_nodes_say_what_each_node_does_by_itself(self) -> None:
        missing = [(1, 2, 1), (2, 0, 0)]  # node, rank and round
        every = ((node, rank, number) for node in range(4) for rank in range(3) for number in range(3))
        columns = columns_of([replace(on_node(n, r), round=i) for n, r, i in every if (n, r, i) not in missing])
        (rows,) = groups(columns, "weak/r", [ARM], self.layout)
        assert rows.places == ("n0", "n1", "n2", "n3")
        of_rows = dict(zip(rows.arms[0].numbers.tolist(), rows.arms[0].samples_per_s_per_gpu.tolist(), strict=True))
        by_node = [self.at(columns, host) for host in rows.places]
        assert of_rows == {
            number * 4 + place: value
            for place, one in enumerate(by_node)
            for number, value in zip(one.numbers.tolist(), one.samples_per_s_per_gpu.tolist(), strict=True)
        }
        assert len(of_rows) == 4 * 3 - len(missing)

    def test_rows_of_nodes_are_views_of_one_array_in_the_order_of_ranks_not_of_names(self) -> None:
        every = [(node, rank, number) for node in (2, 10) for rank in range(3) for number in range(2)]
        columns = columns_of([on_node(n, r, i, block_s=1.0 + r) for n, r, i in every])
        (rows,) = groups(columns, "weak/r", [ARM], self.layout)
        assert rows.places == ("n2", "n10")
        block_s = rows.arms[0].measured.seconds
        assert block_s.shape == (2 * 2, 3)
        assert np.shares_memory(block_s, columns.arms["weak/r", ARM.name].seconds)

    def test_a_rank_beyond_the_arm_makes_a_round_unusable(self) -> None:
        assert self.groups([on_node(0, rank) for rank in range(4)]) == [{}]

    def test_ranks_of_a_larger_arm_are_one_group(self) -> None:
        large = Arm("ddp", 6, 8)
        blocks = [replace(on_node(*divmod(rank, 4)), arm="ddp@6") for rank in range(6)]
        assert self.groups(blocks, large) == [{0: list(range(6))}]
        assert self.groups(blocks[:-1], large) == [{}]

    def test_spread_ranks_are_those_that_were_planned(self) -> None:
        spread = Arm("ddp", 3, 8, "spread")
        blocks = [replace(on_node(node, 0), arm="ddp@3-spread") for node in range(3)]
        assert self.groups(blocks, spread) == [{0: [0, 4, 8]}]

    def test_of_nothing_there_is_no_group(self) -> None:
        assert groups(Columns(), "weak/r", [ARM], self.layout) == []
        assert len(merged(Columns(), "weak/r", ARM, self.layout)) == 0
        assert len(one_group(Columns())) == 0
