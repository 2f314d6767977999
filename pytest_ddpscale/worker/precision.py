"""Full fp32 instead of TF32, which has 10 bits of mantissa, or bf16."""

from __future__ import annotations

import torch


def compute_fp32_in_full() -> None:
    """Compute fp32 matrix products and convolutions in fp32 from now on, whatever was set before.

    By default cuDNN convolves in TF32 from Ampere on; TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which containers set, does the
    same to matrix products. There are also settings by backend. If they disagree with the older ones, torch raises an
    error when they are read, for example by torch.compile, so all are set.
    """
    torch.backends.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.cudnn.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
