"""Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs": what can be computed.

Its times are figures without numbers. docs/evidence/documents.md lists where it contradicts itself.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.plan.frozen_features import trained_parameters
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.data_parallel_suite import DataParallelSuite
from pytest_ddpscale.suites.factors_suite import BATCHES, HIDDEN, LINEAR, MODELS, Factors
from pytest_ddpscale.suites.factors_values import EPOCH_IMAGES, DataMoved
from tests.suites.planned import planned

MNIST = 60_000
BATCH, RANKS = 1024, 4
VGG16 = Workload("v", "vgg16", "fp32", BATCH, num_classes=10, classifier_hidden=4096)
PUBLISHED = {
    "squeezenet1_0": 5_130, "resnet18": 5_130, "alexnet": 54_575_114, "densenet121": 21_020_682, "vgg16": 119_586_826,
}  # fmt: skip
PUBLISHED_BY_HIDDEN = {4096: 119_586_826, 2048: 55_599_114, 1024: 26_750_986}


@pytest.mark.parametrize("model", PUBLISHED)
def test_trained_parameters_are_the_published_ones(model: str) -> None:
    workload = replace(VGG16, model=model, classifier_hidden=0 if model in LINEAR else 4096)
    assert trained_parameters(workload) == PUBLISHED[model]


@pytest.mark.parametrize("hidden", PUBLISHED_BY_HIDDEN)
def test_the_three_sizes_of_vgg16_are_hidden_layers_of_4096_2048_and_1024(hidden: int) -> None:
    assert trained_parameters(replace(VGG16, classifier_hidden=hidden)) == PUBLISHED_BY_HIDDEN[hidden]


def test_the_models_with_5130_parameters_cannot_have_the_classifier_that_it_describes() -> None:
    for model in ("squeezenet1_0", "resnet18"):
        described = trained_parameters(replace(VGG16, model=model, classifier_hidden=4096))
        assert described == 18_923_530 != PUBLISHED[model]


def test_the_default_sweep_is_its_experiment() -> None:
    plan = planned(Factors())
    centre, *others = (study.workload for study in plan.studies)
    assert (centre.model, centre.batch_size, centre.classifier_hidden) == ("vgg16", BATCH, 4096)
    assert {arm.world_size for arm in plan.studies[0].arms} == {1, 2, 3, RANKS}
    assert {one.batch_size for one in (centre, *others)} == {1024, 512, 256, 128, 64} == set(BATCHES)
    assert {one.model for one in (centre, *others)} == set(PUBLISHED) == set(MODELS)
    found = {trained_parameters(one) for one in (centre, *others) if one.model == "vgg16"}
    assert found == set(PUBLISHED_BY_HIDDEN.values())
    assert set(HIDDEN) == set(PUBLISHED_BY_HIDDEN)
    assert len(plan.studies) == 1 + 4 + 4 + 2, "one factor at a time"


def test_the_default_batches_of_inference_are_its_own() -> None:
    assert [study.workload.batch_size for study in planned(DataParallelSuite()).studies] == [32, 64, 128, 256]


def test_data_moved_at_its_centre_by_its_formula() -> None:
    data = DataMoved(PUBLISHED["vgg16"], BATCH, RANKS)
    assert EPOCH_IMAGES == MNIST
    assert data.document_parameters == pytest.approx(60_000 / (1024 * 4) * 119_586_826)
    assert data.document_bytes == pytest.approx(7.007e9, rel=1e-3)


def test_its_formula_counts_steps_and_not_what_is_sent_in_one() -> None:
    """So that one GPU, which sends nothing, moves most."""
    by_ranks = {k: DataMoved(PUBLISHED["vgg16"], BATCH, k) for k in (1, 2, 3, 4)}
    formula = [one.document_parameters for one in by_ranks.values()]
    assert formula == sorted(formula, reverse=True)
    assert by_ranks[1].sent_bytes == 0
    assert by_ranks[2].sent_bytes_per_step == 4 * PUBLISHED["vgg16"]


def test_what_a_rank_sends_in_a_step_grows_with_the_ranks_although_communication_is_said_to_fall_with_the_data() -> (
    None
):
    sent = [DataMoved(PUBLISHED["vgg16"], BATCH, k).sent_bytes_per_step for k in (1, 2, 3, 4)]
    assert sent == sorted(sent)
    assert sent[3] / sent[1] == pytest.approx(1.5)


def test_a_larger_batch_sends_less_in_an_epoch_and_as_much_in_a_step_although_it_is_said_to_send_more() -> None:
    by_batch = [DataMoved(PUBLISHED["vgg16"], batch, RANKS) for batch in sorted(BATCHES)]
    formula = [one.document_parameters for one in by_batch]
    assert formula == sorted(formula, reverse=True)
    assert formula[0] / formula[-1] == 16
    assert len({one.sent_bytes_per_step for one in by_batch}) == 1


def test_500_epochs_are_more_than_the_several_thousand_iterations_that_it_averages_over() -> None:
    steps = DataMoved(PUBLISHED["vgg16"], BATCH, RANKS).steps
    assert steps == 15
    assert 500 * steps == 7_500


@pytest.mark.lab
def test_densenet_computes_a_fifth_of_vgg16_and_so_is_slow_for_another_reason_than_its_computation() -> None:
    models = pytest.importorskip("torchvision.models")
    published = {name: models.get_model_weights(name).DEFAULT.meta["_ops"] for name in ("densenet121", "vgg16")}
    assert published["densenet121"] / published["vgg16"] == pytest.approx(0.183, abs=0.001)
