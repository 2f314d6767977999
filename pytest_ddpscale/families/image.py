"""The image family: torchvision's classification models, trained whole or as frozen features for a classifier."""

from __future__ import annotations

import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pytest_ddpscale.families.family import Family, option

if TYPE_CHECKING:
    import torch
    from torch import nn

MemoryFormat = Literal["channels_last", "contiguous"]
MOST_HIDDEN = 10**5
# A model of this project: three linear layers; the number of hidden units follows.
CLASSIFIER = "classifier-"
# Statistics of ImageNet, used by torchvision's models, for red, green and blue pixels in 0 … 1.
_MEAN, _STDEV = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_IMAGENET_CLASSES = 1000
# torchvision's published DenseNets use names from before torch 0.4: norm.1 instead of norm1.
_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.(?=[12]\.)")
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
# Multiply-accumulates of a forward pass of one 224 px image: torchvision's model documentation (GFLOPS of the first
# listed weights; its "FLOPs" are multiply-accumulates).
FORWARD_MACS = {
    "shufflenet_v2_x0_5": 0.040e9,
    "squeezenet1_1": 0.349e9,
    "resnet18": 1.814e9,
    "resnet34": 3.664e9,
    "resnet50": 4.089e9,
    "resnet101": 7.801e9,
    "resnet152": 11.514e9,
    "resnext50_32x4d": 4.230e9,
    "resnext101_32x8d": 16.414e9,
    "vit_b_16": 17.564e9,
    "vit_b_32": 4.409e9,
    "vit_l_16": 61.555e9,
}
_TABLE_PX = 224
# 2 per multiply-accumulate; the backward pass costs two forward passes.
_FLOPS_PER_MAC = 6


