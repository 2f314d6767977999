"""The sampler's client in a rank: no NVML in this process, and no thread beside training."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from pytest_ddpscale.run.telemetry import GpuReadings

POLL_S = 1.0
_GRACE_S = 1.0


# A line of JSON each. What is asked: windows as (UUID, begin, end), in seconds since the epoch; or null when a window
# begins, to read energy and GPM immediately, for a sharp edge.
Asked: TypeAlias = tuple[tuple[str, float, float], ...] | None
# The answer, to windows only: their readings, after one more poll.
Answer: TypeAlias = tuple[GpuReadings, ...]


class Sampler:
    """Starts and queries the sampler of this node. Never raises, because failing telemetry must not end a run.

    The sampler ends with the thread that creates it.

    Args:
        poll_s: seconds between two polls.

    Attributes:
        problem: why the last query was not answered; empty while all is well.
    """

    def __init__(self, uuids: Sequence[str], poll_s: float = POLL_S, environment: dict[str, str] | None = None) -> None:
        self.problem = ""
        self._owes_answer = False
        self._rest = b""
        self._process: subprocess.Popen[bytes] | None = None
        module = "pytest_ddpscale.telemetry.sampling"
        command = [sys.executable, "-m", module, ",".join(uuids), str(poll_s), str(os.getpid())]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, env=environment)
        except OSError as error:
            self.problem = f"the sampler did not start: {error}"

    @property
    def pid(self) -> int | None:
        """Pid of the sampler; None if it did not start or was closed."""
        return None if self._process is None else self._process.pid

    def wait_for_first_poll(self, timeout_s: float = 5.0) -> None:
        """Wait until the GPUs were read once, because errors are counted from the poll before a window.

        Starting NVML may take seconds if the driver unloads its state between programs (persistence mode off).
        """
        self.cut((), timeout_s)

    def mark(self) -> None:
        """Announce that a window begins: counters are read now, for a sharp edge. Does not wait."""
        if not self._owes_answer:  # do not load a sampler that is already late
            self._send(None)

    def cut(self, windows: Sequence[tuple[str, float, float]], timeout_s: float = 5.0) -> Answer:
        """Read the telemetry of some time windows.

        Args:
            windows: (UUID, begin, end) in seconds since the epoch.
            timeout_s: how long to wait, in seconds. After a timeout, later calls do not wait until the sampler has
                answered the late call.

        Returns:
            Readings of each window; empty if the sampler is dead or too late, with the reason in `problem`.
        """
        deadline_s = time.monotonic() + timeout_s
        if self._owes_answer and self._receive(time.monotonic()) is None:
            return ()
        if not self._send(tuple(windows)):
            return ()
        self._owes_answer = True
        line = self._receive(deadline_s)
        if line is None:
            return ()
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except ValueError as error:
            self.problem = f"the sampler sent an invalid answer: {line[:200]!r} ({error})"
            return ()
        self.problem = ""
        return answer

    def close(self) -> None:
        """End the sampler. Later queries return nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        self.problem = "the sampler was closed"
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]  # both were opened as pipes
        try:
            process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:  # hangs in the driver
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE_S)

    def _send(self, asked: Asked) -> bool:
        """Send a question; return whether that worked."""
        if self._process is None or self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(msgspec.json.encode(asked) + b"\n")
        except (OSError, ValueError) as error:
            self.problem = self._words_on_end(error)
            return False
        return True

    def _receive(self, deadline_s: float) -> bytes | None:
        """The pending answer; None if it does not come in time, with the reason in `problem`."""
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
            with contextlib.suppress(subprocess.TimeoutExpired):  # its pipes close shortly before it ends
                code = self._process.wait(timeout=_GRACE_S)
        ended = "the sampler ended" if code is None else f"the sampler ended with exit code {code}"
        return ended if error is None else f"{ended}: {error}"
