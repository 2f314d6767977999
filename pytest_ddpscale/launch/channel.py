"""The supervisor's connection to all agents, over standard input and output of the processes that carry them."""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import selectors
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pytest_ddpscale.launch.launcher import AgentProcess
from pytest_ddpscale.node.protocol import (
    HEARTBEAT_S,
    FileBytes,
    Heartbeat,
    Joining,
    News,
    Order,
    decode_news,
    encode_order,
)
from pytest_ddpscale.util.masking import masked_text
from pytest_ddpscale.util.printable import as_typed

_LAST_LINES = 40
_OWN_LINES = 500
_MOST_CHARACTERS = 500  # of each kept line
# Longer lines are split, so that output without newlines cannot fill the memory.
_MOST_LINE_BYTES = 65_536
_READ_BYTES = 2**20
_FILES_PER_PROCESS = 3
_OUTPUT_S = 2.0  # wait for a process's last output; a child may hold the pipe open for ever
_POLL_S = 0.01  # between two checks for orders to send; short, as rank 0 waits for an answer after each round
# Orders for a process that no longer reads are dropped beyond this backlog.
_MOST_WAITING_BYTES = 2**28


@dataclass
class _Carrier:
    """One process that carries agents, with its streams."""

    process: subprocess.Popen[bytes]
    host: str
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    waiting: bytearray = field(default_factory=bytearray)
    has_spoken: bool = False
    open_outputs: int = 2
    ended_s: float | None = None  # when it was first seen to have ended

    @property
    def is_done(self) -> bool:
        """Whether it has ended and all of its output was read."""
        if self.process.poll() is None:
            return False
        self.ended_s = self.ended_s or time.monotonic()
        return not self.open_outputs or time.monotonic() - self.ended_s > _OUTPUT_S


@dataclass(frozen=True)
class EndedProcess:
    """A process that carried the agent of one node and has ended; all of its output was read."""

    host: str
    exit_code: int
    lines: tuple[str, ...]


