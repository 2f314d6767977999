"""The asking side of the sampler, for a rank: no NVML in this process, and no thread beside the training."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

from pytest_ddpscale.results.record_lines import line_of
from pytest_ddpscale.results.strict_json import Record
from pytest_ddpscale.results.telemetry_record import GpuReadings

POLL_S = 1.0
_GRACE_S = 1.0


class Mark(Record, frozen=True, tag_field="ask", tag="mark"):
    """Read energy and GPM at once: sent as a window begins, it makes the window's edge sharp. Has no answer."""


class CutWindows(Record, frozen=True, tag_field="ask", tag="cut"):
    """What were GPUs like in some windows? (UUID, begin, end) each, in seconds since the epoch."""

    windows: tuple[tuple[str, float, float], ...]


class CutReadings(Record, frozen=True):
    """The answer: of each window, after a poll of now."""

    devices: tuple[GpuReadings, ...]


class Sampler:
    """Starts the sampler of this node and asks it. Nothing here raises: telemetry that fails costs no run.

    To be made in a thread that lives as long as the sampler shall: it ends with that thread.

    Args:
        poll_s: seconds between two polls.

    Attributes:
        problem: why nothing was answered the last time; empty while all is well.
    """

    def __init__(self, uuids: Sequence[str], poll_s: float = POLL_S, environment: dict[str, str] | None = None) -> None:
        self.problem = ""
        self._owes_answer = False
        self._rest = b""
        self._process: subprocess.Popen[bytes] | None = None
        command = [sys.executable, "-m", "pytest_ddpscale.telemetry", ",".join(uuids), str(poll_s), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment
            )
        except OSError as error:
            self.problem = f"the sampler did not start: {error}"

    @property
    def pid(self) -> int | None:
        """Of the sampler's process; None if it was not started, or closed."""
        return None if self._process is None else self._process.pid

    def wait_for_first_poll(self, timeout_s: float = 5.0) -> None:
        """Wait until the GPUs were read once, in seconds at most: errors are counted from the poll before a window.

        Starting NVML may take seconds where the driver unloads its state between programs (persistence mode off).
        """
        self.cut((), timeout_s)

    def mark(self) -> None:
        """Tell that a window begins: running totals are read now, which makes its edge sharp. Waits for nothing."""
        if not self._owes_answer:  # a sampler that is late is not given more to do
            self._send(Mark())

    def cut(self, windows: Sequence[tuple[str, float, float]], timeout_s: float = 5.0) -> tuple[GpuReadings, ...]:
        """What the GPUs were like in some windows of time.

        Args:
            windows: (UUID, begin, end) in seconds since the epoch.
            timeout_s: how long to wait, in seconds. A sampler that let one call wait so long is not waited for
                again before it has answered that one.

        Returns:
            Readings of each window; nothing if the sampler is dead or too late: `problem` says so.
        """
        deadline_s = time.monotonic() + timeout_s
        if self._owes_answer and self._receive(time.monotonic()) is None:
            return ()
        if not self._send(CutWindows(tuple(windows))):
            return ()
        self._owes_answer = True
        line = self._receive(deadline_s)
        if line is None:
            return ()
        try:
            devices = msgspec.json.decode(line, type=CutReadings).devices
        except ValueError as error:
            self.problem = f"the sampler answered {line[:200]!r} ({error})"
            return ()
        self.problem = ""
        return devices

    def close(self) -> None:
        """End the sampler. Asking afterwards gives nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        self.problem = "the sampler was closed"
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]  # both are pipes of ours
        try:
            process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:  # it hangs in the driver
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE_S)

    def _send(self, message: Mark | CutWindows) -> bool:
        """Whether it could be sent."""
        if self._process is None or self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(line_of(message))
        except (OSError, ValueError) as error:
            self.problem = self._words_on_end(error)
            return False
        return True

    def _receive(self, deadline_s: float) -> bytes | None:
        """The answer that is owed; None, and `problem` says why, if it does not come in time."""
        if self._process is None or self._process.stdout is None:
            return None
        file = self._process.stdout.fileno()
        waiting = select.poll()
        waiting.register(file, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._rest:
            if not waiting.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
                self.problem = "the sampler does not answer in time: its driver may hang"
                return None
            data = os.read(file, 65536)
            if not data:
                self.problem = self._words_on_end(None)
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        self._owes_answer = False
        return line

    def _words_on_end(self, error: Exception | None) -> str:
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its pipes close a moment before it has ended
                code = self._process.wait(timeout=_GRACE_S)
        ended = "the sampler ended" if code is None else f"the sampler ended with exit code {code}"
        return ended if error is None else f"{ended}: {error}"
