"""Forward passes without training, as in serving: evaluation mode, no gradients, the workload's precision.

One process may drive several devices: a batch is scattered, applied to copies of the model, and gathered. That is our
implementation of `nn.DataParallel`: every pass copies the model to each device again. On a CPU all devices are that
CPU, so all of the code runs, with real copies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import STEPS_BEFORE_TIMING
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.device import Device, Timing
from pytest_ddpscale.worker.model import take_statistics
from pytest_ddpscale.worker.training import Batch, autocast, compiled

Context = Callable[[], AbstractContextManager[Any]]


class Inference:
    """Inference arms of a study on this rank.

    Args:
        model: from `build_model`; training arms of the same study may train it between two blocks.
        workload: of the study. With ``compile`` the forward pass is compiled separately.
    """

    def __init__(self, model: nn.Module, workload: Workload, device: Device) -> None:
        self._model, self._workload, self._device = model, workload, device
        self._call: Any = None  # created on first use, because most studies only train
        self._splits: dict[str, SplitModel] = {}

    def time_block(self, arm: Arm, batch: Batch, steps: int) -> Timing:
        """Time `steps` forward passes of a batch, after a few untimed ones.

        Raises:
            RuntimeError: not all of the last outputs are finite, so the speed means nothing; or one process sees too
                few devices.
        """
        batch.refill()
        device, outputs = self._device.torch_device, list[torch.Tensor]()
        if self._call is None:
            take_statistics(self._model, self._workload, device)
            self._call = compiled(self._model) if self._workload.compile else self._model
        if arm.is_split and arm.name not in self._splits:
            devices = devices_of_node(device, arm.devices)
            self._splits[arm.name] = SplitModel(arm.kind, self._model, devices, self._without_gradients)
        was_training = self._model.training
        self._model.eval()  # restored afterwards, because the arms of a study share the model
        try:
            forward = partial(self._whole, batch.inputs)
            if arm.is_split:
                self._splits[arm.name].prepare(batch.inputs)
                forward = partial(self._splits[arm.name], batch.inputs)

            def step() -> None:
                nonlocal outputs
                outputs = forward()

            for _ in range(STEPS_BEFORE_TIMING):
                step()
            timing = self._device.time_steps(step, steps)
        finally:
            self._model.train(was_training)
        if wrong := sum(int((~torch.isfinite(part)).sum()) for part in outputs):
            count = sum(part.numel() for part in outputs)
            raise RuntimeError(f"{wrong} of {count} outputs are not finite: inference computes nonsense on this rank")
        return timing

    def close(self) -> None:
        """End threads and free copies on other devices."""
        for split in self._splits.values():
            split.close()
        self._splits.clear()

    def _whole(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        with torch.inference_mode(), autocast(self._workload, inputs.device):
            return [self._call(inputs)]

    @contextmanager
    def _without_gradients(self) -> Iterator[None]:
        """Context of each thread. Not inference mode, which nn.DataParallel does not pass on to its threads."""
        with torch.no_grad(), autocast(self._workload, self._device.torch_device):
            yield


class SplitModel:
    """The callable of an arm with one process on several devices; the model is evaluated, not trained.

    Args:
        kind: ``data_parallel`` is torch's; ``vanilla_parallel`` is ours; ``parallel_apply`` is only the computing part
            of ours: replicas and inputs are already on the devices, and outputs stay there.
        model: on the first device.
        context: entered by every thread, because modes (gradients, autocast) are per thread.

    Raises:
        RuntimeError: there are too few devices.
    """

    def __init__(self, kind: str, model: nn.Module, devices: Sequence[torch.device], context: Context) -> None:
        self._kind, self._model, self._devices, self._context = kind, model, devices, context
        self._replicas: list[nn.Module] = []
        self._parts: list[torch.Tensor] = []
        self._threads = ThreadPoolExecutor(len(devices), thread_name_prefix="parallel-apply")
        if kind == "data_parallel":
            if devices[0].type == "cpu":
                raise RuntimeError("nn.DataParallel needs at least two GPUs; on a CPU it only calls the model")
            self._native = nn.DataParallel(InContext(model, context), device_ids=[device.index for device in devices])

    def prepare(self, inputs: torch.Tensor) -> None:
        """Prepare a block: work that is not timed."""
        if self._kind == "parallel_apply":
            with torch.no_grad():
                self._parts = scatter(inputs, self._devices)
                self._replicas = replicate(self._model, self._devices)

    def __call__(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        """Outputs of a batch: all on the first device; with ``parallel_apply`` a part on each."""
        first, *others = self._devices
        with torch.no_grad():  # replicate's copies, also torch's, must have no graph
            if self._kind == "data_parallel":
                return [self._native(inputs)]
            if self._kind == "vanilla_parallel":
                parts = scatter(inputs, self._devices)
                outputs = self.applied(replicate(self._model, self._devices[: len(parts)]), parts)
                return [torch.cat([part.to(first, non_blocking=True) for part in outputs])]
            outputs = self.applied(self._replicas, self._parts)
        for device in others if first.type == "cuda" else ():
            # The first GPU, whose clock times the steps, waits for the others.
            with torch.cuda.device(device):
                done = torch.cuda.Event()
                done.record()
            torch.cuda.current_stream(first).wait_event(done)
        return outputs

    def applied(self, replicas: Sequence[nn.Module], parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Outputs of each replica for its part, in parallel, with a thread per device.

        Raises the exception of the first thread that failed.
        """
        return list(self._threads.map(self._apply, replicas, parts, self._devices))

    def _apply(self, replica: nn.Module, part: torch.Tensor, device: torch.device) -> torch.Tensor:
        with nullcontext() if device.type == "cpu" else torch.cuda.device(device), self._context():
            outputs: torch.Tensor = replica(part)
        return outputs

    def close(self) -> None:
        """End its threads and drop its replicas."""
        self._replicas, self._parts = [], []
        self._threads.shutdown()


class InContext(nn.Module):
    """A model that enters its modes itself, because nn.DataParallel's threads enable autocast without its type.

    (torch 2.15, `torch.nn.parallel.parallel_apply`: a thread has fp16, whatever its caller has.)
    """

    def __init__(self, model: nn.Module, context: Context) -> None:
        super().__init__()
        self.model, self._context = model, context

    def forward(self, inputs: torch.Tensor) -> Any:
        """Outputs of the model."""
        with self._context():
            return self.model(inputs)


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


def scatter(inputs: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    """The batch in equal parts, one on each device; fewer parts if there are fewer inputs."""
    return [
        part.to(device, non_blocking=True) for part, device in zip(inputs.chunk(len(devices)), devices, strict=False)
    ]


def replicate(model: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    """The model itself for its own device, the first, and on each other device a module of the same structure with
    copied tensors; everything else is shared."""

    def twin(module: nn.Module, copies: dict[int, torch.Tensor]) -> nn.Module:
        other = copy.copy(module)
        for kind in ("_parameters", "_buffers"):
            own = getattr(module, kind).items()
            other.__dict__[kind] = {name: None if one is None else copies[id(one)] for name, one in own}
        children = module._modules.items()
        other.__dict__["_modules"] = {name: None if child is None else twin(child, copies) for name, child in children}
        return other

    tensors = [*model.parameters(), *model.buffers()]
    replicas = [model]
    for device in devices[1:]:
        copied = (
            torch.empty_like(tensor, device=device).copy_(tensor.detach(), non_blocking=True) for tensor in tensors
        )
        replicas.append(twin(model, dict(zip(map(id, tensors), copied, strict=True))))
    return replicas
