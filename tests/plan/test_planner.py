"""Questions become the fewest studies with exactly the arms they need, on as many ranks: tests/plan/plans.txt."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm, Placement
from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.operation import operation_of
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.planner import (
    FEWEST_ROUNDS,
    PACES,
    PROBE_BLOCKS_S,
    Pace,
    Question,
    build_plan,
)
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.plan.workload import ImageFolderData, Workload
from tests.builders.json_types import as_json, read_as
from tests.tables import assert_approved, each_block

TABLE = Path(__file__).with_name("plans.txt")
ONE = Workload("one", ImageFamily("resnet18"), "fp32", 8, global_batch_size=96)
TWO = replace(ONE, name="two", precision="bf16", data=ImageFolderData("/images"))
WORKLOADS = {"": ONE, "two": TWO, "x": replace(ONE, name="x"), "compiled": replace(ONE, name="z", compile=True)}
PACE = Pace(rounds=32, block_s=1.5, warmup_s=2.0, uncompared_rounds=16, sustained_s=120)
EMPTY = Plan("a100", "cuda", ())
QUESTIONS = st.builds(
    Question,
    st.sampled_from([one for one in METRICS.values() if one.subject == "workload" and not one.maximum_world_size]),
    st.sampled_from([ONE, TWO]),
    st.sampled_from([2, 4, 8, 16, 24]),
    st.sampled_from(["packed", "spread"]),
).filter(lambda one: one.workload == TWO or not one.metric.reads_folder)


def planned(case: str) -> Plan:
    """The plan for ``[cpu] NODESxRANKS [survey]`` with questions, ``[WORKLOAD:]METRIC@RANKS[-spread]``, and probes."""
    words = case.split()
    device: DeviceType = "cpu" if words[0] == "cpu" else "cuda"
    nodes, _, ranks = words[device == "cpu"].partition("x")
    questions, probes = [], []
    for word in words[1 + (device == "cpu") :]:
        kind, _, size = word.removesuffix("-spread").partition("@")
        if operation_of(kind):
            probes.append(Arm(kind, int(size or 1)))
        elif word != "survey":
            workload, _, begins = kind.rpartition(":")
            (metric,) = [one for one in METRICS.values() if one.name.startswith(begins)]
            placement: Placement = "spread" if word.endswith("-spread") else "packed"
            questions.append(Question(metric, WORKLOADS[workload], int(size), placement))
    ranks_per_node = None if ranks == "?" else int(ranks)
    empty = Plan("a100", device, (), nodes=int(nodes), ranks_per_node=ranks_per_node, survey="survey" in words)
    paced = [question.workload for question in questions if question.metric is THROUGHPUT_PER_GPU]
    return build_plan(empty, questions, PACE, probes, paced)


def told(case: str) -> Iterator[str]:
    """Nodes and ranks of a plan, and what it times, in order."""
    try:
        plan = planned(case)
    except ValueError as error:
        yield f"refused: {error}"
        return
    alone = " by node" if plan.study_ids and all(map(plan.fits_nodes, set(plan.study_ids) - {"pairs"})) else ""
    yield f"{plan.layout.nodes}x{plan.layout.ranks_per_node} of {plan.world_size}{alone}"
    for study in plan.timed:
        arms = " ".join(arm.name if arm.is_probe else f"{arm.name}:{arm.batch_size}" for arm in study.arms)
        turns = f", {study.turns} take turns" if isinstance(study, Study) and study.turns > 1 else ""
        rounds = "" if isinstance(study, PairStudy) else f", {study.rounds} rounds"
        long = study.stretched if isinstance(study, Study) else None
        yield f"{study.id} {arms}{rounds}{turns}{f', first {long.name} in one stretch' if long else ''}"


@each_block(TABLE)
def test_what_is_planned(block: str) -> None:
    assert_approved(TABLE, block, told)


def test_every_study_goes_at_the_pace_of_its_device() -> None:
    plan = planned("cpu 1x2 throughput@1 matmul-fp32")
    assert [(study.block_s, study.warmup_s) for study in plan.studies] == [(1.5, 2.0)]
    assert plan.probes
    assert plan.probes.block_s == PROBE_BLOCKS_S["cpu"] < PROBE_BLOCKS_S["cuda"]
    assert {pace.rounds >= FEWEST_ROUNDS for pace in PACES.values()} == {True}


def test_a_plan_says_for_what_and_with_which_seed() -> None:
    plan = build_plan(Plan("a100", "cuda", (), seed=5), [], PACE)
    assert (plan.sku, plan.device_type, plan.studies, plan.seed) == ("a100", "cuda", (), 5)


@given(st.lists(QUESTIONS, max_size=8), st.integers(1, 6), st.randoms(use_true_random=False))
def test_every_arm_asked_for_is_planned_once_for_ranks_that_there_are(
    questions: list[Question], nodes: int, shuffler: random.Random
) -> None:
    fitting = [asked for asked in questions if asked.world_size <= nodes * 8]
    empty = replace(EMPTY, nodes=nodes, ranks_per_node=8)
    plan = build_plan(empty, fitting, PACE)
    arms = [(study.scaling, study.workload, arm) for study in plan.studies for arm in study.arms]
    assert len(arms) == len(set(arms))
    assert {(one.metric.scaling, one.workload, arm) for one in fitting for arm in one.arms} <= set(arms)
    assert sum(arm.kind == "each" for _, _, arm in arms) <= 1
    for study in plan.studies:
        assert set(plan.layout.ranks(study.arms)) <= set(range(plan.world_size))
    assert read_as(Plan, as_json(plan)) == plan
    other = build_plan(empty, shuffler.sample(fitting, len(fitting)), PACE)
    assert {study.id: study for study in other.studies} == {study.id: study for study in plan.studies}
    if nodes == 1:
        assert plan == build_plan(EMPTY, fitting, PACE), "as if there were no other nodes"
