"""The image family: torchvision's classification models, trained whole or as frozen features for a classifier."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from pytest_ddpscale.plan.words import refuse_beyond

MemoryFormat = Literal["channels_last", "contiguous"]
MOST_HIDDEN = 10**5
# Beyond any GPU's memory or any data set.
_MOST = {"image_size": 10**4, "num_classes": 10**6}
# Listed here because importing torchvision takes seconds.
TORCHVISION_MODELS = frozenset(
    """
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169 densenet201
    efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_b6
    efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
    mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf
    regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf regnet_y_16gf regnet_y_1_6gf
    regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34
    resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
    shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn
    vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32 vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2
    wide_resnet50_2
    """.split()  # noqa: SIM905 (words are easier to read and to compare)
)
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
# Features per image by model; independent of the image size, because all of them pool at the end.
FEATURES = {model: width for width, models in _WIDTHS.items() for model in models.split()}


@dataclass(frozen=True)
class ImageFamily:
    """Options of a workload whose samples are images.

    Attributes:
        model: a torchvision classification model, for example ``resnet152`` or ``vit_b_16``.
        image_size: height and width of an image, in pixels.
        memory_format: ``channels_last`` (NHWC) or ``contiguous`` (NCHW).
        num_classes: size of the classification head.
        cudnn_benchmark: whether cuDNN may time its algorithms and choose the fastest.
        classifier_hidden: freezes the model and trains a classifier on its features, with two hidden layers of this
            width, or one linear layer if 0; None trains the whole model.
        feature_weights: absolute path, on every node, of torchvision's state dict for frozen features; None for random
            weights.
        kind: the family's name in plan.json.
        unit: of samples, as in ``img/s``.
        samples: plural of a sample.
        of_kernels: options beside the model that decide which kernels run for a sample.
    """

    model: str
    image_size: int = 224
    memory_format: MemoryFormat = "channels_last"
    num_classes: int = 1000
    cudnn_benchmark: bool = True
    classifier_hidden: int | None = None
    feature_weights: str | None = None
    kind: Literal["image"] = "image"

    unit: ClassVar[str] = "img"
    samples: ClassVar[str] = "images"
    of_kernels: ClassVar[tuple[str, ...]] = ("image_size", "memory_format", "classifier_hidden")

    def __post_init__(self) -> None:
        refuse_beyond(self, _MOST)
        patched = re.fullmatch(r"vit_[a-z]_([1-9][0-9]*)", self.model)
        patch = int(patched[1]) if patched else 1
        if self.image_size % patch:
            raise ValueError(
                f"image_size is {self.image_size}, which {self.model} cannot cut into patches of {patch} pixels; "
                f"expected a multiple of {patch}"
            )
        if self.classifier_hidden is not None:
            if self.model not in FEATURES:
                raise ValueError(
                    f"classifier_hidden freezes {self.model}, whose number of features is unknown; expected one of "
                    f"{', '.join(sorted(FEATURES))}"
                )
            if not 0 <= self.classifier_hidden <= MOST_HIDDEN:
                raise ValueError(f"classifier_hidden is {self.classifier_hidden}; expected 0 to {MOST_HIDDEN}")
        elif self.feature_weights is not None:
            raise ValueError("feature_weights is set without classifier_hidden, so nothing is frozen; set both or none")

    @property
    def trains_all(self) -> bool:
        """Whether the whole model is trained, rather than a classifier on frozen features."""
        return self.classifier_hidden is None

    @property
    def trained(self) -> str:
        """A description of what is trained."""
        return self.model if self.trains_all else f"a classifier on frozen {self.model}"

    @property
    def classifier_parameters(self) -> int:
        """Weights and biases of the trained classifier on frozen features; only these are reduced by DDP."""
        hidden, classes = self.classifier_hidden, self.num_classes
        widths = (FEATURES[self.model], hidden, hidden, classes) if hidden else (FEATURES[self.model], classes)
        return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))
