"""One process that drives several devices: a batch is scattered, applied by copies of the model, and gathered.

As `nn.DataParallel` does, in our own words: every pass copies the model anew to each device. On a CPU all devices are
that CPU, so that all of it runs, and copies are real ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from pytest_ddpscale.plan.study import ArmKind

Context = Callable[[], AbstractContextManager[Any]]


def devices_of_node(first: torch.device, count: int) -> list[torch.device]:
    """The devices that a rank drives, its own first.

    Raises:
        RuntimeError: it does not see as many.
    """
    if first.type == "cpu":
        return [first] * count
    visible = torch.cuda.device_count()
    if visible < count:
        raise RuntimeError(
            f"one process drives {count} GPUs, and this rank sees {visible}; expected all of the node's: look at "
            "CUDA_VISIBLE_DEVICES and at the scheduler's binding of GPUs to tasks"
        )
    others = (torch.device("cuda", index) for index in range(visible) if index != first.index)
    return [first, *list(others)[: count - 1]]


def scatter(images: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    """The batch in equal parts, one on each device; fewer parts if there are fewer images."""
    return [
        part.to(device, non_blocking=True) for part, device in zip(images.chunk(len(devices)), devices, strict=False)
    ]


def replicate(model: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    """The model itself for the first device, which it is on, and a copy of it on each other one."""
    tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
    keys = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    replicas = [model]
    for device in devices[1:]:
        copies = [torch.empty_like(tensor, device=device).copy_(tensor, non_blocking=True) for tensor in tensors]
        replicas.append(_twin(model, dict(zip(keys, copies, strict=True))))
    return replicas


def gather(outputs: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """All parts of the outputs, in their order, on one device."""
    return torch.cat([part.to(device, non_blocking=True) for part in outputs])


def _twin(module: nn.Module, copies: dict[int, torch.Tensor]) -> nn.Module:
    """A module of the same structure with other tensors: only these are new, all else is shared."""
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
    """Applies a replica on each device to the part of the batch that is there, all at once: a thread for each.

    Args:
        context: entered by every thread, whose modes (gradients, autocast) are its own.
    """

    def __init__(self, devices: Sequence[torch.device], context: Context) -> None:
        self._devices = devices
        self._context = context
        self._threads = ThreadPoolExecutor(len(devices), thread_name_prefix="parallel-apply")

    def __call__(self, replicas: Sequence[nn.Module], parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Outputs on each device. Raises what the first of the threads raised that failed."""
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
    """A model that enters its modes itself: nn.DataParallel's threads take over that there is autocast, not its type.

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
    """What an arm of one process on several devices calls; the model is evaluated, not trained.

    Args:
        kind: ``data_parallel`` is torch's; ``vanilla_parallel`` is ours; ``parallel_apply`` is the part of ours that
            computes, of replicas and images that are there, with outputs left where they are.
        model: on the first device.

    Raises:
        RuntimeError: there are too few devices.
    """

    def __init__(self, kind: ArmKind, model: nn.Module, devices: Sequence[torch.device], context: Context) -> None:
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
        """Before a block: what the arm is not to be timed for."""
        if self._kind == "parallel_apply":
            with torch.no_grad():
                self._parts = scatter(images, self._devices)
                self._replicas = replicate(self._model, self._devices)

    def __call__(self, images: torch.Tensor) -> Sequence[torch.Tensor]:
        """Outputs of a batch: all on the first device; of ``parallel_apply`` a part on each."""
        if self._kind == "data_parallel":
            with torch.no_grad():  # as replicate's copies are to have no graph
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
        """Has the first GPU, by whose clock steps are timed, wait for the others."""
        if self._devices[0].type == "cpu":
            return
        for device in self._devices[1:]:
            with torch.cuda.device(device):
                done = torch.cuda.Event()
                done.record()
            torch.cuda.current_stream(self._devices[0]).wait_event(done)

    def close(self) -> None:
        """End its threads and forget its replicas."""
        self._replicas, self._parts = [], []
        self._parallel_apply.close()


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return nullcontext() if device.type == "cpu" else torch.cuda.device(device)
