"""fp32 that is fp32: neither TF32, with its 10 bits of mantissa, nor bf16 in its place."""

from __future__ import annotations

import torch


def compute_fp32_in_full() -> None:
    """Have matrix products and convolutions of fp32 computed in fp32 from now on, whatever was set before.

    By default cuDNN convolves in TF32 from Ampere on; TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which containers set, does the
    same to matrix products. From torch 2.9 on there are settings by backend as well. Where they and the older
    ones disagree, torch raises an error when anybody asks, as torch.compile does: all are set.
    """
    if hasattr(torch.backends, "fp32_precision"):
        torch.backends.fp32_precision = "ieee"
        torch.backends.cudnn.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
