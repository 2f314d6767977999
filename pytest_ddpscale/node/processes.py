"""Other programs run with a time limit, and the end of all processes of a gang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from pytest_ddpscale.util.orphans import die_with_parent
from pytest_ddpscale.util.owned_folder import remove_orphans

# Set in the environment of a launcher, so its descendants are found by it even after losing their parent.
# A node's agent appends `/` and its node's index for torchrun and its ranks.
GANG_VARIABLE = "DDPSCALE_GANG"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (agents make folders of their own in it)
IN_MEMORY = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
_MOMENT_S = 0.5
_LEAST_WAIT_S = 0.01  # a shorter wait would read nothing


def stop_gang(started: Sequence[subprocess.Popen[bytes]], gang_id: str, grace_s: float) -> None:
    """End the started processes and every other process of their gang.

    torchrun starts each worker in its own session, so a signal to torchrun's process group leaves workers behind that
    hold GPUs; and if torchrun is killed, they get another parent. So they are found by their environment.

    Args:
        started: torchrun, or the processes that carry agents; may have exited already.
        grace_s: seconds between asking (SIGTERM) and killing (SIGKILL).
    """
    for process in started:
        if process.poll() is None:
            process.terminate()  # torchrun passes it on to its workers
    patience_ends = time.monotonic() + grace_s
    _wait(started, patience_ends)
    own = {process.pid for process in started}
    ranks = [member for member in members(gang_id) if member.pid not in own]
    _, alive = psutil.wait_procs(ranks, timeout=max(0.0, patience_ends - time.monotonic()))
    for process in started:
        process.kill()  # no effect on a process already waited for
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()  # psutil checks the start time, so a reused pid is safe
    psutil.wait_procs(alive, timeout=grace_s)
    _wait(started, time.monotonic() + grace_s)
    remove_left_folders()


def remove_left_folders() -> None:
    """Remove the folders of agents that were killed on this machine."""
    remove_orphans([IN_MEMORY, Path(tempfile.gettempdir())])


def _wait(started: Sequence[subprocess.Popen[bytes]], ends_s: float) -> None:
    """Wait through Popen, because psutil would consume the exit codes."""
    for process in started:
        # A process that hangs in a disk or driver call cannot be ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, ends_s - time.monotonic()))


def members(gang_id: str) -> list[psutil.Process]:
    """Running processes of a gang on this machine, including the launcher; for ``GANG/NODE`` those of one node."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # ended meanwhile, or another user's
            gang = process.environ().get(GANG_VARIABLE, "")
            if gang == gang_id or gang.startswith(f"{gang_id}/"):
                processes.append(process)
    return processes


class Command:
    """Starts a program immediately, in its own session, so that its children end with it; it ends with this process.

    Attributes:
        problem: why it did not start; empty if it did.
        was_too_late: whether it was abandoned after its time limit.
        code: its exit code, negative for a signal's number; None without one.
    """

    _process: subprocess.Popen[bytes] | None = None
    problem = ""
    was_too_late = False
    code: int | None = None

    def __init__(self, arguments: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> None:
        self.limit_s = limit_s
        self._ends_s = time.monotonic() + limit_s
        self.printed = self.errors = b""
        try:
            self._process = subprocess.Popen(
                arguments,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            self.problem = f"could not be started ({error.strerror or error})"

    def is_done(self, wait_s: float = _LEAST_WAIT_S) -> bool:
        """Wait up to `wait_s`; return whether the program ended or was abandoned. Do not call it again after that."""
        if self._process is None:
            return True
        left_s = self._ends_s - time.monotonic()
        try:
            self.printed, self.errors = self._process.communicate(timeout=max(_LEAST_WAIT_S, min(wait_s, left_s)))
        except subprocess.TimeoutExpired as error:
            if wait_s < left_s:
                return False
            self.printed, self.errors = error.stdout or b"", error.stderr or b""
            self.was_too_late = True
            self.stop()
        else:
            self.code = self._process.returncode
        return True

    def stop(self) -> None:
        """End the program and all its children, if still running; its output is then no longer available.

        The wait is short, because a process that hangs in a driver or file system ends only when that call returns.
        """
        process = self._process
        if process is None or process.stdout is None or process.stderr is None:
            return
        if process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_MOMENT_S)
        process.stdout.close()
        process.stderr.close()


def last_line(output: bytes) -> str:
    """The last non-empty line without control characters; at most 300 characters."""
    lines = output.decode("utf-8", errors="replace").splitlines()
    clean = ("".join(c for c in line if c.isprintable()).strip() for line in lines)
    return next((line[:300] for line in reversed(list(clean)) if line), "")
