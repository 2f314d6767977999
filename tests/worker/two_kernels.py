"""A model that torch.compile is done with in a tenth of a second."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest
import torch
from torch import nn

# torch 2.9 needs setuptools, too, and installs it from Python 3.12 on.
_MISSING = "setuptools" if find_spec("setuptools") is None else "g++" if shutil.which("g++") is None else ""
needs_compiler = pytest.mark.skipif(bool(_MISSING), reason=f"torch.compile on a CPU needs {_MISSING}")


class TwoKernels(nn.Module):
    """Of a convolution torch.compile makes more kernels, and torch's own modules it skips."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(images.flatten(1)).relu()
        return logits
