"""Create process groups whose NCCL communicators contain only the ranks that communicate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def communicator_options(backend: str, *, high_priority: bool = False) -> Any:
    """Options that make torch connect only the members of a group, in its first collective.

    From 2.15 on torch connects all ranks when the default group is created, and splits that communicator on all ranks
    for every further group, members or not: on 64 nodes 192 times for a study of three sizes. Earlier versions behave
    as requested here by default.

    Args:
        high_priority: whether its kernels have priority on the GPU.

    Returns:
        For `dist.init_process_group` and `dist.new_group`; None for the defaults.

    Raises:
        RuntimeError: the backend has no stream priorities.
    """
    if backend != "nccl":
        if high_priority:
            raise RuntimeError(f"{backend} has no stream priority; expected NCCL")
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

    All ranks of the gang create all groups in the same order, because torch names groups by the number created before,
    and the members of a group have to agree on its name. For ranks outside the group this takes microseconds and no
    communication. Groups are destroyed in the same order, because NCCL waits for the other members when it destroys a
    communicator.

    Args:
        timeout: limit for one collective; the default of NCCL is 10 minutes, whatever the default group has.
        high_priority: see `communicator_options`.
    """
    options = communicator_options(dist.get_backend(), high_priority=high_priority)
    group = dist.new_group(ranks=list(ranks), timeout=timeout, pg_options=options)
    return group if isinstance(group, dist.ProcessGroup) else None  # a rank outside gets a placeholder


def process_group_class(device: torch.device) -> str:
    """Class of the default group's backend for a device.

    ``nccl`` is `ProcessGroupNCCL`, or, by default since torch 2.15, `ProcessGroupNCCL2`. Empty if this version of torch
    does not tell.
    """
    try:
        backend = dist.distributed_c10d._get_default_group()._get_backend(device)
    except (AttributeError, RuntimeError):  # names of torch's own that a later version may not have
        return ""
    return type(backend).__name__
