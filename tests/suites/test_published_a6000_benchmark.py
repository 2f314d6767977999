"""Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs": what can be computed.

Its times are figures without numbers. docs/evidence/documents.md lists where it contradicts itself.
"""

from __future__ import annotations

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.factors import BATCHES, EPOCH_IMAGES, HIDDEN, LINEAR, MODELS, Factors, data_moved
from tests.builders.workloads import with_settings
from tests.suites.planned import planned

MNIST = 60_000
BATCH, RANKS = 1024, 4
VGG16 = Workload("v", ImageFamily("vgg16", num_classes=10, classifier_hidden=4096), "fp32", BATCH)
PUBLISHED = {
    "squeezenet1_0": 5_130, "resnet18": 5_130, "alexnet": 54_575_114, "densenet121": 21_020_682, "vgg16": 119_586_826,
}  # fmt: skip
PUBLISHED_BY_HIDDEN = {4096: 119_586_826, 2048: 55_599_114, 1024: 26_750_986}


@pytest.mark.parametrize("model", PUBLISHED)
def test_trained_parameters_are_the_published_ones(model: str) -> None:
    workload = with_settings(VGG16, model=model, classifier_hidden=0 if model in LINEAR else 4096)
    assert workload.family.classifier_parameters == PUBLISHED[model]


@pytest.mark.parametrize("hidden", PUBLISHED_BY_HIDDEN)
def test_the_three_sizes_of_vgg16_are_hidden_layers_of_4096_2048_and_1024(hidden: int) -> None:
    assert with_settings(VGG16, classifier_hidden=hidden).family.classifier_parameters == PUBLISHED_BY_HIDDEN[hidden]


def test_the_default_sweep_is_its_experiment() -> None:
    plan = planned(Factors())
    centre, *others = (study.workload for study in plan.studies)
    assert (centre.family.model, centre.batch_size, centre.family.classifier_hidden) == ("vgg16", BATCH, 4096)
    assert {arm.world_size for arm in plan.studies[0].arms} == {1, 2, 3, RANKS}
    assert {one.batch_size for one in (centre, *others)} == {1024, 512, 256, 128, 64} == set(BATCHES)
    assert {one.family.model for one in (centre, *others)} == set(PUBLISHED) == set(MODELS)
    found = {one.family.classifier_parameters for one in (centre, *others) if one.family.model == "vgg16"}
    assert found == set(PUBLISHED_BY_HIDDEN.values())
    assert set(HIDDEN) == set(PUBLISHED_BY_HIDDEN)
    assert len(plan.studies) == 1 + 4 + 4 + 2, "one factor at a time"


def test_data_moved_at_its_centre_by_its_formula() -> None:
    data = data_moved(PUBLISHED["vgg16"], BATCH, RANKS)
    assert EPOCH_IMAGES == MNIST
    assert data["document_parameters_per_epoch"] == pytest.approx(60_000 / (1024 * 4) * 119_586_826)
    assert data["document_gb_per_epoch"] == pytest.approx(7.007, rel=1e-3)
