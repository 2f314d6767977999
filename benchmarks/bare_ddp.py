"""An ordinary DistributedDataParallel loop, against which fidelity.py holds the worker: docs/evidence/README.md.

Synthetic data on the device, a fixed number of steps, one wall-clock time around them. It imports nothing of
pytest_ddpscale, so the comparison is independent.
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


class BareLoop:
    """Model, data and optimizer of one rank.

    Args:
        options: what to train: model, batch_size per rank, image_size, num_classes, precision (``fp32``, ``fp16`` with
            autocast and GradScaler, ``bf16`` with autocast) and memory_format (``channels_last`` or ``contiguous``).
        device: where; with CUDA the current device.
        group: ranks that average their gradients.
    """

    def __init__(self, options: Any, device: torch.device, group: Any) -> None:
        self.options, self.device = options, device
        self.form: Any = {"memory_format": torch.channels_last} if options.memory_format == "channels_last" else {}
        torch.manual_seed(0)
        sizes = {"image_size": options.image_size} if options.model.startswith("vit_") else {}
        model = torchvision.models.get_model(options.model, weights=None, num_classes=options.num_classes, **sizes)
        ids = [device.index] if device.type == "cuda" else None
        self.model = DistributedDataParallel(model.to(device, **self.form), device_ids=ids, process_group=group)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        self.loss_function = nn.CrossEntropyLoss()
        self.scaler = torch.amp.GradScaler(device.type, enabled=options.precision == "fp16")

    def train(self, steps: int, warm_steps: int = 0) -> float:
        """Train on one new random batch, over and over. Returns seconds of the steps after the warm ones."""
        count, size = self.options.batch_size, self.options.image_size
        images = torch.randn(count, 3, size, size, device=self.device).to(**self.form)
        labels = torch.randint(0, self.options.num_classes, (count,), device=self.device)
        began = 0.0
        for step in range(warm_steps + steps):
            if step == warm_steps:
                self._wait_for_device()
                began = time.perf_counter()
            self._step(images, labels)
        self._wait_for_device()
        return time.perf_counter() - began

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        dtype = AUTOCAST.get(self.options.precision)
        with torch.autocast(self.device.type, dtype=dtype) if dtype else nullcontext():
            loss = self.loss_function(self.model(images), labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _wait_for_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def join(device_type: str) -> torch.device:
    """Join the ranks that torchrun started, by NCCL or gloo. Returns this rank's device."""
    if device_type == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    dist.init_process_group("nccl")
    return device
