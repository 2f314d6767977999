"""What one rank trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pytest_ddpscale.plan.image_folder import Data

Precision = Literal["fp32", "fp16", "bf16"]
MemoryFormat = Literal["channels_last", "contiguous"]
# More than any GPU holds, or any data set has.
_MOST = {"batch_size": 10**6, "global_batch_size": 10**8, "image_size": 10**4, "num_classes": 10**6}


@dataclass(frozen=True)
class Workload:
    """One training job, as a single rank sees it.

    Attributes:
        name: how thresholds, tests and reports call it, for example ``resnet152-fp16``.
        model: a torchvision classification model, for example ``resnet152`` or ``vit_b_16``.
        precision: ``fp32``; ``fp16`` (autocast with GradScaler); ``bf16`` (autocast).
        batch_size: per-GPU batch, in images. Weak scaling keeps it fixed.
        image_size: height and width of an image, in pixels.
        memory_format: ``channels_last`` (NHWC) or ``contiguous`` (NCHW).
        global_batch_size: the batch that strong scaling divides among the ranks, in images.
        compile: whether ``torch.compile`` is applied, after DistributedDataParallel.
        cudnn_benchmark: whether cuDNN may time its algorithms and choose the fastest.
        num_classes: size of the classification head.
        optimizer: ``sgd`` is torch.optim.SGD with momentum 0.9.
        data: ``synthetic`` is random images and labels made on the device; else a folder that they are read from.
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

    # Lets pydantic validate this class from YAML without plan/ importing pydantic.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for field, most in _MOST.items():
            number = getattr(self, field)
            if number is not None and not 1 <= number <= most:
                expected = "at least 1" if number < 1 else f"at most {most}"
                raise ValueError(f"{field} is {number}; expected {expected}")

    @property
    def data_text(self) -> str:
        """For a reader: ``synthetic data``, or which folder is read, and how."""
        return "synthetic data" if self.data == "synthetic" else f"images from {self.data}"

    @property
    def data_kind(self) -> str:
        """``synthetic`` or ``folder``."""
        return "synthetic" if self.data == "synthetic" else "folder"


# Two workloads with the same values here run the same kernels per image. Batch size is left out
# on purpose: generations are compared each at its own largest batch.
COMPARABLE_FIELDS = ("model", "precision", "image_size", "memory_format", "data_kind")


def incomparable_fields(one: Workload, other: Workload) -> list[str]:
    """Names of the fields that forbid comparing the throughput of two SKUs."""
    return [f for f in COMPARABLE_FIELDS if getattr(one, f) != getattr(other, f)]
