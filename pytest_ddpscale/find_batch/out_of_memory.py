"""Whether a gang ended because there was too little memory, and how that showed."""

from __future__ import annotations

import re
import signal

from pytest_ddpscale.launch.gang_owner import GangEnd
from pytest_ddpscale.node.protocol import Failed

_KILLED = -int(signal.SIGKILL)
# Errors of torch's allocator and of Python's; and what torch, cuDNN, cuBLAS and NCCL say where they ask for memory by
# themselves, in errors of other types.
_TYPES = ("OutOfMemoryError", "MemoryError")
_SAID = re.compile(
    r"can't allocate memory|CUDA (error: )?out of memory|Cuda failure \d* ?'out of memory'|Failed to CUDA \w*alloc"
    r"|_STATUS_ALLOC_FAILED"
)


def why_out_of_memory(end: GangEnd, counted_kills: int | None) -> str:
    """How a lack of memory showed, in words; empty if the gang ended otherwise.

    A single rank is enough: all others end with it. A rank that was killed is taken for one that had too little memory
    also where no kernel says so, as a service that watches memory kills likewise.

    Args:
        end: of the gang.
        counted_kills: processes of its memory cgroup that the kernel ended meanwhile; None where it does not count.
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
    """Whether a rank's own error says that there was too little memory."""
    return failure.type in _TYPES or _SAID.search(failure.message) is not None
