"""Whether a gang ended for lack of memory, and the sign of it."""

from __future__ import annotations

import re
import signal

from pytest_ddpscale.launch.gang_state import GangEnd
from pytest_ddpscale.node.protocol import Failed

_KILLED = -int(signal.SIGKILL)
# Errors of torch's allocator and of Python, and messages in errors of other types where torch, cuDNN, cuBLAS and NCCL
# allocate memory themselves.
_TYPES = ("OutOfMemoryError", "MemoryError")
_SAID = re.compile(
    r"can't allocate memory|(?:CUDA|CUDA error:|CUDA driver error:|Triton Error \[CUDA\]:) out of memory"
    r"|Cuda failure \d* ?'out of memory'|Failed to CUDA \w*alloc|_STATUS_ALLOC_FAILED"
    r"|_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED"
    # Of a convolution: no algorithm's workspace fits.
    r"|(?:FIND was unable|GET was unable) to find an engine to execute this computation"
)


def why_out_of_memory(end: GangEnd, counted_kills: int | None) -> str:
    """The sign of a lack of memory, in words; empty if the gang ended otherwise.

    One rank is enough, because all others end with it. A killed rank counts as out of memory even if the kernel did not
    report it, because services that watch memory also kill.

    Args:
        end: of the gang.
        counted_kills: processes of its memory cgroup that the kernel killed meanwhile; None if it does not count them.
    """
    for failure in end.failures:
        if is_out_of_memory(failure):
            return f"{failure.type} on rank {failure.rank} in {failure.phase}"
    by_kernel = end.oom_kills if counted_kills is None else counted_kills
    killed = [rank for rank in end.rank_ends if rank.exit_code == _KILLED]
    unseen = [rank for rank in end.rank_ends if rank.exit_code is None]
    if by_kernel and (named := killed or unseen):
        return f"the kernel ended {named[0].name} for lack of memory"
    if killed:
        return f"{killed[0].name} was killed by SIGKILL"
    if counted_kills and end.why:
        return "the kernel ended a process that ranks need for lack of memory"
    return ""


def is_out_of_memory(failure: Failed) -> bool:
    """Whether a rank's own error reports a lack of memory."""
    return failure.type in _TYPES or _SAID.search(failure.message) is not None
