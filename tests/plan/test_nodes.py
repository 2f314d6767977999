"""What is planned for several nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm, Placement
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import METRICS, TRAINING_METRICS
from pytest_ddpscale.plan.planner import Pace, Question, build_plan
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.workload import ImageFolderData, Workload
from pytest_ddpscale.run.strict_json import read_as
from tests.builders.json_types import as_json
from tests.rows import rows

ONE = Workload("one", ImageFamily("resnet18"), "fp32", 8, global_batch_size=96)
TWO = replace(ONE, name="two", precision="bf16", data=ImageFolderData("/images"))
PACE = Pace(rounds=6, block_s=1.5, warmup_s=2.0)
EMPTY = Plan("a100", "cuda", ())
QUESTIONS = st.builds(
    Question,
    st.sampled_from([metric for metric in TRAINING_METRICS.values() if not metric.maximum_world_size]),
    st.sampled_from([ONE, TWO]),
    st.sampled_from([2, 4, 8, 16, 24]),
    st.sampled_from(["packed", "spread"]),
).filter(lambda one: one.workload == TWO or not one.metric.reads_folder)


def question(metric: str, world_size: int, workload: Workload = ONE, placement: Placement = "packed") -> Question:
    return Question(METRICS[metric], workload, world_size, placement)


def plan_for(*questions: Question, nodes: int = 3, ranks_per_node: int | None = 8) -> Plan:
    return build_plan(Plan("a100", "cuda", (), nodes=nodes, ranks_per_node=ranks_per_node), questions, PACE)


def arm_names(plan: Plan, study_id: str = "weak/one") -> list[str]:
    study = plan.study(study_id)
    assert study is not None
    return [arm.name for arm in study.arms]


def test_arms_that_fit_a_node_take_no_more_ranks_than_they_need_and_all_nodes_are_compared() -> None:
    plan = plan_for(question("weak_scaling_efficiency", 4))
    assert (plan.nodes, plan.ranks_per_node, plan.world_size) == (3, 4, 12)
    assert arm_names(plan) == ["alone", "ddp@4", "each@4"]
    assert plan.layout.groups(Arm("each", 4, 8)) == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))


def test_one_rank_of_each_node_has_those_of_the_other_nodes_as_peers() -> None:
    plan = plan_for(question("throughput_per_gpu", 1))
    assert plan.layout == Layout(3, 1)
    assert arm_names(plan) == ["alone", "each@1"]


def test_beyond_a_node_all_ranks_of_all_nodes_are_compared() -> None:
    plan = plan_for(question("weak_scaling_efficiency", 16))
    assert plan.layout == Layout(3, 8)
    assert "each@24" in arm_names(plan)


def test_where_scaling_breaks_is_seen_at_whole_nodes() -> None:
    plan = plan_for(question("weak_scaling_efficiency", 48), nodes=6)
    assert arm_names(plan) == ["alone", "ddp@8", "ddp@16", "ddp@32", "ddp@48", "each@48"]


def test_whole_nodes_of_one_rank_are_not_measured_under_ddp_with_themselves() -> None:
    plan = plan_for(question("weak_scaling_efficiency", 3), ranks_per_node=1)
    assert arm_names(plan) == ["alone", "ddp@2", "ddp@3", "each@3"]


def test_only_the_training_that_goes_beyond_a_node_is_measured_at_whole_nodes() -> None:
    plan = plan_for(question("weak_scaling_efficiency", 16), question("weak_scaling_efficiency", 2, TWO))
    assert arm_names(plan, "weak/two") == ["alone", "ddp@2"]


def test_spread_ranks_are_an_arm_of_their_own() -> None:
    plan = plan_for(question("weak_scaling_efficiency", 4), question("exposed_communication", 4, placement="spread"))
    assert arm_names(plan) == ["alone", "ddp@4", "ddp@4-spread", "no_sync@4-spread", "each@24"]
    assert plan.layout == Layout(3, 8), "where slots are on a node decides what spread ranks share"


@given(st.lists(QUESTIONS, max_size=6), st.integers(1, 6))
def test_every_arm_that_is_asked_for_has_ranks(questions: list[Question], nodes: int) -> None:
    fitting = [asked for asked in questions if asked.world_size <= nodes * 8]
    plan = plan_for(*fitting, nodes=nodes, ranks_per_node=8)
    for study in plan.studies:
        assert set(plan.layout.ranks(study.arms)) <= set(range(plan.world_size))
    assert {arm for asked in fitting for arm in asked.arms} <= {arm for s in plan.studies for arm in s.arms}
    assert read_as(Plan, as_json(plan)) == plan


@given(st.lists(QUESTIONS, max_size=6))
def test_one_node_is_planned_as_if_there_were_no_others(questions: list[Question]) -> None:
    plan = plan_for(*questions, nodes=1)
    assert plan == build_plan(EMPTY, questions, PACE)
    assert plan.world_size == max((study.world_size for study in plan.studies), default=0)


def test_what_a_further_launch_measures_joins_the_plan() -> None:
    first, more = plan_for(question("throughput_per_gpu", 2)), plan_for(question("throughput_per_gpu", 4, TWO))
    joined = first.joined(more)
    assert [study.id for study in joined.studies] == ["weak/one", "weak/two"]
    assert joined.layout == Layout(3, 4)
    beyond = plan_for(question("weak_scaling_efficiency", 16, TWO))
    assert beyond.pairs is not None
    assert first.joined(beyond).pairs == beyond.joined(first).pairs == beyond.pairs
    assert set(beyond.study_ids) <= set(first.joined(beyond).study_ids), "ranks read the joined plan"
    here = build_plan(EMPTY, [question("throughput_per_gpu", 2)], PACE)
    assert here.joined(build_plan(EMPTY, [question("throughput_per_gpu", 4, TWO)], PACE)).world_size == 4


@rows(
    ("fields", "complaint"),
    [
        ({"nodes": 2, "ranks_per_node": None}, "does not say how many ranks each has"),
        ({"nodes": 2, "ranks_per_node": 1}, "2 x 1 ranks needs 4"),
        ({"nodes": 0, "ranks_per_node": 4}, "expected a whole number from 1 up"),
        ({"nodes": "2", "ranks_per_node": 4}, "Expected `int`, got `str`"),
        ({"nodes": 10**12, "ranks_per_node": 8}, "a plan is for 8000000000000 ranks; expected at most 1000000"),
        ({"nodes": 1, "ranks_per_node": 10**12}, "expected at most 1000000"),
        ({"device_type": "x"}, "Invalid enum value 'x'"),
        ({"device_type": ["cuda"]}, "Expected `str`, got `array`"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(fields: dict[str, object], complaint: str) -> None:
    data = as_json(build_plan(EMPTY, [question("throughput_per_gpu", 4)], PACE)) | fields
    with pytest.raises(ValueError, match=complaint):
        read_as(Plan, data)


@rows("nodes", [1, 2, 3])
@rows("probe", [None, Arm("matmul-fp16"), Arm("all-reduce-1gib", 8)], ids=str)
def test_whatever_is_launched_on_several_nodes_pairs_of_them_are_measured(probe: Arm | None, nodes: int) -> None:
    questions, probes = ([], [probe]) if probe else ([question("throughput_per_gpu", 1)], [])
    plan = build_plan(Plan("a100", "cuda", (), nodes=nodes, ranks_per_node=8), questions, PACE, probes)
    first = "probes" if probe else "weak/one"
    assert plan.study_ids == ((first, "pairs") if nodes > 1 else (first,))
