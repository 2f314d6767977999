"""Logs of a node's ranks, sent to the supervisor as they grow: no file system has to be shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Of each log so much is sent as it grows, then no more before its end. Whoever has NCCL tell all needs some.
HEAD_BYTES = 2**20
TAIL_BYTES = 2**16
_MOST_AT_ONCE = 2**18


class LogRelay:
    """What is new in the files of a folder.

    Args:
        folder: of the logs, with folders in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[Path, int] = {}

    def fresh(self, *, is_last: bool = False) -> Iterator[tuple[str, bytes]]:
        """Paths below the folder, and what is to be appended there.

        Args:
            is_last: nothing will be written any more: also the end of what is too long.
        """
        for path in sorted(path for path in self._folder.rglob("*") if path.is_file()):
            name = path.relative_to(self._folder).as_posix()
            while data := self._next(path, HEAD_BYTES):
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
            yield f"\n[{left - TAIL_BYTES} bytes are left out here]\n".encode()
        if left > 0:
            yield _read(path, max(sent, sent + left - TAIL_BYTES), TAIL_BYTES)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, start: int, most: int) -> bytes:
    if most <= 0 or _size(path) <= start:
        return b""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(most)
    except OSError:
        return b""
