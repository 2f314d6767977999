"""Binding of ranks to cores.

With a GPU, a rank is bound to the NUMA node of its GPU. On a CPU each rank has a share of the cores, because ranks that
the scheduler moves cannot be compared. A rank that cannot be bound runs slower and noisier, but correctly, and the run
notes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpscale.telemetry.nvml import DriverPlace, driver_place

_SYSFS = Path("/sys")
_TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Binding:
    """Result of binding one rank.

    Attributes:
        node: NUMA node whose cores the rank runs on; None if it is not bound.
        note: problem and reason; empty without a problem.
        gpu: where NVML has the rank's GPU; None without one, and if NVML does not say.
    """

    node: int | None = None
    note: str = ""
    gpu: DriverPlace | None = None


def bind_to_gpu(uuid: str, local_world_size: int, sysfs: Path = _SYSFS) -> Binding:
    """Bind this process and all its threads; Linux gives them memory of the node that they run on.

    Args:
        local_world_size: ranks on this host, which may all have GPUs of one NUMA node.
    """
    gpu: DriverPlace | None = None
    try:
        gpu = driver_place(uuid)
        node = node_of(gpu.address, sysfs)
        if node is None:
            return Binding(gpu=gpu)  # one node, or a virtual machine without NUMA information
        allowed = os.sched_getaffinity(0)
        cores = allowed & cores_of(node, sysfs)
        # Ranks of the node are not known here; each has a GPU, and not each GPU has a rank.
        its_gpus = sum(node_of(function.name, sysfs) == node for function in sysfs.glob("bus/pci/drivers/nvidia/*:*"))
        least = min(local_world_size, its_gpus or local_world_size)
        if len(cores) < least:
            text = f"not bound to its GPU's NUMA node {node}: only {len(cores)} of {len(allowed)} usable cores there"
            text = f"{text}; expected at least {least}, one for each of its GPUs"
            return Binding(note=text, gpu=gpu)
        _run_on(cores)
    except (OSError, ValueError, LookupError) as error:
        return Binding(note=f"not bound to its GPU's NUMA node: {error}", gpu=gpu)
    return Binding(node, gpu=gpu)


def node_of(pci_address: str, sysfs: Path) -> int | None:
    """The NUMA node of a PCI device, such as ``0000:17:00.0``; None if the kernel has none. Raises OSError."""
    try:
        node = int((sysfs / "bus/pci/devices" / pci_address / "numa_node").read_text(encoding="ascii"))
    except FileNotFoundError:  # a kernel without NUMA
        return None
    return None if node < 0 else node


def cores_of(node: int, sysfs: Path) -> set[int]:
    """The cores of a NUMA node, whether this process may use them or not. Raises OSError."""
    text = (sysfs / "devices/system/node" / f"node{node}" / "cpulist").read_text(encoding="ascii").strip()
    cores: set[int] = set()
    for part in filter(None, text.split(",")):  # "0-31,64-95"; empty for a node with memory only
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _run_on(cores: set[int]) -> None:
    """Bind all threads: CUDA has already started some, and others may end meanwhile."""
    os.sched_setaffinity(0, cores)
    for task in _TASKS.iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def share_of_cores(cores: Sequence[int], local_rank: int, local_world_size: int) -> list[int]:
    """The cores of one rank: consecutive and equally many for each rank; all cores if there are fewer than ranks."""
    ordered = sorted(cores)
    share = len(ordered) // local_world_size
    return ordered[local_rank * share : (local_rank + 1) * share] if share else ordered


def allowed_cores() -> tuple[int, ...]:
    """The cores that this process may use now; empty if the system does not report them."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def pin_to_cores(local_rank: int, local_world_size: int) -> None:
    """Keep this process, and the threads it starts from now on, on its share of the cores."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = share_of_cores(sorted(os.sched_getaffinity(0)), local_rank, local_world_size)
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        print(f"ranks are not pinned to cores: {error}", flush=True)
