"""The study that a batch is tried in."""

from __future__ import annotations

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.find_batch.trial_study import STEPS_PER_BLOCK, questions_of, trial_plan, workload_of
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.workload import Workload
from tests.builders.clusters import thresholds

THRESHOLDS = thresholds()
SKUS = THRESHOLDS.thresholds.skus


def arms_of(sku: str, workload: Workload, ranks: int, batch: int = 40) -> dict[str, int]:
    """Batches of the study's arms."""
    empty = Plan(sku, "cuda", ())
    plan = trial_plan(empty, questions_of(THRESHOLDS, sku, workload, ranks), batch, 8)
    [study] = plan.studies
    assert (plan.world_size, plan.survey, plan.probes) == (ranks, False, None)
    assert study.workload.batch_size == batch
    assert (study.scaling, study.workload.name) == ("weak", workload.name)
    return {arm.name: arm.batch_size for arm in study.arms}


def test_it_has_the_arms_of_a_run_at_the_batch_that_is_tried() -> None:
    arms = arms_of("v100-sxm2-16gb", SKUS["v100-sxm2-16gb"].workloads["resnet152-fp16"], 8)
    assert {"alone", "ddp@2", "ddp@4", "ddp@8", "each@8"} <= arms.keys()
    assert set(arms.values()) == {40}


def test_all_ranks_train_together_also_where_no_requirement_asks_it() -> None:
    arms = arms_of("v100-sxm2-16gb", SKUS["v100-sxm2-16gb"].workloads["resnet50-fp16"], 3)
    assert "ddp@3" in arms
    assert not {"ddp@4", "ddp@8"} & arms.keys()


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, {"alone"}),
        (2, {"alone", "ddp@2", "no_sync@2", "each@2"}),
        (6, {"alone", "ddp@2", "ddp@4", "ddp@6", "no_sync@6", "each@6"}),
    ],
)
def test_of_a_workload_that_nothing_requires_it_has_the_usual_arms(ranks: int, expected: set[str]) -> None:
    workload = Workload("mine", ImageFamily("resnet18"), "fp32", 8)
    assert arms_of("cpu", workload, ranks).keys() == expected


@pytest.mark.parametrize("steps", [8, 9, 12, 20, 21])
def test_each_arm_trains_at_least_as_many_steps_as_asked(steps: int) -> None:
    questions = questions_of(THRESHOLDS, "cpu", SKUS["cpu"].workloads["shuffle96-fp32"], 2)
    [study] = trial_plan(Plan("cpu", "cpu", ()), questions, 8, steps).studies
    trained = (1 + study.rounds) * STEPS_PER_BLOCK  # a block of warm-up, and one a round
    assert steps <= trained < steps + STEPS_PER_BLOCK
    assert (study.warmup_s, study.block_s < 0.1) == (0.0, True)


def test_a_workload_of_ones_own_is_trained_as_the_sku_trains_that_model() -> None:
    sku = SKUS["a100-sxm4-80gb"]
    vit = workload_of(sku, "vit_b_16", "bf16", None, "cuda")
    assert (vit.name, vit.precision) == ("vit-b-16-bf16", "bf16")
    assert (vit.family.image_size, vit.family.memory_format) == (224, "contiguous")
    other = workload_of(sku, "resnet34", "fp16", 128, "cuda")
    assert (other.name, other.family.image_size, other.family.memory_format) == ("resnet34-fp16", 128, "channels_last")
    assert workload_of(sku, "resnet34", "fp32", None, "cpu").family.memory_format == "contiguous"


def test_a_model_that_torchvision_has_not_is_refused() -> None:
    with pytest.raises(OptionError, match="--model: found 'resnet51'"):
        workload_of(SKUS["cpu"], "resnet51", "fp32", None, "cpu")
