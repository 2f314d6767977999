"""Differences between GPU and CPU: clocks, memory, utilization, identity."""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from pytest_ddpscale.plan.hardware import has_kernels, wheel_for
from pytest_ddpscale.plan.words import DeviceType, Precision
from pytest_ddpscale.run.records import RankMemory
from pytest_ddpscale.worker.forward_hooks import ForwardHooks, Forwards
from pytest_ddpscale.worker.memory_held import resident_memory

T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """One timed block.

    Attributes:
        started_unix_s: start of the block, seconds since 1970 UTC.
        step_s: duration of each step, in seconds.
        block_s: from the start of the first step to the end of the last, in seconds.
        utilization: share of the block in which the device was busy, 0 … 1; None if unreadable.
        peak_memory_bytes: peak memory.
        skipped_steps: optimizer steps that the loss scaler skipped; None in forward passes, and if nobody knows.
        parameters_checksum: of the parameters' bits after the block; None if replicas may differ.
        waited_s: seconds of each step in which the rank waited for a batch; None with synthetic data.
        forward_s: seconds of all forward passes of the model itself; None if they were not timed.
        unread: why an expected reading is missing, by its name.
    """

    started_unix_s: float
    step_s: tuple[float, ...]
    block_s: float
    utilization: float | None
    peak_memory_bytes: int | None
    skipped_steps: int | None = None
    parameters_checksum: str | None = None
    waited_s: tuple[float, ...] | None = None
    forward_s: float | None = None
    unread: Mapping[str, str] = field(default_factory=dict)


class CpuDevice:
    """The CPU: wall clock, and the process's CPU time as utilization.

    Attributes:
        id: ``cpu``; for a GPU its UUID.
        name: from the driver or the system.
        backend: of torch.distributed.
        on_step: called after each timed step, on the host; does nothing by default.
    """

    backend = "gloo"

    def __init__(self) -> None:
        self.on_step: Callable[[], None] = lambda: None
        self.id = "cpu"
        self.name = platform.processor() or platform.machine()

    @property
    def torch_device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def check(self, precision: Precision) -> None:
        """Refuse fp16, because its gradient scaler needs CUDA. Raises RuntimeError."""
        if precision == "fp16":
            raise RuntimeError("precision fp16 needs a GPU; expected fp32 or bf16 on CPU")

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        """Run `step` `steps` times, timed with perf_counter; utilization is CPU seconds per thread and second."""
        forward_marks: list[float] = []
        hooks = ForwardHooks(forwards, steps, lambda: forward_marks.append(time.perf_counter()))
        started_unix_s, cpu_s = time.time(), time.process_time()
        with hooks:
            marks = [time.perf_counter()]
            for _ in range(steps):
                step()
                marks.append(time.perf_counter())
                self.on_step()
        block_s = marks[-1] - marks[0]
        # Limited to 1, because other threads than torch's, such as gloo's, may have worked as well.
        busy = min(1.0, (time.process_time() - cpu_s) / (block_s * torch.get_num_threads()))
        step_s = tuple(end - begin for begin, end in itertools.pairwise(marks))
        forward = hooks.reading(end - begin for begin, end in _in_pairs(forward_marks))
        memory = resident_memory()
        return Timing(started_unix_s, step_s, block_s, busy, memory.own_bytes + memory.shared_bytes, **forward)

    def allocated_bytes(self) -> int:
        """Return 0: the parts of a process's resident set are unknown."""
        return 0

    def memory_held(self) -> RankMemory:
        """Peak memory of this process since it started. Raises OSError if the system does not report it."""
        return resident_memory()

    def release(self) -> None:
        """Do nothing: nothing is cached."""


_NO_CONTEXT = "busy or unavailable"  # of cudaErrorDevicesUnavailable


