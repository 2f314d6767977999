"""Copy bandwidth: within a device's memory, and between device and host."""

from __future__ import annotations

import torch

from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.worker.probes.work import memory_permitting

_BYTES_PER_NUMBER = 8


class Copy:
    """A copy of random bytes from one tensor to another.

    Within a device's memory each byte counts twice, read and written, like in STREAM's copy and nvbandwidth; between
    device and host once. Host memory is pinned. On a CPU both tensors are in host memory.

    Attributes:
        destination: the copy, as 64-bit integers.

    Args:
        size_bytes: a multiple of 8.
    """

    def __init__(self, kind: str, device: torch.device, size_bytes: int) -> None:
        numbers = size_bytes // _BYTES_PER_NUMBER
        self.work = float(size_bytes) * KINDS[kind].counts
        self._source = _numbers(numbers, device, on_host=kind == "host-to-device").random_()
        self.destination = _numbers(numbers, device, on_host=kind == "device-to-host").zero_()

    def __call__(self) -> None:
        """Copy once."""
        self.destination.copy_(self._source, non_blocking=True)

    def is_correct(self) -> bool:
        """Whether source and destination are equal."""
        return torch.equal(self.destination.to(self._source.device), self._source)


def buffer_bytes(kind: str, device: torch.device) -> int:
    """Bytes that are copied at once."""
    return KINDS[kind].buffer_bytes["cpu" if device.type == "cpu" else "cuda"]


def open_copy(kind: str, device: torch.device) -> Copy:
    """The probe on a device. Raises CannotProbeError if there is too little memory."""
    size_bytes = buffer_bytes(kind, device)
    with memory_permitting(f"copies of {size_bytes >> 20} MiB"):
        return Copy(kind, device, size_bytes)


def _numbers(count: int, device: torch.device, *, on_host: bool) -> torch.Tensor:
    if on_host and device.type == "cuda":
        return torch.empty(count, dtype=torch.int64, pin_memory=True)
    return torch.empty(count, dtype=torch.int64, device=device)
