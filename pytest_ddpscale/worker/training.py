"""One rank's training step: a model with autocast, on synthetic data or samples from a folder, in ranges that profilers
see.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch.profiler import record_function

from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.util.owned_folder import owned_folder
from pytest_ddpscale.worker.loading import DeviceBatch, SampleLoader

STEP, FORWARD, BACKWARD, OPTIMIZER = "ddpscale:step", "ddpscale:forward", "ddpscale:backward", "ddpscale:optimizer"
LOAD = "ddpscale:load"


Ranges: TypeAlias = Callable[[str], AbstractContextManager[Any]]
_NOTHING = nullcontext()  # reusable


def profiler_range(name: str) -> AbstractContextManager[Any]:
    """A range of torch.profiler while it records: at other times `record_function` takes 10 µs or more."""
    return record_function(name) if torch.autograd._profiler_enabled() else _NOTHING


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """An NVTX range for nsys as well, in timed rounds too."""
    with profiler_range(name), torch.cuda.nvtx.range(name):
        yield


def compute_fp32_in_full() -> None:
    """Compute fp32 matrix products and convolutions in fp32 from now on, whatever was set before.

    By default cuDNN convolves in TF32 from Ampere on; TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which containers set, does the
    same to matrix products. There are also settings by backend. If they disagree with the older ones, torch raises an
    error when they are read, for example by torch.compile, so all are set.
    """
    torch.backends.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.cudnn.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


# More than the arms of a study have batch sizes, with and without DDP.
_VERSIONS = 64


def compiled(call: Callable[..., Any], mode: str | None = None) -> Any:
    """Compile a model separately for each batch size.

    By default torch compiles the second batch size of a function to kernels for any size, which may be slower. After
    eight versions of a function (``recompile_limit``) it runs the function uncompiled, with only a warning in the log.
    Either would lower the efficiency of arms that are measured later.

    Args:
        call: a module, under DDP or not.
        mode: of torch.compile; None for its default.
    """
    config: Any = torch._dynamo.config
    config.recompile_limit = max(_VERSIONS, config.recompile_limit)
    return torch.compile(call, mode=mode, dynamic=False)


@contextmanager
def compiled_anew() -> Iterator[None]:
    """Keep Inductor and Triton from what earlier processes compiled, which takes most of the time away."""
    with owned_folder("compiled") as folder:
        before = dict(os.environ)
        os.environ |= dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"), str(folder))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def forget_compiled() -> None:
    """Free compiled code, so the next study of this process starts like in a new process."""
    torch.compiler.reset()


_AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Batch:
    """One per-GPU batch of random samples on the device.

    Attributes:
        inputs: of the model, in the form of its family.
        targets: of the loss.
    """

    def __init__(self, workload: Workload, batch_size: int, device: torch.device, seed: int) -> None:
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._family = workload.family
        self.inputs, self.targets = self._family.batch(batch_size, device)
        self.refill()

    def refill(self) -> None:
        """Draw new random values, because constant ones need less power than real training."""
        self._family.fill(self.inputs, self.targets, self._generator)

    def begin(self, passes: int) -> None:
        """Draw data for the next block, the same for all its forward passes."""
        self.refill()

    def fetch(self) -> DeviceBatch:
        """The samples, which are ready."""
        return DeviceBatch(self.inputs, self.targets)

    def end(self) -> list[float]:
        """Seconds waited for data in each pass of the block; empty, because synthetic data needs no wait."""
        return []


class Trainer:
    """Callable training step over one batch.

    Attributes:
        loss: of the last forward pass.

    Args:
        model: the network, plain, under DistributedDataParallel or compiled.
        batches: one for each forward pass of a step; several accumulate gradients.
        scaler: loss scaler for fp16, kept by the arm over its blocks; None in other precisions.
        silent: a context in which gradients are not communicated, for all passes but the last.
        ranges: names a step and its parts, for profilers.
    """

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        batches: Sequence[Batch | SampleLoader],
        workload: Workload,
        scaler: torch.amp.GradScaler | None,
        silent: Callable[[], AbstractContextManager[None]] = nullcontext,
        ranges: Ranges = profiler_range,
    ) -> None:
        self._ranges = ranges
        self._model = model
        self._optimizer = optimizer
        self._batches = batches
        self._silent = silent
        self._workload = workload
        self._scaler = scaler
        self.loss = torch.zeros(())

    def begin(self, steps: int) -> None:
        """Prepare the data of a block with this number of steps."""
        for batch in dict.fromkeys(self._batches):
            batch.begin(steps * len(self._batches))

    def end(self) -> list[float]:
        """Seconds waited for data in each step of the block; empty with synthetic data."""
        waited_s = [second for batch in dict.fromkeys(self._batches) for second in batch.end()]
        passes = len(self._batches)
        return [sum(waited_s[at : at + passes]) for at in range(0, len(waited_s), passes)]

    def __call__(self, *given: DeviceBatch) -> None:
        """Run one optimizer step, on batches that are given or on its own."""
        batches = given or self._batches
        with self._ranges(STEP):
            self._optimizer.zero_grad(set_to_none=True)
            for batch in batches[:-1]:
                with self._silent():
                    self._pass(batch, len(batches))
            self._pass(batches[-1], len(batches))
            with self._ranges(OPTIMIZER):
                if self._scaler is None:
                    self._optimizer.step()
                else:
                    self._scaler.step(self._optimizer)
                    self._scaler.update()

    def _pass(self, batch: Batch | SampleLoader | DeviceBatch, passes: int) -> None:
        """Run forward and backward; the gradients of all passes add up to the mean over their samples."""
        with self._ranges(LOAD):
            fed = batch.fetch()
        with self._ranges(FORWARD), autocast(self._workload, fed.inputs.device):
            loss = self._workload.family.loss(self._model, *fed)
        self.loss = loss.detach()
        with self._ranges(BACKWARD):
            if passes > 1:
                loss = loss / passes
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def check_loss(self) -> None:
        """Raise RuntimeError unless the last step's loss is finite, because training on NaN is faster."""
        if not math.isfinite(loss := float(self.loss)):
            raise RuntimeError(f"the loss is {loss}: training is numerically dead on this rank")


def autocast(workload: Workload, device: torch.device) -> AbstractContextManager[Any]:
    """The precision of a forward pass."""
    dtype = _AUTOCAST.get(workload.precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def new_scaler(workload: Workload, device: torch.device) -> torch.amp.GradScaler | None:
    """Loss scaling for fp16; None in precisions that need none."""
    return torch.amp.GradScaler(device.type) if workload.precision == "fp16" else None
