"""A rank a share of the cores: ranks on a CPU that the scheduler moves about are not devices that can be compared."""

from __future__ import annotations

import os
from collections.abc import Sequence


def share_of_cores(cores: Sequence[int], local_rank: int, local_world_size: int) -> list[int]:
    """The cores of one rank: neighbouring ones, as many for each rank; all of them if there are fewer than ranks.

    Args:
        cores: that this process may use.
        local_rank: 0 … local_world_size - 1.
        local_world_size: ranks on this host.
    """
    ordered = sorted(cores)
    share = len(ordered) // local_world_size
    return ordered[local_rank * share : (local_rank + 1) * share] if share else ordered


def pin_to_cores(local_rank: int, local_world_size: int) -> None:
    """Keep this process, and the threads it starts from now on, on its share of the cores.

    Where the system has no such call, or forbids it, ranks stay as they are: slower and noisier, and still right.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = share_of_cores(sorted(os.sched_getaffinity(0)), local_rank, local_world_size)
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        print(f"ranks are not pinned to cores: {error}", flush=True)
