"""Parameters of a classifier on frozen features, and the packaged list of models against torchvision's own."""

from __future__ import annotations

import pytest

from pytest_ddpscale.plan.image_family import FEATURES, TORCHVISION_MODELS, ImageFamily
from pytest_ddpscale.plan.workload import Workload
from tests.builders.workloads import with_settings
from tests.rows import rows

FROZEN = Workload("frozen", ImageFamily("vgg16", num_classes=10, classifier_hidden=4096), "fp32", 8)


@rows(("hidden", "count"), [(0, 25088 * 10 + 10), (5, (25088 * 5 + 5) + (5 * 5 + 5) + (5 * 10 + 10))])
def test_a_linear_layer_and_three_are_counted_with_their_biases(hidden: int, count: int) -> None:
    assert with_settings(FROZEN, classifier_hidden=hidden).family.classifier_parameters == count


def test_only_the_classifier_is_trained() -> None:
    assert not FROZEN.family.trains_all
    assert with_settings(FROZEN, classifier_hidden=None).family.trains_all


def test_all_models_with_known_features_are_torchvisions() -> None:
    assert set(FEATURES) <= TORCHVISION_MODELS


@rows(
    ("change", "told"),
    [
        (
            {"model": "vit_b_16"},
            "classifier_hidden freezes vit_b_16, whose number of features is unknown; expected one",
        ),
        ({"classifier_hidden": -1}, "classifier_hidden is -1; expected 0 to 100000"),
        ({"classifier_hidden": None, "feature_weights": "w.pth"}, "without classifier_hidden, so nothing is frozen"),
    ],
)
def test_what_cannot_be_frozen_is_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        with_settings(FROZEN, **change)


def test_the_packaged_list_is_torchvisions() -> None:
    import torchvision.models

    assert set(torchvision.models.list_models(module=torchvision.models)) == TORCHVISION_MODELS