@dataclass(frozen=True)
class ImageFamily(Family):
    """Options of a workload whose samples are images.

    Attributes:
        model: a torchvision classification model, for example ``resnet152`` or ``vit_b_16``, or one of this project,
            such as ``classifier-64``.
        memory_format: ``channels_last`` (NHWC) or ``contiguous`` (NCHW).
        classifier_hidden: freezes the model and trains a classifier on its features, with two hidden layers of this
            width, or one linear layer if 0; None trains the whole model.
        feature_weights: absolute path, on every node, of torchvision's state dict for frozen features; None for random
            weights.
    """

    model: str
    # Limits beyond any GPU's memory or any data set.
    image_size: int = option(224, "Height and width of an image, in pixels.", 10**4)
    memory_format: MemoryFormat = option("channels_last", "Memory format of images and weights.")
    num_classes: int = option(1000, "Size of the classification head.", 10**6)
    cudnn_benchmark: bool = option(True, "Whether cuDNN may benchmark and choose the fastest algorithm.")
    classifier_hidden: int | None = None
    feature_weights: str | None = None
    kind: Literal["image"] = "image"

    unit: ClassVar[str] = "img"
    samples: ClassVar[str] = "images"
    models: ClassVar[frozenset[str]] = TORCHVISION_MODELS
    models_are: ClassVar[str] = "a classification model of torchvision, such as resnet50"
    size_option: ClassVar[str] = "image_size"
    of_kernels: ClassVar[tuple[str, ...]] = ("image_size", "memory_format", "classifier_hidden")
    settings_order: ClassVar[tuple[str, ...]] = (
        "name", "model", "precision", "batch_size", "image_size", "memory_format", "global_batch_size", "compile",
        "cudnn_benchmark", "num_classes", "optimizer", "data", "classifier_hidden", "feature_weights",
    )  # fmt: skip
    reads_folders: ClassVar[bool] = True

    @classmethod
    def usual(cls, model: str, *, is_cpu: bool, **options: Any) -> ImageFamily:
        """A model in the memory format in which it is fastest on a device."""
        is_contiguous = is_cpu or model.startswith(("vit_", CLASSIFIER))
        return cls(model, memory_format="contiguous" if is_contiguous else "channels_last", **options)

    @property
    def flops_per_sample(self) -> float | None:
        """By area, which is exact for 224 px and close enough for others."""
        macs = FORWARD_MACS.get(self.trained)
        return None if macs is None else _FLOPS_PER_MAC * macs * (self.image_size / _TABLE_PX) ** 2

    def __post_init__(self) -> None:
        super().__post_init__()
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
    def form(self) -> str:
        """``224 px, channels_last``."""
        return f"{self.image_size} px, {self.memory_format}"

    @property
    def trains_all(self) -> bool:
        """Whether the whole model is trained, rather than a classifier on frozen features."""
        return self.classifier_hidden is None

    @property
    def trained(self) -> str:
        """A description of what is trained."""
        return self.model if self.trains_all else f"a classifier on frozen {self.model}"

    @property
    def learning_rate(self) -> float:
        """Larger for a classifier on frozen features."""
        return super().learning_rate if self.trains_all else 1e-2

    @property
    def channels(self) -> int:
        """Channels of an image: 3 for torchvision's models, 1 for classifiers of this project."""
        return 1 if self.model.startswith(CLASSIFIER) else 3

    @property
    def _classifier_widths(self) -> Sequence[int]:
        hidden, classes = self.classifier_hidden, self.num_classes
        return (FEATURES[self.model], hidden, hidden, classes) if hidden else (FEATURES[self.model], classes)

    @property
    def classifier_parameters(self) -> int:
        """Weights and biases of the trained classifier on frozen features; only these are reduced by DDP."""
        return sum((inputs + 1) * outputs for inputs, outputs in pairwise(self._classifier_widths))

    def build(self, device: torch.device, seed: int) -> nn.Module:
        """The untrained model, in its memory format, on the device.

        Weights are drawn on the device, because random numbers of a CPU depend on its instruction set, which may differ
        between hosts with the same GPUs.

        Raises:
            RuntimeError: the weights of frozen features cannot be read, or belong to another model.
            ValueError: torchvision has no such classification model.
        """
        import torch
        import torchvision
        from torch import nn

        torch.manual_seed(seed)
        if self.model.startswith(CLASSIFIER):
            hidden = int(self.model.removeprefix(CLASSIFIER))
            layers = (
                nn.Flatten(), nn.Linear(self.channels * self.image_size**2, hidden), nn.ReLU(),
                nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, self.num_classes),
            )  # fmt: skip
            return nn.Sequential(*layers).to(device)
        options: dict[str, Any] = {"num_classes": self.num_classes if self.trains_all else _IMAGENET_CLASSES}
        if self.model.startswith("vit_"):
            options["image_size"] = self.image_size
        with device:
            model: nn.Module = torchvision.models.get_model(self.model, weights=None, **options)
        model = self.laid_out(model.to(device))
        return model if self.trains_all else self._on_features(model, device)

    def _on_features(self, model: nn.Module, device: torch.device) -> nn.Module:
        """A classifier on a frozen network, which stays in evaluation mode and gets no gradients.

        Like in Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs": three
        linear layers with ReLU and dropout between them, or one.
        """
        from torch import nn
        from torchvision.models import SqueezeNet

        class OnFrozenFeatures(nn.Sequential):
            """Images → scores of classes; frozen batch normalisation keeps its statistics."""

            def train(self, mode: bool = True) -> OnFrozenFeatures:
                super().train(mode)
                self.get_submodule("features").eval()
                return self

        if self.feature_weights is not None:
            _load(model, self.feature_weights, self.model, device)
        # SqueezeNet's features are a map that still has to be pooled.
        head = nn.AdaptiveAvgPool2d(1) if isinstance(model, SqueezeNet) else nn.Identity()
        setattr(model, "fc" if hasattr(model, "fc") else "classifier", head)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        with device:
            *hidden, out = pairwise(self._classifier_widths)
            for place, widths in enumerate(hidden, 1):
                layers |= {f"linear{place}": nn.Linear(*widths), f"relu{place}": nn.ReLU(inplace=True)}
                layers[f"dropout{place}"] = nn.Dropout()
            layers["out"] = nn.Linear(*out)
            classifier = nn.Sequential(layers) if hidden else layers["out"]
        parts = OrderedDict(features=model.requires_grad_(False), classifier=classifier)
        return OnFrozenFeatures(parts).train()

    @property
    def _layout(self) -> torch.memory_format:
        import torch

        return torch.channels_last if self.memory_format == "channels_last" else torch.contiguous_format

    def laid_out(self, model: nn.Module) -> nn.Module:
        """The model in the family's memory format."""
        return model.to(memory_format=self._layout)

    def frozen(self, model: nn.Module) -> nn.Module | None:
        """The features, unless they have published weights, and statistics with them."""
        has_none = not self.trains_all and self.feature_weights is None
        return model.get_submodule("features") if has_none else None

    def batch(self, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, float32 (count, channels, image_size, image_size), and labels, int64 (count,)."""
        import torch

        images = torch.empty(count, self.channels, self.image_size, self.image_size, device=device)
        targets = torch.empty(count, dtype=torch.int64, device=device)
        return images.contiguous(memory_format=self._layout), targets

    def fill(self, inputs: torch.Tensor, targets: torch.Tensor, generator: torch.Generator) -> None:
        """Draw pixels, normally distributed, and labels, uniform over the classes."""
        inputs.normal_(generator=generator)
        targets.random_(0, self.num_classes, generator=generator)

    def loss(self, model: Callable[[torch.Tensor], Any], inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy."""
        from torch.nn import functional

        return functional.cross_entropy(model(inputs), targets)

    def flops(self) -> Mapping[Any, Callable[..., int]]:
        """Of convolutions in groups, where torch's formula ignores groups."""
        import torch

        return {torch.ops.aten.convolution_backward: _convolution_backward_flops}

    def finisher(self, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
        """Lays images out, and normalises those of bytes."""
        import torch

        of_bytes = (255 * torch.tensor(one, device=device) for one in (_MEAN, _STDEV))
        shift, scale = (one.view(1, 3, 1, 1) for one in of_bytes)

        def finish(read: torch.Tensor) -> torch.Tensor:
            images = read.contiguous(memory_format=self._layout)
            return images if images.is_floating_point() else (images - shift) / scale

        return finish


def _load(model: nn.Module, path: str, name: str, device: torch.device) -> None:
    import torch

    expected = f"expected torchvision's state dict of {name}, on every node"
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        model.load_state_dict({_OLD_DENSENET.sub(r"\1", key): tensor for key, tensor in state.items()})
    except OSError as error:
        raise RuntimeError(f"feature_weights {path}: {error.strerror or error}; {expected}") from error
    except (pickle.UnpicklingError, AttributeError, EOFError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()
        why = reason[0] if reason else type(error).__name__
        raise RuntimeError(f"feature_weights {path}: {why}; {expected}") from error


def _convolution_backward_flops(
    grad_out_shape: Sequence[int],
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    *arguments: Any,
    out_shape: Any = None,
    **options: Any,
) -> int:
    """As many operations as forward for each requested gradient, of the input and of the weights.

    torch's formula is the same without groups, but ignores groups: 40 times too many for EfficientNet's depthwise
    convolutions.

    Args:
        grad_out_shape: (batch, output channels, *space).
        x_shape: (batch, input channels, *space).
        w_shape: (output channels, input channels / groups, *window); transposed, channels change places.
        arguments: bias shape, stride, padding, dilation, transposed, output padding, groups, output mask.
        out_shape: of the gradients; not needed.
        options: none.
    """
    is_transposed, output_mask = arguments[4], arguments[7]
    positions = x_shape if is_transposed else grad_out_shape
    forward_flops = 2 * positions[0] * math.prod(positions[2:]) * math.prod(w_shape)
    return forward_flops * sum(map(int, output_mask[:2]))
