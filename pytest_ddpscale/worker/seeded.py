"""One training step that every rank computes alone from the same seed, with results that have to be equal."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.replica_checksum import checksum
from pytest_ddpscale.worker.training import Batch, autocast

_SEED = 20_231
# Batch normalisation needs at least two; eight cost next to nothing.
_SMALLEST_BATCH, _LARGEST_BATCH = 2, 8


def seeded_step(model: nn.Module, workload: Workload) -> tuple[str, bool]:
    """Compute the step twice: its checksum, and whether it repeats on this rank; arguments as in `seeded_checksum`.

    If most ranks cannot repeat it, the model has an operation without a deterministic kernel, and ranks cannot be
    compared. If a single rank cannot, it is broken.
    """
    first, second = seeded_checksum(model, workload), seeded_checksum(model, workload)
    return first if first == second else f"{first}+{second}", first == second


def seeded_checksum(model: nn.Module, workload: Workload, *, seed: int = _SEED) -> str:
    """Checksum of the gradients of one forward and backward pass, without communication.

    Ranks on the same SKU and software have to agree in every bit. One that does not suffers from silent data
    corruption (Dixit et al., 2021, arXiv:2102.11245).

    Args:
        model: from `build_model` and not trained since. It is left unchanged, without gradients.
    """
    device = next(model.parameters()).device
    batch_size = min(max(_SMALLEST_BATCH, workload.batch_size), _LARGEST_BATCH)
    batch = Batch(workload, batch_size, device, seed)
    buffers = [buffer.clone() for buffer in model.buffers()]
    with reproducible(device, seed):
        with autocast(workload, device):
            loss = nn.functional.cross_entropy(model(batch.images), batch.labels)
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    result = checksum(gradients)
    model.zero_grad(set_to_none=True)
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)
    return result


@contextmanager
def reproducible(device: torch.device, seed: int) -> Iterator[None]:
    """A context with seeded random numbers and deterministic algorithms.

    cuDNN's benchmark would choose algorithms by measured speed, and fused attention kernels add up gradients in the
    order in which blocks finish.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic, torch.get_deterministic_debug_mode()
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        sdpa_kernel(SDPBackend.MATH),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # about operations that may have no deterministic variant
        cudnn.benchmark, cudnn.deterministic = False, True
        torch.set_deterministic_debug_mode("warn")
        torch.manual_seed(seed)
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic = before[0], before[1]
            torch.set_deterministic_debug_mode(before[2])
