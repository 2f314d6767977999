"""How many parameters a classifier on frozen features has, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.plan.frozen_features import FEATURES, classifier_parameters, trained_parameters
from pytest_ddpscale.plan.torchvision_models import TORCHVISION_MODELS
from pytest_ddpscale.plan.workload import Workload
from tests.rows import rows

FROZEN = Workload("frozen", "vgg16", "fp32", 8, num_classes=10, classifier_hidden=4096)


def test_a_linear_layer_and_three_are_counted_with_their_biases() -> None:
    assert classifier_parameters(3, 0, 2) == 3 * 2 + 2
    assert classifier_parameters(3, 5, 2) == (3 * 5 + 5) + (5 * 5 + 5) + (5 * 2 + 2)


def test_only_the_classifier_is_trained() -> None:
    assert trained_parameters(FROZEN) == classifier_parameters(25088, 4096, 10)
    assert not FROZEN.trains_all
    assert replace(FROZEN, classifier_hidden=None).trains_all


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
        replace(FROZEN, **change)  # type: ignore[arg-type]
