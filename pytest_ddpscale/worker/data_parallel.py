"""One process that drives several devices: a batch is scattered, applied to copies of the model, and gathered.

Our implementation of `nn.DataParallel`: every pass copies the model to each device again. On a CPU all devices are that
CPU, so all of the code runs, with real copies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

Context = Callable[[], AbstractContextManager[Any]]


def devices_of_node(first: torch.device, count: int) -> list[torch.device]:
    """The devices that a rank drives, its own first.

    Raises:
        RuntimeError: too few devices are visible.
    """
    if first.type == "cpu":
        return [first] * count
    visible = torch.cuda.device_count()
    if visible < count:
        raise RuntimeError(
            f"one process drives {count} GPUs, but this rank sees {visible}; expected all GPUs of the node. Check "
            "CUDA_VISIBLE_DEVICES and the scheduler's binding of GPUs to tasks"
        )
    others = (torch.device("cuda", index) for index in range(visible) if index != first.index)
    return [first, *list(others)[: count - 1]]


def scatter(images: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    """The batch in equal parts, one on each device; fewer parts if there are fewer images."""
    return [
        part.to(device, non_blocking=True) for part, device in zip(images.chunk(len(devices)), devices, strict=False)
    ]


def replicate(model: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    """The model itself for its own device, the first, and a copy on each other device."""
    tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
    keys = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    replicas = [model]
    for device in devices[1:]:
        copies = [torch.empty_like(tensor, device=device).copy_(tensor, non_blocking=True) for tensor in tensors]
        replicas.append(_twin(model, dict(zip(keys, copies, strict=True))))
    return replicas


def gather(outputs: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """All parts of the outputs, in order, on one device."""
    return torch.cat([part.to(device, non_blocking=True) for part in outputs])


def _twin(module: nn.Module, copies: dict[int, torch.Tensor]) -> nn.Module:
    """A module of the same structure with copied tensors; everything else is shared."""
    twin = copy.copy(module)
    twin.__dict__["_parameters"] = {name: _copied(one, copies) for name, one in module._parameters.items()}
    twin.__dict__["_buffers"] = {name: _copied(one, copies) for name, one in module._buffers.items()}
    twin.__dict__["_modules"] = {
        name: None if child is None else _twin(child, copies) for name, child in module._modules.items()
    }
    return twin


def _copied(tensor: torch.Tensor | None, copies: dict[int, torch.Tensor]) -> torch.Tensor | None:
    return None if tensor is None else copies[id(tensor)]


class ParallelApply:
    """Applies the replica on each device to its part of the batch, in parallel, with a thread per device.

    Args:
        context: entered by every thread, because modes (gradients, autocast) are per thread.
    """

    def __init__(self, devices: Sequence[torch.device], context: Context) -> None:
        self._devices = devices
        self._context = context
        self._threads = ThreadPoolExecutor(len(devices), thread_name_prefix="parallel-apply")

    def __call__(self, replicas: Sequence[nn.Module], parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Outputs on each device. Raises the exception of the first thread that failed."""
        jobs = [
            self._threads.submit(self._apply, replica, part, device)
            for replica, part, device in zip(replicas, parts, self._devices, strict=False)
        ]
        return [job.result() for job in jobs]

    def _apply(self, replica: nn.Module, part: torch.Tensor, device: torch.device) -> torch.Tensor:
        with _on(device), self._context():
            outputs: torch.Tensor = replica(part)
        return outputs

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()


class InContext(nn.Module):
    """A model that enters its modes itself, because nn.DataParallel's threads enable autocast without its type.

    (torch 2.15, `torch.nn.parallel.parallel_apply`: a thread has fp16, whatever its caller has.)
    """

    def __init__(self, model: nn.Module, context: Context) -> None:
        super().__init__()
        self.model = model
        self._context = context

    def forward(self, images: torch.Tensor) -> Any:
        """Outputs of the model."""
        with self._context():
            return self.model(images)


class SplitModel:
    """The callable of an arm with one process on several devices; the model is evaluated, not trained.

    Args:
        kind: ``data_parallel`` is torch's; ``vanilla_parallel`` is ours; ``parallel_apply`` is only the computing part
            of ours: replicas and images are already on the devices, and outputs stay there.
        model: on the first device.

    Raises:
        RuntimeError: there are too few devices.
    """

    def __init__(self, kind: str, model: nn.Module, devices: Sequence[torch.device], context: Context) -> None:
        self._kind = kind
        self._model = model
        self._devices = devices
        self._replicas: list[nn.Module] = []
        self._parts: list[torch.Tensor] = []
        self._parallel_apply = ParallelApply(devices, context)
        if kind == "data_parallel":
            if devices[0].type == "cpu":
                raise RuntimeError("nn.DataParallel needs at least two GPUs; on a CPU it only calls the model")
            self._native = nn.DataParallel(InContext(model, context), device_ids=[device.index for device in devices])

    def prepare(self, images: torch.Tensor) -> None:
        """Prepare a block: work that is not timed."""
        if self._kind == "parallel_apply":
            with torch.no_grad():
                self._parts = scatter(images, self._devices)
                self._replicas = replicate(self._model, self._devices)

    def __call__(self, images: torch.Tensor) -> Sequence[torch.Tensor]:
        """Outputs of a batch: all on the first device; with ``parallel_apply`` a part on each."""
        if self._kind == "data_parallel":
            with torch.no_grad():  # replicate's copies must have no graph
                return [self._native(images)]
        with torch.no_grad():
            if self._kind == "parallel_apply":
                parts = self._parallel_apply(self._replicas, self._parts)
                self._wait_for_all()
                return parts
            scattered = scatter(images, self._devices)
            replicas = replicate(self._model, self._devices[: len(scattered)])
            return [gather(self._parallel_apply(replicas, scattered), self._devices[0])]

    def _wait_for_all(self) -> None:
        """Let the first GPU, whose clock times the steps, wait for the others."""
        if self._devices[0].type == "cpu":
            return
        for device in self._devices[1:]:
            with torch.cuda.device(device):
                done = torch.cuda.Event()
                done.record()
            torch.cuda.current_stream(self._devices[0]).wait_event(done)

    def close(self) -> None:
        """End its threads and drop its replicas."""
        self._replicas, self._parts = [], []
        self._parallel_apply.close()


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return nullcontext() if device.type == "cpu" else torch.cuda.device(device)
