"""Other programs, asked something: in the background, for a limited time, and never waited for once that is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from pytest_ddpscale.util.orphans import die_with_parent

_MOMENT_S = 0.5


def started(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process in a session of its own, so that all it starts can be ended with it; it ends with this one.

    Args:
        arguments: its command line.

    Raises:
        OSError: it could not be started.
    """
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


class Command:
    """Starts a program at once.

    Args:
        arguments: its command line.
        limit_s: seconds that it may take.

    Attributes:
        was_too_late: whether it was given up because it took longer.
        signal: that ended it; 0 if none did.
    """

    def __init__(self, arguments: Sequence[str], limit_s: float) -> None:
        self._name = arguments[0]
        self._limit_s = limit_s
        self._ends_s = time.monotonic() + limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._problem = ""
        self.was_too_late = False
        self.signal = 0
        try:
            self._process = started(arguments)
        except OSError as error:
            self._problem = f"{self._name} could not be started ({error.strerror or error})"

    def output(self) -> tuple[str, str]:
        """Wait for its end. Returns what it printed, and what was wrong: one of them is empty, or both are."""
        if self._process is None:
            return "", self._problem
        try:
            output, errors = self._process.communicate(timeout=max(0.0, self._ends_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.was_too_late = True
            kill_session(self._process)
            close_pipes(self._process)
            return "", f"did not answer within {self._limit_s:g} s"
        self.signal = max(0, -self._process.returncode)
        if self._process.returncode != 0:
            return "", last_line(errors) or f"ended with code {self._process.returncode}"
        return output.decode("utf-8", errors="replace"), ""


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, with all that it started there.

    It is hardly waited for: a process inside a driver or a file system that hangs goes when those let go of it.
    """
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_MOMENT_S)


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    """Read no more of what a process prints."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def last_line(output: bytes) -> str:
    """The last line that says anything, without what a terminal would act on; at most 300 characters."""
    lines = output.decode("utf-8", errors="replace").splitlines()
    clean = ("".join(c for c in line if c.isprintable()).strip() for line in lines)
    return next((line[:300] for line in reversed(list(clean)) if line), "")
