"""The trained model of a rank: what all ranks have to agree on in it, and the floating-point operations it takes."""

from __future__ import annotations

import copy
import hashlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.records import WorkloadFlops
from pytest_ddpscale.worker.training import Batch, autocast

_BATCH_SEED = 20_232
# Batch for the statistics of batch normalisation: enough for a variance, small enough to fit with any model.
_STATISTICS_BATCH = 8
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def take_statistics(model: nn.Module, workload: Workload, device: torch.device) -> None:
    """Set the running statistics of batch normalisation from a batch of random samples.

    Evaluation mode uses the running statistics. In an untrained model these are a mean of 0 and a variance of 1, which
    normalise nothing: activations double through the blocks of ResNet-152 until fp16 overflows.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 1.0  # replaces earlier statistics by those of this batch
    was_training = model.training
    try:
        with torch.no_grad(), autocast(workload, device):
            model.train()(Batch(workload, _STATISTICS_BATCH, device, _BATCH_SEED).inputs)
    finally:
        model.train(was_training)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def checksum(tensors: Iterable[torch.Tensor]) -> str:
    """16 hexadecimal digits that change if any one bit of any tensor does.

    Each tensor's bits are summed as integers, which gives the same sum in any order. Reading the sums takes one
    synchronisation with the device.
    """
    sums = [tensor.detach().view(_BITS[tensor.element_size()]).sum(dtype=torch.int64) for tensor in tensors]
    numbers = torch.stack(sums).tolist()
    return hashlib.blake2b(",".join(map(str, numbers)).encode(), digest_size=8).hexdigest()


_STEP_SEED = 20_231
# Batch normalisation needs at least two; eight cost next to nothing.
_SMALLEST_BATCH, _LARGEST_BATCH = 2, 8


def seeded_step(model: nn.Module, workload: Workload) -> tuple[str, bool]:
    """Compute the step twice: its checksum, and whether it repeats on this rank; arguments as in `seeded_checksum`.

    If most ranks cannot repeat it, the model has an operation without a deterministic kernel, and ranks cannot be
    compared. If a single rank cannot, it is broken.
    """
    first, second = seeded_checksum(model, workload), seeded_checksum(model, workload)
    return first if first == second else f"{first}+{second}", first == second


def seeded_checksum(model: nn.Module, workload: Workload, *, seed: int = _STEP_SEED) -> str:
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
            loss = workload.family.loss(model, batch.inputs, batch.targets)
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


_STATISTICS_SEED = 20_233


def build_model(workload: Workload, device: torch.device, seed: int = 0) -> nn.Module:
    """The untrained model of a workload, the same on every rank of one SKU. Raises as `Family.build`."""
    model = workload.family.build(device, seed)
    frozen = workload.family.frozen(model)
    if frozen is not None:
        # Reproducible, because statistics affect every rank's results, which are compared bit for bit.
        with reproducible(device, _STATISTICS_SEED):
            take_statistics(frozen, workload, device)
    return model


# Batch normalisation needs two samples.
_FLOPS_BATCH = 2


def flops_per_sample(model: nn.Module, workload: Workload) -> float:
    """Operations of one forward and backward pass, per sample; a multiplication and an addition are two.

    Counted on a copy without data (device ``meta``), which takes no memory and less than a second.
    Attention counts as its matrix products, and recomputation in fused kernels does not count:
    model FLOPs (PaLM, arXiv:2204.02311, appendix B), not hardware FLOPs.

    Raises:
        Exception: whatever torch raises if the model cannot run without data.
    """
    family, shadow = workload.family, _without_data(model)
    batch = family.batch(_FLOPS_BATCH, torch.device("meta"))
    with FlopCounterMode(display=False, custom_mapping=dict(family.flops())) as counter:
        family.loss(shadow, *batch).backward()
    return float(counter.get_total_flops() / _FLOPS_BATCH)


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
