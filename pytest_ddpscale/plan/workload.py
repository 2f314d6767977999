"""The training job of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pytest_ddpscale.plan.frozen_features import refuse_unknown_features
from pytest_ddpscale.plan.image_folder import Data

Precision = Literal["fp32", "fp16", "bf16"]
MemoryFormat = Literal["channels_last", "contiguous"]
# Beyond any GPU's memory or any data set.
_MOST = {"batch_size": 10**6, "global_batch_size": 10**8, "image_size": 10**4, "num_classes": 10**6}
MOST_HIDDEN = 10**5


@dataclass(frozen=True)
class Workload:
    """One training job, as a single rank sees it.

    Attributes:
        name: its name in thresholds, tests and reports, for example ``resnet152-fp16``.
        model: a torchvision classification model, for example ``resnet152`` or ``vit_b_16``.
        precision: ``fp32``; ``fp16`` (autocast with GradScaler); ``bf16`` (autocast).
        batch_size: per-GPU batch, in images. Weak scaling keeps it fixed.
        image_size: height and width of an image, in pixels.
        memory_format: ``channels_last`` (NHWC) or ``contiguous`` (NCHW).
        global_batch_size: the batch that strong scaling divides among the ranks, in images.
        compile: whether ``torch.compile`` is applied after DistributedDataParallel.
        cudnn_benchmark: whether cuDNN may time its algorithms and choose the fastest.
        num_classes: size of the classification head.
        optimizer: ``sgd`` is torch.optim.SGD with momentum 0.9.
        data: ``synthetic`` for random images and labels generated on the device, else a folder of images.
        classifier_hidden: freezes the model and trains a classifier on its features, with two hidden layers of this
            width, or one linear layer if 0; None trains the whole model.
        feature_weights: absolute path, on every node, of torchvision's state dict for frozen features; None for random
            weights.
    """

    name: str
    model: str
    precision: Precision
    batch_size: int
    image_size: int = 224
    memory_format: MemoryFormat = "channels_last"
    global_batch_size: int | None = None
    compile: bool = False
    cudnn_benchmark: bool = True
    num_classes: int = 1000
    optimizer: Literal["sgd"] = "sgd"
    data: Data = "synthetic"
    classifier_hidden: int | None = None
    feature_weights: str | None = None

    # Lets pydantic validate this class from YAML without plan/ importing pydantic.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for field, most in _MOST.items():
            number = getattr(self, field)
            if number is not None and not 1 <= number <= most:
                expected = "at least 1" if number < 1 else f"at most {most}"
                raise ValueError(f"{field} is {number}; expected {expected}")
        if self.classifier_hidden is not None:
            refuse_unknown_features(self.model)
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
    def data_text(self) -> str:
        """A description of the data: ``synthetic data``, or the folder and how it is read."""
        return "synthetic data" if self.data == "synthetic" else f"images from {self.data}"

    @property
    def data_kind(self) -> str:
        """``synthetic`` or ``folder``."""
        return "synthetic" if self.data == "synthetic" else "folder"


# Workloads with equal values here run the same kernels per image. Batch size is deliberately not among them, because
# generations are compared each at its own largest batch.
COMPARABLE_FIELDS = ("model", "precision", "image_size", "memory_format", "classifier_hidden", "data_kind")


def incomparable_fields(one: Workload, other: Workload) -> list[str]:
    """Names of the fields that forbid comparing the throughput of two SKUs."""
    return [f for f in COMPARABLE_FIELDS if getattr(one, f) != getattr(other, f)]
