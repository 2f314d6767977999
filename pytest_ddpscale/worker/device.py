"""Differences between GPU and CPU: clocks, memory, utilization, identity."""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from pytest_ddpscale.plan.hardware import has_kernels, wheel_for
from pytest_ddpscale.plan.words import DeviceType, Precision
from pytest_ddpscale.run.block import FORWARD_S
from pytest_ddpscale.run.records import RankMemory

_PROCESS = Path("/proc/self")
_FIRST_TO_BE_ENDED = 1000  # proc(5): the maximum of oom_score_adj


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


@dataclass(frozen=True)
class Forwards:
    """The forward passes to time in a block: each rank's own pace, under DDP too.

    All steps under DDP take as long as those of the slowest rank, because gradients are averaged. The forward pass of
    the module that DDP wraps waits for nobody: DDP broadcasts buffers before it.

    Attributes:
        model: the module that DDP wraps, or that is trained without DDP. It is not compiled, because a hook that is
            added after torch.compile never fires.
        passes: forward passes of each step.
    """

    model: nn.Module
    passes: int


class CpuDevice:
    """The CPU: wall clock, and the process's CPU time as utilization; a GPU overrides what differs.

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
        """The device, for torch."""
        return torch.device("cpu")

    def check(self, precision: Precision) -> None:
        """Refuse fp16, because its gradient scaler needs CUDA. Raises RuntimeError."""
        if precision == "fp16":
            raise RuntimeError("precision fp16 needs a GPU; expected fp32 or bf16 on CPU")

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        """Run `step` `steps` times, with a mark of the device's clock at the borders of steps and of forward passes.

        No hook remains on the model, also after an exception: hooks that stayed would be copied with it.
        """
        expected = 0 if forwards is None else forwards.passes * steps
        begins, ends, handles = list[Any](), list[Any](), list[RemovableHandle]()
        mark = self._started_clock(steps + 1 + 2 * expected)
        started_unix_s, cpu_s = time.time(), time.process_time()
        try:
            if forwards is not None:
                handles.append(forwards.model.register_forward_pre_hook(lambda *_: begins.append(mark())))
                handles.append(forwards.model.register_forward_hook(lambda *_: ends.append(mark())))
            marks = [mark()]
            for _ in range(steps):
                step()
                marks.append(mark())
                self.on_step()
        finally:
            for handle in handles:
                handle.remove()
        self.synchronize()
        block_s = self._seconds(marks[0], marks[-1])
        utilization, peak_bytes = self._used(time.process_time() - cpu_s, block_s)
        step_s = tuple(map(self._seconds, marks, marks[1:]))
        forward: dict[str, Any] = {}
        if forwards is not None and len(begins) == len(ends) == expected:
            forward = {FORWARD_S: math.fsum(map(self._seconds, begins, ends))}
        elif forwards is not None:
            found = f"hooks on the model saw {len(begins)} forward passes begin and {len(ends)} end"
            forward = {"unread": {FORWARD_S: f"{found}; expected {expected}"}}
        return Timing(started_unix_s, step_s, block_s, utilization, peak_bytes, **forward)

    def _started_clock(self, marks: int) -> Callable[[], Any]:
        """What returns a mark, about `marks` times, once the device is idle."""
        return time.perf_counter

    def synchronize(self) -> None:
        """Wait until the device has done all that was queued."""

    def _seconds(self, begin: Any, end: Any) -> float:
        return float(end - begin)

    def _used(self, cpu_s: float, block_s: float) -> tuple[float | None, int]:
        """Utilization in a block, CPU seconds per thread and second, and peak memory."""
        memory = resident_memory()
        # Limited to 1, because other threads than torch's, such as gloo's, may have worked as well.
        return min(1.0, cpu_s / (block_s * torch.get_num_threads())), memory.own_bytes + memory.shared_bytes

    def allocated_bytes(self) -> int:
        """Bytes allocated by torch's allocator; 0 on a CPU: the parts of a process's resident set are unknown."""
        return 0

    def memory_held(self) -> RankMemory:
        """Peak memory of this process since it started. Raises OSError if the system does not report it."""
        return resident_memory()

    def release(self) -> None:
        """Return cached memory to the driver, because the next study may need other sizes; a CPU caches none."""


_NO_CONTEXT = "busy or unavailable"  # of cudaErrorDevicesUnavailable


def _why_no_cuda() -> str:
    """Why CUDA cannot be used, such as a driver that is too old, in brackets; empty if it can."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f" ({str(error).partition(chr(10))[0]})"
    return ""


class CudaDevice(CpuDevice):
    """One GPU: CUDA events around each step are read after the block, with synchronization before and after it."""

    backend = "nccl"

    def __init__(self, local_rank: int) -> None:
        super().__init__()
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

    def _started_clock(self, marks: int) -> Callable[[], Any]:
        torch.cuda.reset_peak_memory_stats(self._device)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(marks)]

        def mark() -> torch.cuda.Event:
            event = events.pop() if events else torch.cuda.Event(enable_timing=True)
            event.record()
            return event

        torch.cuda.synchronize(self._device)
        return mark

    def synchronize(self) -> None:
        """Wait until the GPU has done all that was queued."""
        torch.cuda.synchronize(self._device)

    def _seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1000

    def _used(self, cpu_s: float, block_s: float) -> tuple[float | None, int]:
        # Utilization comes from the node's sampler, for all its GPUs.
        return None, torch.cuda.max_memory_allocated(self._device)

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
        """Return cached blocks to the driver."""
        torch.cuda.empty_cache()


Device = CpuDevice


def open_device(device_type: DeviceType, local_rank: int) -> Device:
    """The device of this rank. Raises RuntimeError if there is none."""
    return CudaDevice(local_rank) if device_type == "cuda" else CpuDevice()


def resident_memory(process: Path = _PROCESS) -> RankMemory:
    """Peak resident set of this process since it started, with pages of files and shared memory counted separately.

    From VmHWM, because the ru_maxrss of getrusage(2) may be that of the parent before the fork.

    Raises:
        OSError: the system does not report it.
    """
    fields: dict[str, int] = {}
    for line in (process / "status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmHWM", "RssFile", "RssShmem"):
            fields[name] = int(value.split()[0]) * 1024
    shared = fields["RssFile"] + fields["RssShmem"]
    return RankMemory(own_bytes=max(0, fields["VmHWM"] - shared), shared_bytes=shared)


def be_ended_first(process: Path = _PROCESS) -> None:
    """Let the kernel kill this process before others, including its parent, if memory runs out."""
    with contextlib.suppress(OSError):  # otherwise the kernel kills the largest process, which is a rank as well
        (process / "oom_score_adj").write_text(str(_FIRST_TO_BE_ENDED), encoding="ascii")
