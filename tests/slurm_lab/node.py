"""A compute node of the lab, and what can be made to go wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil

from tests.slurm_lab.cgroup import CpuQuota
from tests.slurm_lab.config import Paths
from tests.slurm_lab.machine import Machine, program_of
from tests.slurm_lab.network import INTERFACE, execute, ip, lift_limit, limit_rate, lose_none, lose_packets

_SLURM = ("slurmd", "slurmstepd")


class Node(Machine):
    """A machine with a slurmd, one cable to the lab's bridge and a CPU quota.

    Args:
        name: host name and Slurm's node name.
        address: its IP address.
        paths: the lab's files.
        head: the machine at the other end of its cable.
        quota: its cgroup.
    """

    def __init__(self, name: str, address: str, paths: Paths, head: Machine, quota: CpuQuota) -> None:
        super().__init__(name, paths.hosts, own_proc=True, quota=quota)
        self.address = address
        self._paths = paths
        self._head = head
        self.quota = quota
        self._undo: dict[str, Callable[[], None]] = {}

    def command(self, argv: list[str]) -> list[str]:
        """The command that runs ``argv`` on this node; see :meth:`Machine.enter`."""
        return self.enter(argv)

    def start_slurmd(self) -> None:
        """Start slurmd."""
        self.start_daemon(["slurmd", "-D", "-f", str(self._paths.slurm_conf)], self._paths.log(f"slurmd.{self.name}"))

    # -- processes

    def processes(self) -> list[psutil.Process]:
        """Every living process on this node but Slurm's: of jobs and of commands. Pids are this machine's."""
        return [process for process in super().processes() if program_of(process) not in ("", *_SLURM)]

    # -- faults

    def slow_link(self, rate: str) -> None:
        """Limit the node's cable in both directions to a rate of tc's syntax: ``200mbit``."""
        self._undo["rate"] = self.fast_link
        limit_rate(rate, INTERFACE, self)
        limit_rate(rate, self.name, self._head)

    def fast_link(self) -> None:
        """Take the limit of ``slow_link`` away."""
        if self._undo.pop("rate", None):
            lift_limit(INTERFACE, self)
            lift_limit(self.name, self._head)

    def lossy_link(self, percent: int) -> None:
        """Drop this share of the packets to and from the node, at random."""
        self._undo["losses"] = self.lossless_link
        lose_packets(percent, INTERFACE, self)
        lose_packets(percent, self.name, self._head)

    def lossless_link(self) -> None:
        """Take the losses of ``lossy_link`` away."""
        if self._undo.pop("losses", None):
            lose_none(INTERFACE, self)
            lose_none(self.name, self._head)

    def link_down(self) -> None:
        """Pull the cable out, at the switch: connections are not closed, they just fall silent.

        Slurm takes the node for down (``down*``) after some 13 s.
        """
        self._undo["link"] = self.link_up
        ip(f"link set {self.name} down", of=self._head)

    def link_up(self) -> None:
        """Put the cable in again. A node that is already down comes back by itself in a minute, resumed in seconds."""
        self._undo.pop("link", None)
        ip(f"link set {self.name} up", of=self._head)

    def mount(self, other: Path, at: Path) -> None:
        """Let this node alone find another file, or directory, at a path, as if it had a disk of its own there.

        Processes that have the old one open keep it.
        """
        execute(["mount", "--bind", str(other), str(at)], self)
        self._undo[f"mount {at}"] = lambda: self._unmount(at)

    def _unmount(self, at: Path) -> None:
        self._undo.pop(f"mount {at}")
        execute(["umount", "--lazy", str(at)], self)  # somebody may still have it open

    def cpu_quota(self, cores: float | None) -> None:
        """Let all processes of the node have this many cores together (0.3: 30 % of one); None: no limit.

        Raises:
            ValueError: for less than 0.1, or when all nodes' quotas together would exceed the machine's cores.
        """
        self.quota.limit(cores)

    @property
    def cores(self) -> float | None:
        """The quota in force; None: no limit."""
        return self.quota.cores

    def heal(self) -> None:
        """Undo every fault but the quota."""
        for undo in list(self._undo.values()):
            undo()

    def kill_leftovers(self) -> None:
        """End whatever a test left running here."""
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
