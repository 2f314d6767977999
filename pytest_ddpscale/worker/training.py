"""One rank's training step: a torchvision model, synthetic data, SGD, autocast."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpscale.plan.workload import Workload

# Small enough for random labels to leave every loss finite; it does not change what is timed.
LEARNING_RATE = 1e-3
_AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


def build_model(workload: Workload, device: torch.device) -> nn.Module:
    """The untrained model, in its memory format, on the device; the same weights on every rank.

    Raises:
        ValueError: torchvision has no such classification model.
    """
    options: dict[str, Any] = {"weights": None, "num_classes": workload.num_classes}
    if workload.model.startswith("vit_"):
        options["image_size"] = workload.image_size
    torch.manual_seed(0)
    model = torchvision.models.get_model(workload.model, **options)
    return _placed(model.to(device), workload)


def _placed(module: nn.Module, workload: Workload) -> nn.Module:
    # Before DDP wraps it: DDP lays its buckets out by the strides it finds.
    if workload.memory_format == "channels_last":
        return module.to(memory_format=torch.channels_last)
    return module


class Batch:
    """One per-GPU batch of random images and labels on the device.

    Attributes:
        images: float32, (batch_size, 3, image_size, image_size), normally distributed.
        labels: int64, (batch_size,), uniform over the classes.
    """

    def __init__(self, workload: Workload, batch_size: int, device: torch.device, seed: int) -> None:
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._num_classes = workload.num_classes
        images = torch.empty(batch_size, 3, workload.image_size, workload.image_size, device=device)
        if workload.memory_format == "channels_last":
            images = images.contiguous(memory_format=torch.channels_last)
        self.images = images
        self.labels = torch.empty(batch_size, dtype=torch.int64, device=device)
        self.refill()

    def refill(self) -> None:
        """Draw new random values: constant ones would draw less power than real training."""
        self.images.normal_(generator=self._generator)
        self.labels.random_(0, self._num_classes, generator=self._generator)


class Trainer:
    """Callable training step over one batch, plain or under DDP.

    Args:
        model: the network; gradients are averaged over `group` if there is one.
        batch: what is trained on.
        workload: precision and compilation.
        scaler: of fp16's loss, kept by the arm over its blocks; None in other precisions.
        group: process group for DistributedDataParallel; None trains without it.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        workload: Workload,
        scaler: torch.amp.GradScaler | None,
        group: torch.distributed.ProcessGroup | None,
    ) -> None:
        device = batch.images.device
        if group is not None:
            ids = [device.index] if device.type == "cuda" else None
            model = DistributedDataParallel(model, device_ids=ids, process_group=group)
        # After DDP, as its optimizer splits graphs at the gradient buckets.
        self._model: Any = torch.compile(model) if workload.compile else model
        self._batch = batch
        self._scaler = scaler
        self._device_type = device.type
        self._dtype = _AUTOCAST.get(workload.precision)
        self._criterion = nn.CrossEntropyLoss()
        self._loss: torch.Tensor | None = None
        self._optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)

    def refill(self) -> None:
        """New random data for the next block."""
        self._batch.refill()

    def __call__(self) -> None:
        """One optimizer step."""
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self._criterion(self._model(self._batch.images), self._batch.labels)
        if self._scaler is None:
            loss.backward()
            self._optimizer.step()
        else:
            self._scaler.scale(loss).backward()
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._loss = loss.detach()

    def check_loss(self) -> None:
        """Raise RuntimeError unless the last step's loss is a number: training that has died is faster."""
        if self._loss is not None and not math.isfinite(float(self._loss)):
            raise RuntimeError(f"the loss is {float(self._loss)}: training is numerically dead on this rank")

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, dtype=self._dtype)


def new_scaler(workload: Workload, device: torch.device) -> torch.amp.GradScaler | None:
    """Loss scaling for fp16; None in precisions that need none."""
    return torch.amp.GradScaler(device.type) if workload.precision == "fp16" else None
