"""How process groups are made, so that NCCL makes a communicator of those that communicate, and of no others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist


def communicator_options(backend: str, *, high_priority: bool = False) -> Any:
    """What makes torch connect a group in its first collective, and its members only.

    From 2.15 on torch connects all ranks when the default group is made, and has all of them split that communicator
    for every further group, members or not: on 64 nodes 192 times for a study of three sizes. Earlier versions do
    by themselves what is asked for here.

    Args:
        high_priority: its kernels go before others on the GPU.

    Returns:
        For `dist.init_process_group` and `dist.new_group`; None if there is nothing to say.

    Raises:
        RuntimeError: the backend has no streams that could go first.
    """
    if backend != "nccl":
        if high_priority:
            raise RuntimeError(f"{backend} has no stream priority: that is NCCL's")
        return None
    is_lazy = hasattr(dist.ProcessGroupNCCL.Options, "lazy_init")
    if not (is_lazy or high_priority):
        return None
    options: Any = dist.ProcessGroupNCCL.Options(is_high_priority_stream=high_priority)
    if is_lazy:
        options.lazy_init = True
    return options


def new_group(ranks: Sequence[int], timeout: timedelta, *, high_priority: bool = False) -> dist.ProcessGroup | None:
    """The process group of some ranks of the gang; None on a rank that is not in it.

    All ranks of the gang make all groups in the same order: torch names groups by how many a rank has made, and members
    of one group have to agree on its name. One that a rank is not in costs it microseconds and no communication.
    They are destroyed in that order, too: NCCL waits in the destruction of a communicator for its other members.

    Args:
        timeout: limit for one collective; without one NCCL's is 10 minutes, whatever the default group has.
        high_priority: as `communicator_options`.
    """
    options = communicator_options(dist.get_backend(), high_priority=high_priority)
    group = dist.new_group(ranks=list(ranks), timeout=timeout, pg_options=options)
    return group if isinstance(group, dist.ProcessGroup) else None  # a rank outside gets a placeholder
