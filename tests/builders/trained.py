"""The workloads that tests of the worker train: small enough for tens of steps a second."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torchvision.models import VisionTransformer
from torchvision.models._api import register_model

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.device import CpuDevice
from tests.builders.workloads import with_settings

CPU = torch.device("cpu")
TIMEOUT = timedelta(seconds=60)
MODEL = "minute"
ImageFamily.models |= {MODEL}
TINY = Workload("tiny", ImageFamily(MODEL, 32, "contiguous", num_classes=10), "fp32", 2, 4)


@register_model(name=MODEL)  # type: ignore[untyped-decorator]
def minute(weights: None = None, *, num_classes: int) -> nn.Module:
    """What trains in no time, with buffers that DDP broadcasts. All that `tests.forks` starts knows it."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes)
    )


@register_model()  # type: ignore[untyped-decorator]
def vit_of_a_test(weights: None = None, **options: Any) -> VisionTransformer:
    """Two layers of 64 dimensions: the smallest of torchvision has twelve of 768, which take seconds to build."""
    return VisionTransformer(patch_size=16, num_layers=2, num_heads=2, hidden_dim=64, mlp_dim=128, **options)


TRANSFORMER = with_settings(TINY, model="vit_of_a_test")


def study(*arms: Arm, workload: Workload = TINY) -> Study:
    return Study("weak", workload, arms, rounds=5, block_s=0.1, warmup_s=0.1)


def arms_of(
    *arms: Arm, workload: Workload = TINY, device: CpuDevice | None = None, rank: int = 0, ranks: int = 1, **more: Any
) -> StudyArms:
    """Those of a rank of one node."""
    device = device or CpuDevice()
    return StudyArms(study(*arms, workload=workload), device, rank, Layout(1, ranks), TIMEOUT, **more)
