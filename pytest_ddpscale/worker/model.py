"""The trained model of a rank: a whole model, or a classifier on the features of a frozen one; what all ranks have to
agree on in it, and the floating-point operations that it takes.
"""

from __future__ import annotations

import copy
import hashlib
import math
import pickle
import re
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import SqueezeNet

from pytest_ddpscale.plan.image_family import FEATURES, ImageFamily
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.records import WorkloadFlops
from pytest_ddpscale.worker.training import Batch, autocast, build_model

_BATCH_SEED = 20_232
# Batch for the statistics of batch normalisation: enough for a variance, small enough to fit with any model.
_STATISTICS_BATCH = 8
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def take_statistics(model: nn.Module, workload: Workload, device: torch.device) -> None:
    """Set the running statistics of batch normalisation from a batch of random images.

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
            model.train()(Batch(workload, _STATISTICS_BATCH, device, _BATCH_SEED).images)
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


_IMAGENET_CLASSES = 1000
_STATISTICS_SEED = 20_233
# torchvision's published DenseNets use names from before torch 0.4: norm.1 instead of norm1.
_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.(?=[12]\.)")


def build_trained_model(workload: Workload, device: torch.device) -> nn.Module:
    """The model of a workload, the same on every rank of one SKU.

    Raises:
        RuntimeError: the weights of frozen features cannot be read, or belong to another model.
        ValueError: raised by `build_model`.
    """
    family = workload.family
    if family.trains_all:
        return build_model(workload, device)
    features = build_model(replace(workload, family=replace(family, num_classes=_IMAGENET_CLASSES)), device)
    if family.feature_weights is not None:
        _load(features, family.feature_weights, family.model, device)
    _remove_head(features)
    if family.feature_weights is None:
        # Reproducible, because statistics affect every rank's results, which are compared bit for bit.
        with reproducible(device, _STATISTICS_SEED):
            take_statistics(features, workload, device)
    return OnFrozenFeatures(features, workload, device)


class OnFrozenFeatures(nn.Module):
    """A classifier on a frozen network, which stays in evaluation mode and gets no gradients.

    (batch, 3, image_size, image_size) → (batch, num_classes). Like in Banerjee and Shah, "Benchmarking Distributed
    Training and Inference on NVIDIA's A6000 GPUs": three linear layers with ReLU and dropout between them, or one.

    Args:
        features: (batch, 3, height, width) → (batch, features).
    """

    def __init__(self, features: nn.Module, workload: Workload, device: torch.device) -> None:
        super().__init__()
        self.features = features.requires_grad_(False)
        with device:
            self.classifier = _classifier(workload.family)
        self.train()

    def train(self, mode: bool = True) -> OnFrozenFeatures:
        """Set training mode of the classifier only, so frozen batch normalisation keeps its statistics."""
        super().train(mode)
        self.features.eval()
        return self

    def forward(self, images: torch.Tensor) -> Any:
        """Scores of the classes; activations of the features are not kept, because they need no gradients."""
        return self.classifier(self.features(images))


def _classifier(family: ImageFamily) -> nn.Module:
    width, hidden, classes = FEATURES[family.model], family.classifier_hidden, family.num_classes
    if not hidden:
        return nn.Linear(width, classes)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for place, (inputs, outputs) in enumerate(((width, hidden), (hidden, hidden)), 1):
        layers |= {f"linear{place}": nn.Linear(inputs, outputs), f"relu{place}": nn.ReLU(inplace=True)}
        layers[f"dropout{place}"] = nn.Dropout()
    layers["out"] = nn.Linear(hidden, classes)
    return nn.Sequential(layers)


def _remove_head(model: nn.Module) -> None:
    """Replace the head, so the model gives features; SqueezeNet's are a map that still has to be pooled."""
    is_map = isinstance(model, SqueezeNet)
    head = nn.AdaptiveAvgPool2d(1) if is_map else nn.Identity()
    setattr(model, "fc" if hasattr(model, "fc") else "classifier", head)


def _load(model: nn.Module, path: str, name: str, device: torch.device) -> None:
    expected = f"expected torchvision's state dict of {name}, on every node"
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        model.load_state_dict({_OLD_DENSENET.sub(r"\1", key): tensor for key, tensor in state.items()})
    except OSError as error:
        raise RuntimeError(f"feature_weights {path}: {error.strerror or error}; {expected}") from error
    except (pickle.UnpicklingError, AttributeError, EOFError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()
        why = reason[0] if reason else type(error).__name__
        raise RuntimeError(f"feature_weights {path}: {why}; {expected}") from error


# Batch normalisation needs two images.
_FLOPS_BATCH = 2


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
    images = torch.empty(_FLOPS_BATCH, 3, pixels, pixels, device="meta")
    labels = torch.empty(_FLOPS_BATCH, dtype=torch.int64, device="meta")
    formulas = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        nn.functional.cross_entropy(shadow(images), labels).backward()
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