class Channel:
    """Starts the processes that carry agents, reads their messages, and sends `Heartbeat` while this process lives.

    It runs in its own thread, because judging a large cluster may keep the supervisor busy for longer than agents wait.
    Other output, such as torchrun's or a scheduler's, goes to the log.

    Args:
        processes: the processes to start: one for all nodes, or one per node.
        log: file for other output; on a full disk only the log is lost.
        voices: prefixes of lines that are kept longer.

    Raises:
        OSError: a process could not be started; those started before are ended.
    """

    def __init__(
        self, processes: Sequence[AgentProcess], environment: Mapping[str, str], log: Path, voices: tuple[str, ...] = ()
    ) -> None:
        self._messages: queue.SimpleQueue[tuple[News | FileBytes, float]] = queue.SimpleQueue()
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._own_lines: deque[str] = deque(maxlen=_OWN_LINES)
        self._voices = voices
        self._log = _opened(log)
        self._lock = threading.Lock()
        self._joining = Joining()
        self._is_closing = self._is_given_up = False
        self._selector = selectors.DefaultSelector()
        self._carriers: list[_Carrier] = []
        _allow_files(len(processes) * _FILES_PER_PROCESS)
        try:
            for agent in processes:
                self._start(agent, environment)
        except BaseException:
            for process in self.processes:
                process.kill()
                process.wait()
            with self._selector, self._log:
                self._close_all()
            raise
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """All started processes."""
        return [carrier.process for carrier in self._carriers]

    def poll(self) -> int | None:
        """None while any process runs; else the exit code of the first one that failed, or 0."""
        codes = [process.poll() for process in self.processes]
        return None if None in codes else next((code for code in codes if code), 0)

    def wait(self) -> int:
        """Wait until all have ended. Returns as `poll`."""
        for process in self.processes:
            process.wait()
        return self.poll() or 0

    @property
    def ended(self) -> list[EndedProcess]:
        """Processes of single nodes that have ended and whose messages are all available from `messages`."""
        with self._lock:
            return [
                EndedProcess(carrier.host, carrier.process.returncode, tuple(carrier.lines))
                for carrier in self._carriers
                if carrier.host and carrier.is_done
            ]

    @property
    def other_lines(self) -> list[str]:
        """The last lines that were not messages."""
        with self._lock:
            return list(self._lines)

    @property
    def own_lines(self) -> list[str]:
        """The last lines of the launcher itself, by their prefix."""
        with self._lock:
            return list(self._own_lines)

    def messages(self) -> list[tuple[News | FileBytes, float]]:
        """Messages of agents since the last call, with arrival times in unix seconds."""
        news = []
        with contextlib.suppress(queue.Empty):
            while True:
                news.append(self._messages.get_nowait())
        return news

    def say(self, order: Order) -> None:
        """Send an order to all agents, without confirmation."""
        self._put(order, self._carriers)

    def close(self, patience_s: float = 5.0) -> None:
        """Read the remaining output. Call this once all processes have ended.

        Args:
            patience_s: how long to wait for the end of their output, which a surviving process may hold open.
        """
        self._is_closing = True
        self._thread.join(patience_s)
        self._is_given_up = True
        self._thread.join()

    def _start(self, agent: AgentProcess, environment: Mapping[str, str]) -> None:
        process = subprocess.Popen(
            agent.command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches only us, and we end the gang in an orderly way
        )
        carrier = _Carrier(process, agent.host)
        self._carriers.append(carrier)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, _Stream(carrier, stream))

    def _serve(self) -> None:
        stay_s = time.monotonic() + HEARTBEAT_S
        with self._selector, self._log:
            while not self._is_given_up and not (
                self._is_closing and not any(carrier.open_outputs or carrier.waiting for carrier in self._carriers)
            ):
                for key, _ in self._selector.select(_POLL_S):
                    self._read(key.data)
                if time.monotonic() >= stay_s:
                    stay_s = time.monotonic() + HEARTBEAT_S
                    # To agents that are up; in a scheduler's queue no agent reads, and the pipe would fill up.
                    self._put(Heartbeat(), [carrier for carrier in self._carriers if carrier.has_spoken])
                self._tell()
            self._close_all()

    def _close_all(self) -> None:
        for process in self.processes:
            for stream in (process.stdin, process.stdout, process.stderr):
                _close(stream)

    def _put(self, order: Order, carriers: Sequence[_Carrier]) -> None:
        line = encode_order(order)
        with self._lock:
            for carrier in carriers:
                stdin = carrier.process.stdin
                if stdin and not stdin.closed and len(carrier.waiting) < _MOST_WAITING_BYTES:
                    carrier.waiting += line

    def _tell(self) -> None:
        """Write waiting orders to each process as far as it reads, and close its input when closing."""
        with self._lock:
            for carrier in self._carriers:
                stdin = carrier.process.stdin
                if stdin is None or stdin.closed:
                    continue
                try:
                    while carrier.waiting:
                        del carrier.waiting[: os.write(stdin.fileno(), carrier.waiting[:65_536])]
                except BlockingIOError:
                    continue
                except OSError:  # gone
                    carrier.waiting.clear()
                    _close(stdin)
                if self._is_closing:
                    _close(stdin)

    def _read(self, stream: _Stream) -> None:
        try:
            data = os.read(stream.file.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for line in stream.lines(data):
            self._take(stream.carrier, line)
        if not data:
            self._selector.unregister(stream.file)
            _close(stream.file)
            with self._lock:
                stream.carrier.open_outputs -= 1

    def _take(self, carrier: _Carrier, line: bytes) -> None:
        news = decode_news(line)
        if news is not None:
            carrier.has_spoken = True
            whole = self._joining.whole(news)
            if whole is not None:
                self._messages.put((whole, time.time()))  # arrival time, before any wait in the queue
            return
        text = line.decode("utf-8", errors="replace")
        masked = masked_text(text)
        with self._lock:
            kept = as_typed(masked[:_MOST_CHARACTERS])
            self._lines.append(kept)
            carrier.lines.append(kept)
            if self._voices and masked.startswith(self._voices):
                self._own_lines.append(kept)
        with contextlib.suppress(OSError):
            self._log.write(line if masked == text else masked.encode())


class _Stream:
    """One output of a process, split into lines."""

    def __init__(self, carrier: _Carrier, file: IO[bytes]) -> None:
        self.carrier = carrier
        self.file = file
        self._rest = b""

    def lines(self, data: bytes) -> list[bytes]:
        """Lines that are now complete; without data, which means the end, also the incomplete last one."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [line + b"\n" for line in whole]
        while len(self._rest) > _MOST_LINE_BYTES or (self._rest and not data):
            lines.append(self._rest[:_MOST_LINE_BYTES])
            self._rest = self._rest[_MOST_LINE_BYTES:]
        return lines


def _opened(log: Path) -> IO[bytes]:
    try:
        return log.open("ab", buffering=0)
    except OSError:
        return Path(os.devnull).open("ab", buffering=0)


def _close(file: IO[bytes] | None) -> None:
    if file is not None:
        with contextlib.suppress(OSError):  # unwritten data has no reader any more
            file.close()


def _allow_files(number: int) -> None:
    """Raise this process's limit of open files by `number`, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + 512
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