def _why_no_cuda() -> str:
    """Why CUDA cannot be used, such as a driver that is too old, in brackets; empty if it can."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f" ({str(error).partition(chr(10))[0]})"
    return ""


class CudaDevice:
    """One GPU: CUDA events around each step are read after the block, with synchronization before and after it."""

    backend = "nccl"

    def __init__(self, local_rank: int) -> None:
        self.on_step: Callable[[], None] = lambda: None
        if local_rank >= torch.cuda.device_count():
            seen = f"torch sees {torch.cuda.device_count()}{_why_no_cuda()}"
            raise RuntimeError(f"local rank {local_rank} has no GPU: {seen}")
        try:
            torch.cuda.set_device(local_rank)
        except RuntimeError as error:
            if _NO_CONTEXT not in str(error):
                raise
            raise RuntimeError(
                f"the GPU of local rank {local_rank} takes no process ({_NO_CONTEXT}): its compute mode is Prohibited, "
                "or Exclusive_Process and another process has it; see `nvidia-smi -q -d COMPUTE`, set it by "
                "`nvidia-smi -i NUMBER -c 0`"
            ) from error
        self._device = torch.device("cuda", local_rank)
        properties = torch.cuda.get_device_properties(self._device)
        self.name = properties.name
        self.id = f"GPU-{properties.uuid}".replace("GPU-GPU-", "GPU-")
        self._capability = (properties.major, properties.minor)
        self.check("fp32")  # before a first kernel fails with "no kernel image is available"

    @property
    def torch_device(self) -> torch.device:
        """This rank's GPU."""
        return self._device

    def check(self, precision: Precision) -> None:
        """Refuse a torch build without kernels for this GPU, and emulated bf16. Raises RuntimeError."""
        architectures = torch.cuda.get_arch_list()
        if not has_kernels(architectures, self._capability):
            major, minor = self._capability
            raise RuntimeError(
                f"this torch build ({torch.__version__}) has no kernels for {self.name} "
                f"(sm_{major}{minor}); it has {' '.join(architectures)}; {wheel_for(self._capability)}"
            )
        if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise RuntimeError(f"{self.name} has no native bf16; expected fp16 or fp32")

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        """Time steps with CUDA events, so no step waits for the host."""
        torch.cuda.reset_peak_memory_stats(self._device)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        hooks = ForwardHooks(forwards, steps, lambda: next(next_mark).record())
        forward_marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * hooks.expected)]
        next_mark = iter(forward_marks)
        torch.cuda.synchronize(self._device)
        started_unix_s = time.time()
        with hooks:
            events[0].record()
            for event in events[1:]:
                step()
                event.record()
                self.on_step()
        torch.cuda.synchronize(self._device)
        pairs = itertools.pairwise(events)
        step_s = tuple(begin.elapsed_time(end) / 1000 for begin, end in pairs)
        block_s = events[0].elapsed_time(events[-1]) / 1000
        forward = hooks.reading(begin.elapsed_time(end) / 1000 for begin, end in _in_pairs(forward_marks))
        # Utilization comes from the node's sampler, for all its GPUs.
        return Timing(started_unix_s, step_s, block_s, None, torch.cuda.max_memory_allocated(self._device), **forward)

    def allocated_bytes(self) -> int:
        """Bytes allocated by torch's allocator."""
        return torch.cuda.memory_allocated(self._device)

    def memory_held(self) -> RankMemory:
        """Peak memory of the device, with NCCL's buffers and CUDA's context, which torch's allocator does not count.

        The allocator counts with its peak in the last block, which includes the cache of earlier blocks.
        """
        free, total = torch.cuda.mem_get_info(self._device)
        others = total - free - torch.cuda.memory_reserved(self._device)
        own = max(0, others) + torch.cuda.max_memory_reserved(self._device)
        return RankMemory(own_bytes=own, total_bytes=total)

    def release(self) -> None:
        """Return cached blocks to the driver, because the next study may need other sizes."""
        torch.cuda.empty_cache()


Device = CpuDevice | CudaDevice


def open_device(device_type: DeviceType, local_rank: int) -> Device:
    """The device of this rank. Raises RuntimeError if there is none."""
    return CudaDevice(local_rank) if device_type == "cuda" else CpuDevice()


def _in_pairs(marks: Sequence[T]) -> Iterator[tuple[T, T]]:
    """Begin and end of each forward pass."""
    return zip(marks[::2], marks[1::2], strict=True)
