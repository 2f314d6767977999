"""Forward passes by themselves, as a model is served: evaluation mode, no gradients, the workload's precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pytest_ddpscale.plan.study import STEPS_BEFORE_TIMING
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.device import Device, Timing
from pytest_ddpscale.worker.training import Batch, autocast

_SEED = 20_232
# Of which batch normalisation takes its statistics: enough for a variance, few enough to fit wherever a model does.
_STATISTICS_BATCH = 8


class Inference:
    """What the arms ``infer`` of a study call on this rank.

    Args:
        model: of `build_model`; arms that train it in the same study may do so between two blocks.
        workload: of the study. With ``compile`` the forward pass is compiled for itself.
    """

    def __init__(self, model: nn.Module, workload: Workload, device: Device) -> None:
        self._model = model
        self._workload = workload
        self._device = device
        self._call: Any = None  # made when first used: most studies only train

    def time_block(self, batch: Batch, steps: int) -> Timing:
        """Time `steps` forward passes of a batch, after a few untimed ones.

        Raises:
            RuntimeError: the last outputs are not all finite: a model that computes nonsense proves no speed.
        """
        batch.refill()
        forward = _ForwardPass(self._prepared(), batch, self._workload)
        with _evaluating(self._model):
            for _ in range(STEPS_BEFORE_TIMING):
                forward()
            timing = self._device.time_steps(forward, steps)
        forward.check_outputs()
        return timing

    def _prepared(self) -> Any:
        if self._call is None:
            take_statistics(self._model, self._workload, self._device.torch_device)
            self._call = torch.compile(self._model) if self._workload.compile else self._model
        return self._call


class _ForwardPass:
    """One batch through the network, as a callable step."""

    def __init__(self, model: Any, batch: Batch, workload: Workload) -> None:
        self._model = model
        self._batch = batch
        self._workload = workload
        self._outputs: torch.Tensor | None = None

    def __call__(self) -> None:
        with torch.inference_mode(), autocast(self._workload, self._batch.images.device):
            self._outputs = self._model(self._batch.images)

    def check_outputs(self) -> None:
        """Raise RuntimeError unless all outputs of the last pass are numbers."""
        if self._outputs is None:
            return
        wrong = int((~torch.isfinite(self._outputs)).sum())
        if wrong:
            count = self._outputs.numel()
            raise RuntimeError(f"{wrong} of {count} outputs are not finite: inference computes nonsense on this rank")


def take_statistics(model: nn.Module, workload: Workload, device: torch.device) -> None:
    """Give batch normalisation the mean and the variance of what the untrained weights make of random images.

    In evaluation mode it uses what it saw in training. Of an untrained model that is a mean of 0 and a variance of 1,
    by which nothing is normalised: through the blocks of ResNet-152 activations double until fp16 overflows.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 1.0  # this batch's own, whatever was there before
    was_training = model.training
    try:
        with torch.no_grad(), autocast(workload, device):
            model.train()(Batch(workload, _STATISTICS_BATCH, device, _SEED).images)
    finally:
        model.train(was_training)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; as it was, afterwards: the arms of a study share the model."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
