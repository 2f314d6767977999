"""One machine of the lab: a set of Linux namespaces with a host name, a network and a private /etc/hosts.

Its first process reads from a pipe whose other end this Python process holds. When that end closes, on purpose or
because this process was killed, the first process ends and the kernel ends every process of the machine with it and
takes its network interfaces and mounts away.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.slurm_lab.cgroup import CpuQuota
from tests.slurm_lab.needs import SEARCH_PATH
from tests.slurm_lab.polling import wait_until

# bash, as the first process must reap orphans, and bash does so while it waits in `read`.
_FIRST_PROCESS = """
set -e
hostname "$0"
mount --bind "$1" /etc/hosts
ip link set lo up
echo up
read -r _ || true
"""
_JOIN = 'echo $$ >"$0"; exec "$@"'  # the cgroup first, so that everything started is born in it
# Entering a mount namespace leads to its root directory: go back to where the caller was.
_ENTER = """
pid=$1; flags=$2; shift 2
exec nsenter --target "$pid" --net --uts --mount $flags -- sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
"""


class Machine:
    """Namespaces for network, host name, mounts and processes, and what is needed to run commands in them.

    Args:
        name: its host name.
        hosts: the file that is /etc/hosts there.
        own_proc: whether /proc shows only this machine's processes. Not on the head: commands run there stay in the
            process namespace of their caller, so that a signal sent to them reaches them.
        quota: the CPU quota that its processes share.
    """

    def __init__(self, name: str, hosts: Path, *, own_proc: bool, quota: CpuQuota | None = None) -> None:
        self.name = name
        self._hosts = hosts
        self._own_proc = own_proc
        self._quota = quota
        self._holder: subprocess.Popen[str] | None = None
        self._first: psutil.Process | None = None
        self._daemons: list[subprocess.Popen[bytes]] = []

    def up(self) -> None:
        """Make the namespaces.

        Raises:
            RuntimeError: when the machine does not come up, with what it said.
        """
        flags = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", *["--mount-proc"][: self._own_proc]]
        argv = ["unshare", *flags, "bash", "-c", _FIRST_PROCESS, self.name, str(self._hosts)]
        self._holder = subprocess.Popen(
            self._joined(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=lab_path(os.environ), cwd="/", start_new_session=True,
        )  # fmt: skip
        assert self._holder.stdout
        assert self._holder.stderr
        if self._holder.stdout.readline() != "up\n":
            raise RuntimeError(f"{self.name} did not come up: {self._holder.stderr.read().strip()}")
        [self._first] = psutil.Process(self._holder.pid).children()

    @property
    def pid(self) -> int:
        """The first process's pid, as this Python process sees it."""
        assert self._first, f"{self.name} is not up"
        return self._first.pid

    def enter(self, argv: Sequence[str], *, as_member: bool = True) -> list[str]:
        """The command that runs ``argv`` on this machine, in the working directory of whoever runs the command.

        Args:
            argv: what to run.
            as_member: whether it is a process of this machine, which ends with it and which ``processes`` shows. The
                process started is then the parent of ``argv``'s, and passes no signals on.
        """
        flags = "--pid" if as_member else ""
        return self._joined(["sh", "-c", _ENTER, "sh", str(self.pid), flags, *argv])

    def start_daemon(self, argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process of this machine that runs in the foreground; it ends with the machine."""
        with log.open("ab") as out:
            daemon = subprocess.Popen(
                self.enter(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=lab_path(os.environ), cwd="/",
                start_new_session=True,
            )  # fmt: skip
        self._daemons.append(daemon)
        return daemon

    def processes(self) -> list[psutil.Process]:
        """Every living process of this machine but its first, zombies left out."""
        return [process for process in self._members() if process.pid != self.pid]

    def _members(self) -> list[psutil.Process]:
        namespace = _namespace(self.pid)
        return [p for p in psutil.process_iter() if _namespace(p.pid) == namespace and _lives(p)]

    def down(self) -> None:
        """End every process of this machine; with them go its namespaces. Harmless when it is not up."""
        if self._holder is None:
            return
        if self._first:
            first = self._first
            _kill(first)
            wait_until(lambda: not _lives(first), 10, f"{self.name} to end")
        else:
            self._holder.kill()
        for daemon in self._daemons:
            daemon.wait(10)
        self._holder.communicate(timeout=10)
        self._holder = self._first = None
        self._daemons.clear()

    def _joined(self, argv: list[str]) -> list[str]:
        return ["sh", "-c", _JOIN, str(self._quota.members), *argv] if self._quota else argv


def lab_path(environ: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """A copy of an environment whose PATH has the system administrator's directories, where the daemons are."""
    return {**environ, "PATH": SEARCH_PATH}


def _namespace(pid: int) -> str:
    """The process namespace a process is in; empty when it has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()  # psutil makes sure that the pid is still the same process's
    except psutil.NoSuchProcess:
        return


def program_of(process: psutil.Process) -> str:
    """The program a process runs; empty when it has ended."""
    try:
        command = process.cmdline()
    except psutil.NoSuchProcess:
        return ""
    # slurmstepd calls itself "slurmstepd: [7.0]".
    return Path(command[0].split(":")[0]).name if command else ""
