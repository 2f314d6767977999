"""Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs": what can be computed.

Its times are figures without numbers. docs/evidence/documents.md lists where it contradicts itself.
"""

from __future__ import annotations

import pytest

from pytest_ddpscale.suites.factors import Factors, data_moved
from tests.suites.planned import planned

VGG16 = {4096: 119_586_826, 2048: 55_599_114, 1024: 26_750_986}  # trained parameters by width of its hidden layers
OTHERS = {"squeezenet1_0": 5_130, "resnet18": 5_130, "alexnet": 54_575_114, "densenet121": 21_020_682}


def test_the_default_sweep_is_its_experiment_with_the_published_trained_parameters() -> None:
    centre, *others = planned(Factors()).studies
    of = [(one.workload.family.model, one.workload.batch_size, one.workload.family) for one in (centre, *others)]
    assert (of[0][:2], of[0][2].classifier_hidden) == (("vgg16", 1024), 4096)
    assert {arm.world_size for arm in centre.arms} == {1, 2, 3, 4}
    assert sorted(batch for model, batch, _ in of if model == "vgg16") == [64, 128, 256, 512, 1024, 1024, 1024]
    assert {
        family.classifier_hidden: family.classifier_parameters for model, _, family in of if model == "vgg16"
    } == VGG16
    assert {model: family.classifier_parameters for model, _, family in of if model != "vgg16"} == OTHERS
    assert len(of) == 1 + 4 + 4 + 2, "one factor at a time"


def test_data_moved_at_its_centre_is_by_its_formula_and_by_a_ring() -> None:
    data = data_moved(VGG16[4096], 1024, 4)
    assert data["document_gb_per_epoch"] == pytest.approx(4 * 60_000 / (1024 * 4) * VGG16[4096] / 1e9)
    assert data["document_gb_per_epoch"] == pytest.approx(7.007, rel=1e-3)
    steps = 15  # of 15,000 images of each rank in batches of 1,024, the last of them smaller
    assert data["sent_gb_per_rank_and_epoch"] == pytest.approx(steps * 1.5 * 4 * VGG16[4096] / 1e9)
    assert data_moved(VGG16[4096], 1024, 1)["sent_gb_per_rank_and_epoch"] == 0
