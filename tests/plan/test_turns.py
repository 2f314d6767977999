"""All ranks of a node take turns at arms of one rank, in an order that anybody can find again."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.planner import PACES, Question, build_plan
from pytest_ddpscale.plan.study import Plan, Scaling, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.strict_json import read_as
from tests.builders.json_types import as_json
from tests.rows import rows

WORKLOAD = Workload("r", ImageFamily("resnet18", image_size=32), "fp32", 4)
ALONE, DDP = Arm("alone", 1, 4), Arm("ddp", 8, 4)


def turn(ranks: int, seed: int, scaling: Scaling, number: int) -> int:
    return Study(scaling, WORKLOAD, (ALONE,), 8, 1.0, 1.0, turns=ranks).turn(seed, number)


@rows("ranks", [1, 2, 3, 8])
def test_every_rank_has_one_turn_before_any_has_two(ranks: int) -> None:
    for cycle in range(4):
        taken = [turn(ranks, 0, "weak", number) for number in range(cycle * ranks, (cycle + 1) * ranks)]
        assert sorted(taken) == list(range(ranks))


def test_the_order_is_another_one_in_each_cycle_study_and_seed_and_stays() -> None:
    def order(seed: int, scaling: Scaling, cycle: int) -> tuple[int, ...]:
        return tuple(turn(8, seed, scaling, 8 * cycle + place) for place in range(8))

    scalings = get_args(Scaling)
    found = [order(seed, scaling, cycle) for seed in (0, 1) for scaling in scalings for cycle in (0, 1)]
    assert len(set(found)) == len(found)
    assert found[0] == (2, 0, 1, 7, 6, 4, 5, 3)


def test_no_place_comes_first_more_often_than_another() -> None:
    firsts = Counter(turn(8, seed, "weak", 0) for seed in range(800))
    assert set(firsts) == set(range(8))
    assert max(firsts.values()) < 2 * min(firsts.values())


def test_it_is_the_turn_of_the_same_local_rank_on_every_node() -> None:
    layout = Layout(2, 8)
    for one in (ALONE, Arm("ddp", 1, 4)):
        assert layout.groups(one, 3) == ((3,), (11,))
    assert layout.groups(DDP, 3) == layout.groups(DDP)


def test_ranks_of_a_study_are_all_that_ever_train() -> None:
    study = Study("weak", WORKLOAD, (ALONE,), 8, 1.0, 1.0, turns=4)
    assert study.ranks(study.arms, Layout(2, 4)) == tuple(range(8))
    assert study.world_size == 4


@rows(("nodes", "turns"), [(1, 4), (2, 8)])
def test_as_many_ranks_take_turns_as_a_node_has_in_the_gang(nodes: int, turns: int) -> None:
    questions = [Question(METRICS["weak_scaling_efficiency"], WORKLOAD, 4 if nodes == 1 else 16)]
    plan = build_plan(Plan("a100", "cuda", (), nodes=nodes, ranks_per_node=8), questions, PACES["cuda"])
    assert plan.studies[0].turns == turns
    assert read_as(Plan, as_json(plan)) == plan


@rows("nodes", [1, 2])
@rows(("sizes", "turns"), [((1,), 1), ((1, 4), 4), ((1, 4, 8), 8)])
def test_ranks_that_train_nothing_larger_take_no_turns(sizes: tuple[int, ...], turns: int, nodes: int) -> None:
    questions = [Question(METRICS["throughput_per_gpu"], WORKLOAD, size) for size in sizes]
    plan = build_plan(Plan("a100", "cuda", (), nodes=nodes, ranks_per_node=8, survey=True), questions, PACES["cuda"])
    assert plan.studies[0].turns == turns


def test_smaller_groups_of_a_node_take_turns_as_their_ranks_do() -> None:
    pairs, layout = Arm("ddp", 2, 4), Layout(2, 8)
    assert layout.groups(pairs, 5) == ((4, 5), (12, 13))
    assert [layout.groups(Arm("no_sync", 4, 4), number)[0][0] for number in range(8)] == [0, 0, 0, 0, 4, 4, 4, 4]
    study = Study("weak", WORKLOAD, (pairs, DDP), 8, 1.0, 1.0, turns=8)
    assert study.ranks([pairs], Layout(1, 8)) == tuple(range(8))


@rows("arm", [Arm("each", 2, 4), Arm("ddp", 3, 4), Arm("ddp", 2, 4, "spread"), Arm("ddp", 16, 4)])
def test_what_a_node_cannot_be_dealt_to_takes_no_turns(arm: Arm) -> None:
    layout = Layout(2, 8)
    assert layout.groups(arm, 5) == layout.groups(arm)


@rows(("sizes", "turns"), [((2, 5), 4), ((2, 4, 6), 4), ((3, 5), 5), ((2, 4, 8), 8)])
def test_no_group_that_takes_its_turn_has_a_rank_that_nothing_larger_trains(sizes: tuple[int, ...], turns: int) -> None:
    questions = [Question(METRICS["throughput_per_gpu"], WORKLOAD, size) for size in sizes]
    plan = build_plan(Plan("a100", "cuda", (), ranks_per_node=8, survey=True), questions, PACES["cuda"])
    (study,) = plan.studies
    assert study.turns == turns
    assert study.ranks(study.arms, plan.layout) == tuple(range(max(sizes)))
