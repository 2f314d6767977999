"""The workload that tests of the worker train: small enough for a few steps a second."""

from __future__ import annotations

from datetime import timedelta

import torch

from pytest_ddpscale.plan.study import Arm, Study
from pytest_ddpscale.plan.workload import Workload

CPU = torch.device("cpu")
TIMEOUT = timedelta(seconds=60)
TINY = Workload("tiny", "resnet18", "fp32", 2, 32, "contiguous", num_classes=10)


def study(*arms: Arm, workload: Workload = TINY) -> Study:
    return Study("weak", workload, arms, rounds=5, block_s=0.1, warmup_s=0.1)
