"""Questions become the fewest studies with exactly the arms they need."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.metric_catalogue import METRICS, TRAINING_METRICS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES, Pace, Question, build_plan
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.workload import ImageFolderData, Workload

ONE = Workload("one", ImageFamily("resnet18"), "fp32", 8, global_batch_size=16)
TWO = replace(ONE, name="two", precision="bf16", data=ImageFolderData("/images"))
PACE = Pace(rounds=6, block_s=1.5, warmup_s=2.0)
EMPTY = Plan("a100", "cuda", ())
QUESTIONS = st.builds(
    Question,
    st.sampled_from(list(TRAINING_METRICS.values())),
    st.sampled_from([ONE, TWO]),
    st.sampled_from([2, 4, 8, 16]),
).filter(lambda one: one.workload == TWO or not one.metric.reads_folder)


def question(metric: str, workload: Workload, world_size: int) -> Question:
    return Question(METRICS[metric], workload, world_size)


def test_questions_about_one_training_share_a_study() -> None:
    questions = [
        question("throughput_per_gpu", ONE, 8),
        question("weak_scaling_efficiency", ONE, 8),
        question("weak_scaling_efficiency", ONE, 2),
        question("peak_memory_gib", ONE, 8),
        question("device_utilization", ONE, 8),
        question("generation_ratio", ONE, 1),
    ]
    (study,) = build_plan(EMPTY, questions, PACE).studies
    assert study.id == "weak/one"
    assert study.arms == (Arm("alone", 1, 8), Arm("ddp", 2, 8), Arm("ddp", 8, 8), Arm("each", 8, 8))


def test_scalings_and_workloads_are_studies_of_their_own_and_that_which_compares_ranks_is_first() -> None:
    questions = [
        question("strong_scaling_speedup", TWO, 4),
        question("weak_scaling_efficiency", ONE, 4),
        question("strong_scaling_efficiency", ONE, 2),
        question("strong_scaling_efficiency", TWO, 4),
    ]
    plan = build_plan(EMPTY, questions, PACE)
    assert [study.id for study in plan.studies] == ["weak/one", "strong/two", "strong/one"]
    assert plan.studies[0].arm("each@4")
    assert plan.studies[1].arms == (Arm("alone", 1, 16), Arm("ddp", 4, 4))
    assert plan.studies[2].arms == (Arm("alone", 1, 16), Arm("ddp", 2, 8))


def test_no_baseline_is_timed_that_nobody_asked_for() -> None:
    (study,) = build_plan(EMPTY, [question("throughput_per_gpu", ONE, 4)], PACE).studies
    assert study.arms == (Arm("ddp", 4, 8), Arm("each", 4, 8))


def test_one_study_compares_ranks_for_all_of_them() -> None:
    questions = [question("throughput_per_gpu", *which) for which in ((ONE, 4), (TWO, 8), (replace(ONE, name="x"), 8))]
    studies = build_plan(EMPTY, questions, PACE).studies
    assert [study.id for study in studies if study.arm("each@8")] == ["weak/two"]
    assert not [study.id for study in studies if study.arm("each@4")]


def test_ranks_are_compared_once_where_that_is_asked_for() -> None:
    questions = [question("throughput_per_gpu", ONE, 8), question("rank_uniformity", replace(TWO, compile=True), 8)]
    studies = build_plan(EMPTY, questions, PACE).studies
    assert [study.id for study in studies if study.arm("each@8")] == ["weak/two"]


COMPILED = replace(ONE, name="z", compile=True)


def each_of(questions: list[Question], empty: Plan = EMPTY) -> dict[str, list[str]]:
    """Names of the arms ``each``, by study."""
    studies = build_plan(empty, questions, PACE).studies
    found = {study.id: [arm.name for arm in study.arms if arm.kind == "each"] for study in studies}
    return {study: names for study, names in found.items() if names}


def test_a_compiled_workload_compares_its_ranks_itself() -> None:
    """Nobody can time its forward passes."""
    questions = [question("throughput_per_gpu", *which) for which in ((ONE, 8), (COMPILED, 4), (TWO, 8))]
    questions += [question("strong_scaling_speedup", COMPILED, 8)]
    assert each_of(questions) == {"weak/one": ["each@8"], "weak/z": ["each@4"]}
    assert each_of([question("throughput_per_gpu", COMPILED, 8)]) == {"weak/z": ["each@8"]}
    alone = [question("throughput_per_gpu", ONE, 8), question("throughput_per_gpu", COMPILED, 1)]
    assert each_of(alone) == {"weak/one": ["each@8"]}
    infers = [question("throughput_per_gpu", ONE, 8), question("inference_throughput", COMPILED, 8)]
    assert each_of(infers) == {"weak/one": ["each@8"]}


def test_a_compiled_workload_compares_all_ranks_of_the_nodes_that_it_trains_on() -> None:
    nodes = replace(EMPTY, nodes=2, ranks_per_node=4)
    questions = [question("throughput_per_gpu", ONE, 8), question("throughput_per_gpu", COMPILED, 2)]
    assert each_of(questions, nodes) == {"weak/one": ["each@8"], "weak/z": ["each@4"]}
    questions.append(question("throughput_per_gpu", COMPILED, 8))
    assert each_of(questions, nodes) == {"weak/one": ["each@8"], "weak/z": ["each@8"]}
    questions[-1] = replace(question("throughput_per_gpu", COMPILED, 2), placement="spread")
    assert each_of(questions, nodes) == {"weak/one": ["each@8"], "weak/z": ["each@8"]}


def test_inference_is_timed_beside_the_training_of_its_workload_and_trains_nothing_by_itself() -> None:
    questions = [question("inference_throughput", ONE, size) for size in (1, 8)]
    questions += [question("inference_latency_p99", ONE, 8), question("throughput_per_gpu", TWO, 4)]
    plan = build_plan(EMPTY, questions, PACE)
    assert {study.id: study.arms for study in plan.studies} == {
        "weak/one": (Arm("infer", 1, 8), Arm("infer", 8, 8)),
        "weak/two": (Arm("ddp", 4, 8), Arm("each", 4, 8)),
    }
    beside = build_plan(EMPTY, [*questions, question("ddp_overhead", ONE, 1)], PACE).study("weak/one")
    assert beside is not None
    assert {arm.name for arm in beside.arms} == {"alone", "ddp@1", "infer@1", "infer@8", "each@8"}


def test_one_rank_has_no_peers_to_be_compared_with() -> None:
    (study,) = build_plan(EMPTY, [question("throughput_per_gpu", ONE, 1)], PACE).studies
    assert study.arms == (Arm("alone", 1, 8),)


def test_strong_scaling_times_nothing_but_what_it_is_asked() -> None:
    (study,) = build_plan(EMPTY, [question("strong_scaling_speedup", ONE, 4)], PACE).studies
    assert study.arms == (Arm("alone", 1, 16), Arm("ddp", 4, 4))


def test_every_study_goes_at_the_pace_given() -> None:
    (study,) = build_plan(Plan("a100", "cuda", (), seed=5), [question("throughput_per_gpu", ONE, 1)], PACE).studies
    assert (study.rounds, study.block_s, study.warmup_s) == (6, 1.5, 2.0)


def test_all_rounds_are_for_studies_with_a_ratio_to_one_rank() -> None:
    questions = [question("weak_scaling_efficiency", ONE, 4), question("throughput_per_gpu", TWO, 4)]
    plan = build_plan(EMPTY, questions, Pace(32, 1.5, 2.0, uncompared_rounds=16), [Arm("matmul-fp16")])
    assert {study.id: study.rounds for study in plan.studies} == {"weak/one": 32, "weak/two": 16}
    assert plan.probes is not None
    assert plan.probes.rounds == 16


def test_a_plan_says_for_what_and_with_which_seed() -> None:
    plan = build_plan(Plan("a100", "cuda", (), seed=5), [], PACE)
    assert (plan.sku, plan.device_type, plan.studies, plan.seed) == ("a100", "cuda", (), 5)


def test_a_global_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be shared evenly by 3 ranks"):
        build_plan(EMPTY, [question("strong_scaling_speedup", ONE, 3)], PACE)


def test_default_paces_can_decide() -> None:
    assert {pace.rounds >= FEWEST_ROUNDS for pace in PACES.values()} == {True}


@given(st.lists(QUESTIONS, max_size=12))
def test_a_plan_has_every_arm_asked_for_once_and_ranks_by_themselves_besides(questions: list[Question]) -> None:
    plan = build_plan(EMPTY, questions, PACE)
    planned = [(study.scaling, study.workload, arm) for study in plan.studies for arm in study.arms]
    asked = {(q.metric.scaling, q.workload, arm) for q in questions for arm in q.arms}
    assert len(planned) == len(set(planned))
    assert asked <= set(planned)
    added = set(planned) - asked
    assert len(added) <= 1
    trained = {(scaling, workload) for scaling, workload, arm in asked if arm.kind != "infer"}
    for scaling, workload, arm in added:
        largest = max(a.world_size for of_scaling, job, a in asked if (of_scaling, job) in trained)
        assert (scaling, arm) == ("weak", Arm("each", largest, workload.batch_size))
    assert len({study.id for study in plan.studies}) == len(plan.studies)


@given(st.lists(QUESTIONS, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_questions_changes_no_study(questions: list[Question], shuffler: random.Random) -> None:
    shuffled = shuffler.sample(questions, len(questions))
    plans = [build_plan(EMPTY, some, PACE) for some in (questions, shuffled)]
    first, second = ({study.id: study for study in plan.studies} for plan in plans)
    assert first == second
