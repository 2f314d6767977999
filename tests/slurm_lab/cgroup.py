"""A CPU quota for all processes of one node, kept by the kernel (cgroup v1, ``cpu`` controller)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.slurm_lab.polling import wait_until

# Short, so that a node is slow all the time instead of stopping for most of every 100 ms (the kernel's default).
PERIOD_US = 10_000
MIN_QUOTA_US = 1_000  # the kernel's least


def cpu_controller() -> Path | None:
    """This process's own cgroup under the v1 ``cpu`` controller, where new ones can be made; None without one."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            for mount in (Path("/sys/fs/cgroup") / controllers, Path("/sys/fs/cgroup/cpu")):
                # Inside a container its own cgroup may be mounted as the root, while the path is the machine's.
                for directory in (mount / path.lstrip("/"), mount):
                    if (directory / "cpu.cfs_quota_us").exists() or (directory / "cpu.shares").exists():
                        return directory if os.access(directory, os.W_OK) else None
    return None


def remove_stale() -> None:
    """Remove the cgroups of labs whose process was killed; they are empty, as its nodes ended with it."""
    controller = cpu_controller()
    for path in controller.glob("lab*x*-n*") if controller else ():
        found = re.match(r"lab(\d+)x", path.name)
        if found and not psutil.pid_exists(int(found[1])):
            with suppress(OSError):  # another session removed it, or someone is in it after all
                path.rmdir()


def machine_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


class CpuQuota:
    """One cgroup: whoever is in it shares the quota, and what they start inherits it.

    Args:
        name: the cgroup's, new or left over and empty.
        others: the lab's quotas, which together may not exceed the machine's cores.

    Raises:
        OSError: when there is no cgroup v1 ``cpu`` controller, or it cannot be written.
    """

    def __init__(self, name: str, others: Sequence[CpuQuota] = ()) -> None:
        controller = cpu_controller()
        if controller is None:
            raise FileNotFoundError("no writable cgroup v1 cpu controller under /sys/fs/cgroup")
        self.path = controller / name
        self.cores: float | None = None
        self._others = others
        self.path.mkdir(exist_ok=True)

    @property
    def members(self) -> Path:
        """The file that a process writes its pid to in order to join."""
        return self.path / "cgroup.procs"

    def limit(self, cores: float | None) -> None:
        """Let the members have this many cores together; None: no limit.

        Raises:
            ValueError: for less than 0.1, or when all quotas together would exceed the machine's cores.
        """
        quota_us = -1 if cores is None else round(cores * PERIOD_US)
        if cores is not None:
            if quota_us < MIN_QUOTA_US:
                raise ValueError(f"a CPU quota of {cores} cores: expected at least {MIN_QUOTA_US / PERIOD_US}")
            together = cores + sum(other.cores or 0 for other in self._others if other is not self)
            if together > machine_cores():
                raise ValueError(f"CPU quotas of {together:g} cores together, on a machine of {machine_cores()}")
        (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="utf-8")
        (self.path / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="utf-8")
        self.cores = cores

    def remove(self, deadline_s: float = 10) -> None:
        """Remove the cgroup once its last member has ended."""
        if self.path.exists():
            wait_until(lambda: not self.members.read_text(encoding="utf-8"), deadline_s, f"{self.path} to empty")
            self.path.rmdir()
