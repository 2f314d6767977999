"""Forward passes without training, as in serving: evaluation mode, no gradients, the workload's precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import STEPS_BEFORE_TIMING
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.compiled_call import compiled
from pytest_ddpscale.worker.data_parallel import SplitModel, devices_of_node
from pytest_ddpscale.worker.device import Device, Timing
from pytest_ddpscale.worker.training import Batch, autocast

_SEED = 20_232
# Batch for the statistics of batch normalisation: enough for a variance, small enough to fit with any model.
_STATISTICS_BATCH = 8


class Inference:
    """Inference arms of a study on this rank.

    Args:
        model: from `build_model`; training arms of the same study may train it between two blocks.
        workload: of the study. With ``compile`` the forward pass is compiled separately.
    """

    def __init__(self, model: nn.Module, workload: Workload, device: Device) -> None:
        self._model = model
        self._workload = workload
        self._device = device
        self._call: Any = None  # created on first use, because most studies only train
        self._splits: dict[str, SplitModel] = {}

    def time_block(self, arm: Arm, batch: Batch, steps: int) -> Timing:
        """Time `steps` forward passes of a batch, after a few untimed ones.

        Raises:
            RuntimeError: not all of the last outputs are finite, so the speed means nothing; or one process sees too
                few devices.
        """
        batch.refill()
        whole = self._prepared()
        with _evaluating(self._model):
            forward: _ForwardPass | _SplitPass
            if arm.is_split:
                forward = _SplitPass(self._split(arm), batch)
            else:
                forward = _ForwardPass(whole, batch, self._workload)
            for _ in range(STEPS_BEFORE_TIMING):
                forward()
            timing = self._device.time_steps(forward, steps)
        check_outputs(forward.outputs)
        return timing

    def close(self) -> None:
        """End threads and free copies on other devices."""
        for split in self._splits.values():
            split.close()
        self._splits.clear()

    def _split(self, arm: Arm) -> SplitModel:
        if arm.name not in self._splits:
            devices = devices_of_node(self._device.torch_device, arm.devices)
            self._splits[arm.name] = SplitModel(arm.kind, self._model, devices, self._without_gradients)
        return self._splits[arm.name]

    @contextmanager
    def _without_gradients(self) -> Iterator[None]:
        """Context of each thread. Not inference mode, which nn.DataParallel does not pass on to its threads."""
        with torch.no_grad(), autocast(self._workload, self._device.torch_device):
            yield

    def _prepared(self) -> Any:
        if self._call is None:
            take_statistics(self._model, self._workload, self._device.torch_device)
            self._call = compiled(self._model) if self._workload.compile else self._model
        return self._call


class _ForwardPass:
    """One batch through the network, as a callable step."""

    def __init__(self, model: Any, batch: Batch, workload: Workload) -> None:
        self._model = model
        self._batch = batch
        self._workload = workload
        self.outputs: Sequence[torch.Tensor] = ()

    def __call__(self) -> None:
        with torch.inference_mode(), autocast(self._workload, self._batch.images.device):
            self.outputs = [self._model(self._batch.images)]


class _SplitPass:
    """One batch through the network on several devices, as a callable step."""

    def __init__(self, model: SplitModel, batch: Batch) -> None:
        self._model = model
        self._batch = batch
        self.outputs: Sequence[torch.Tensor] = ()
        model.prepare(batch.images)

    def __call__(self) -> None:
        self.outputs = self._model(self._batch.images)


def check_outputs(outputs: Sequence[torch.Tensor]) -> None:
    """Raise RuntimeError unless all outputs of a pass are finite."""
    wrong = sum(int((~torch.isfinite(part)).sum()) for part in outputs)
    if wrong:
        count = sum(part.numel() for part in outputs)
        raise RuntimeError(f"{wrong} of {count} outputs are not finite: inference computes nonsense on this rank")


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
            model.train()(Batch(workload, _STATISTICS_BATCH, device, _SEED).images)
    finally:
        model.train(was_training)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, restored afterwards, because the arms of a study share the model."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
