"""Floating-point operations per image, counted by torch."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.records import WorkloadFlops

# Batch normalisation needs two images.
_BATCH_SIZE = 2


def flops_per_sample(model: nn.Module, workload: Workload) -> float:
    """Operations of one forward and backward pass, per image; a multiplication and an addition are two.

    Counted on a copy without data (device ``meta``), which takes no memory and less than a second.
    Attention counts as its matrix products, and recomputation in fused kernels does not count:
    model FLOPs (PaLM, arXiv:2204.02311, appendix B), not hardware FLOPs.

    Raises:
        Exception: whatever torch raises if the model cannot run without data.
    """
    shadow = _without_data(model)
    pixels = workload.family.image_size
    images = torch.empty(_BATCH_SIZE, 3, pixels, pixels, device="meta")
    labels = torch.empty(_BATCH_SIZE, dtype=torch.int64, device="meta")
    formulas = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        nn.functional.cross_entropy(shadow(images), labels).backward()
    return float(counter.get_total_flops() / _BATCH_SIZE)


def workload_flops_record(study: Study, model: nn.Module) -> WorkloadFlops | None:
    """The record of a study's FLOPs; None, with the reason on stderr, if they cannot be counted."""
    try:
        flops = flops_per_sample(model, study.workload)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        print(f"{study.id}: FLOPs of {study.workload.family.model} not counted: {reason}", file=sys.stderr, flush=True)
        return None
    return WorkloadFlops(study=study.id, flops_per_sample=flops)


def _without_data(model: nn.Module) -> nn.Module:
    """A copy with tensors on the meta device."""
    parameters = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
        for p in model.parameters()
    }
    buffers = {id(buffer): torch.empty_like(buffer, device="meta") for buffer in model.buffers()}
    return copy.deepcopy(model, {**parameters, **buffers})


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
