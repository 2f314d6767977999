"""A model that torch.compile is done with in a tenth of a second."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import nn

needs_compiler = pytest.mark.skipif(
    find_spec("setuptools") is None,
    reason="torch.compile of torch 2.6 needs setuptools, which it installs from Python 3.12 on",
)


class TwoKernels(nn.Module):
    """Of a convolution torch.compile makes more kernels, and torch's own modules it skips."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(images.flatten(1)).relu()
        return logits
