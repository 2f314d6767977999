"""The supervisor's end of the line to the agents of all nodes: a launcher's standard input and output."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Any

from pytest_ddpscale.node.protocol import STAY_EVERY_S, decode, encode
from pytest_ddpscale.util.masking import masked_text

_PATIENCE_S = 2.0
_LAST_LINES = 40
_SLURM_LINES = 500
_SLURMS_VOICES = ("srun:", "slurmstepd")
_MOST_CHARACTERS = 500  # of each of them
# A longer line is read in pieces: what prints without an end must not fill this process's memory.
_MOST_READ_BYTES = 65_536


class Channel:
    """Reads what agents say, and tells them to stay, as long as this process lives.

    Threads of its own, because judging a large cluster may keep the supervisor busy for longer than
    agents wait. What is no message (torchrun's output, srun's complaints) goes to the log.

    Args:
        process: a launcher started with pipes.
        log: file for everything else; a full disk costs the log and no more.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin: IO[bytes] = process.stdin
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._slurm_lines: deque[str] = deque(maxlen=_SLURM_LINES)
        self._log_lock, self._input_lock = threading.Lock(), threading.Lock()
        self._log = log
        self._closed, self._somebody_spoke = threading.Event(), threading.Event()
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (process.stdout, process.stderr)
        ]
        for thread in (*self._readers, threading.Thread(target=self._stay, daemon=True)):
            thread.start()

    @property
    def other_lines(self) -> list[str]:
        """The last lines that were no messages."""
        with self._log_lock:
            return list(self._lines)

    @property
    def slurm_lines(self) -> list[str]:
        """What Slurm said among them: kept for longer, as torchrun's complaints on many nodes may bury it."""
        with self._log_lock:
            return list(self._slurm_lines)

    def messages(self) -> list[dict[str, Any]]:
        """What agents have said since the last call."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._messages.get_nowait())
        return found

    def say(self, word: str, **fields: Any) -> None:
        """Tell all agents. Whether they hear it shows in what they do."""
        # A launcher that does not read any more must not hold us up when we come to end it.
        if not self._input_lock.acquire(timeout=_PATIENCE_S):
            return
        try:
            self._stdin.write(encode({"say": word, **fields}))
            self._stdin.flush()
        except (OSError, ValueError):  # gone, or closed
            pass
        finally:
            self._input_lock.release()

    def close(self, patience_s: float = 5.0) -> None:
        """Read what is left. To be called once the launcher has ended.

        Args:
            patience_s: how long to wait for its output's end: a process that survived may hold it open.
        """
        self._closed.set()
        with self._input_lock, contextlib.suppress(OSError):
            self._stdin.close()
        for thread in self._readers:
            thread.join(patience_s)

    def _stay(self) -> None:
        """Once an agent is there: while srun waits for nodes it reads nothing, and the words would fill the pipe."""
        while not self._closed.wait(STAY_EVERY_S):
            if self._somebody_spoke.is_set():
                self.say("stay")

    def _read(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError), stream, self._open_log() as log:
            for data in iter(lambda: stream.readline(_MOST_READ_BYTES), b""):
                line = data.decode("utf-8", errors="replace")
                message = decode(line)
                if message is not None:
                    self._somebody_spoke.set()
                    if message["say"] == "clock":  # before it lies in the queue
                        message["heard_unix_s"] = time.time()
                    self._messages.put(message)
                    continue
                masked = masked_text(line)
                with self._log_lock:
                    self._lines.append(masked.rstrip("\n")[:_MOST_CHARACTERS])
                    if masked.startswith(_SLURMS_VOICES):
                        self._slurm_lines.append(self._lines[-1])
                    with contextlib.suppress(OSError):
                        log.write(data if masked == line else masked.encode())
                        log.flush()

    def _open_log(self) -> IO[bytes]:
        try:
            return self._log.open("ab", buffering=0)
        except OSError:
            return Path("/dev/null").open("ab", buffering=0)
