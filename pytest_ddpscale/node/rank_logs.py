"""Logs of a node's ranks: sent to the supervisor as they grow, and their last lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_ddpscale.run.rank_folder import MOST_TRACE_BYTES, TRACES
from pytest_ddpscale.util.masking import masked_text

# This much of a log's head is sent as it grows, and this much of its tail at the end; verbose NCCL logs are larger.
HEAD_BYTES = 2**20
TAIL_BYTES = 2**16
_MOST_AT_ONCE = 2**18
_LAST_LINES = 8
_NCCL_LINES = 20
_FRAMES = 10
_STACK = "most recent call first"  # faulthandler's heading
_STACK_OF_CPP = ("Exception raised from ", "frame #")  # of torch, after what an abort has to say
_READ_BYTES = 65536


class LogRelay:
    """Finds new data in the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[Path, int] = {}

    def fresh(self, *, is_last: bool = False) -> Iterator[tuple[str, bytes]]:
        """Paths below the folder, with the data to append to each.

        Args:
            is_last: nothing more will be written, so include the tails of long files.
        """
        for path in sorted(path for path in self._folder.rglob("*") if path.is_file()):
            name = path.relative_to(self._folder).as_posix()
            most = MOST_TRACE_BYTES if path.parent == self._folder / TRACES else HEAD_BYTES
            while data := self._next(path, most):
                yield name, data
            if is_last:
                yield from ((name, data) for data in self._end(path))

    def _next(self, path: Path, most: int) -> bytes:
        sent = self._sent.get(path, 0)
        data = _read(path, sent, min(_MOST_AT_ONCE, most - sent))
        self._sent[path] = sent + len(data)
        return data

    def _end(self, path: Path) -> Iterator[bytes]:
        sent = self._sent[path]
        left = _size(path) - sent
        if left > TAIL_BYTES:
            yield f"\n[{left - TAIL_BYTES} bytes omitted]\n".encode()
        if left > 0:
            yield _read(path, max(sent, sent + left - TAIL_BYTES), TAIL_BYTES)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, start: int, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(max(0, most))
    except OSError:
        return b""


def rank_log(log_dir: Path, local_rank: int) -> Path | None:
    """torchrun's file with a rank's standard error; None if it does not exist yet."""
    return next(log_dir.glob(f"*/attempt_*/{local_rank}/stderr.log"), None)


def last_words(log: Path | None) -> list[str]:
    """The last lines of a rank's standard error, including the stack it may have written when it was ended."""
    lines = [] if log is None else _lines_at_the_end(log)
    clean = [line for line in lines if not line.startswith(_STACK_OF_CPP)]
    headings = [number for number, line in enumerate(clean) if _STACK in line and line.startswith("Current thread")]
    if not headings:
        return [line for line in clean if line.strip()][-_LAST_LINES:]
    before = [line for line in clean[: headings[-1]] if line.strip() and not _is_stack(line)]
    stack = clean[headings[-1] : headings[-1] + 1 + _FRAMES]
    return before[-_LAST_LINES // 2 :] + stack


def last_nccl_lines(log: Path) -> list[str]:
    """The last lines of NCCL's log, warnings and others; empty without a file."""
    return [line for line in _lines_at_the_end(log) if " NCCL " in line][-_NCCL_LINES:]


def _lines_at_the_end(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _READ_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    # Output may contain anything; drop control characters.
    return [masked_text("".join(c for c in line if c.isprintable())) for line in lines]


def _is_stack(line: str) -> bool:
    return _STACK in line or line.startswith('  File "')
