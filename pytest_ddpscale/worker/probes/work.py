"""The interface of all probes: work to repeat, with a result that can be checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import psutil
import torch

_CPU_OUT_OF_MEMORY = "can't allocate memory"
_CUDA_OUT_OF_MEMORY = "out of memory"  # of pinned host memory, which is no torch.OutOfMemoryError


class CannotProbeError(Exception):
    """This rank cannot run a probe; this is recorded and is not a failure of the gang."""


class Work(Protocol):
    """One iteration of a probe, ready to be repeated. All ranks of a group have one each.

    Attributes:
        work: of one iteration: floating-point operations, or bytes.
    """

    work: float

    def __call__(self) -> None:
        """Run one iteration. On a GPU it is only queued."""

    def is_correct(self) -> bool:
        """Whether the result is right. This is the last call, because it may overwrite the operands.

        If ranks communicate, all of them call it at the same time.
        """


@contextmanager
def memory_permitting(what: str) -> Iterator[None]:
    """Raise CannotProbeError if memory does not suffice."""
    try:
        yield
    except RuntimeError as error:
        is_memory = isinstance(error, torch.OutOfMemoryError)
        if is_memory or _CPU_OUT_OF_MEMORY in str(error) or _CUDA_OUT_OF_MEMORY in str(error):
            reason, *_ = str(error).splitlines()
            raise CannotProbeError(f"not enough memory for {what}: {reason}") from error
        raise


def refuse_more_than_is_free(needed_bytes: int, sharers: int, device: torch.device) -> None:
    """Refuse allocations that would get ranks killed, because Linux overcommits host memory.

    Args:
        sharers: number of ranks on this host, which all need the same amount.

    Raises:
        CannotProbeError: the host has too little memory.
    """
    free_bytes = psutil.virtual_memory().available
    if device.type == "cpu" and needed_bytes * sharers > free_bytes:
        raise CannotProbeError(
            f"{sharers} ranks on this host need {needed_bytes / 2**20:.0f} MiB each; "
            f"{free_bytes / 2**20:.0f} MiB are available. Choose a smaller size"
        )
