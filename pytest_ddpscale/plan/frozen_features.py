"""Workloads that train a classifier on a frozen network's features: numbers of features and parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpscale.plan.workload import Workload

BYTES_PER_GRADIENT = 4  # autocast keeps parameters and gradients in fp32
_WIDTHS = {
    512: "resnet18 resnet34 squeezenet1_0 squeezenet1_1",
    1024: "densenet121 shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5",
    1664: "densenet169",
    1920: "densenet201",
    2048: "resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x8d resnext101_64x4d shufflenet_v2_x2_0 "
    "wide_resnet50_2 wide_resnet101_2",
    2208: "densenet161",
    9216: "alexnet",
    25088: "vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn",
}
# Features per image by torchvision model; independent of the image size, because all of them pool at the end.
FEATURES = {model: width for width, models in _WIDTHS.items() for model in models.split()}


def classifier_parameters(features: int, hidden: int, classes: int) -> int:
    """Weights and biases of features → hidden → hidden → classes, or of one linear layer if `hidden` is 0."""
    if not hidden:
        return features * classes + classes
    return (features * hidden + hidden) + (hidden * hidden + hidden) + (hidden * classes + classes)


def trained_parameters(workload: Workload) -> int:
    """Trained parameters of a workload with frozen features; only these are reduced by DDP."""
    assert workload.classifier_hidden is not None
    return classifier_parameters(FEATURES[workload.model], workload.classifier_hidden, workload.num_classes)


def refuse_unknown_features(model: str) -> None:
    """Raise ValueError unless the number of features of a model is known."""
    if model not in FEATURES:
        raise ValueError(f"classifier_hidden freezes {model}, whose number of features is unknown; expected one of "
                         f"{', '.join(sorted(FEATURES))}")  # fmt: skip
