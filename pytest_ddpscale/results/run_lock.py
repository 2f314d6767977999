"""One process at a time writes a run directory: a lock that ends with its holder, however that ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.results.run_directory import LOCK_NAME, not_writable
from pytest_ddpscale.results.strict_json import parse_strict_json, strict_json

# What flock says where the file system has no locks: NFS without lockd, Lustre mounted without -o flock.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
_LONGEST_HOLDER = 4096  # bytes of the lock's file that are read


@dataclass
class RunLock:
    """The lock of a run directory, until `release` or the end of the process.

    Attributes:
        path: the file that is locked (flock), with host, process and time of its holder in it.
        note: why it keeps nobody out; empty where it does.
    """

    path: Path
    note: str = ""
    _descriptor: int | None = field(default=None, repr=False)

    @staticmethod
    def acquire(directory: Path) -> RunLock:
        """Lock a directory that exists.

        Where the file system has no locks, the run goes on without one, and says so in `note`.

        Raises:
            RunDirectoryError: another process holds it, and the message says which; or it cannot be written.
        """
        path = directory / LOCK_NAME
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise not_writable(directory, error) from None
            note = _lock(descriptor, directory)
            if note or _is_still_at(path, descriptor):
                break
            os.close(descriptor)  # its holder has just released and removed it
        _write_holder(descriptor)
        return RunLock(path, note, descriptor)

    def release(self) -> None:
        """Let others in. Does nothing the second time."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):  # read-only by now: whoever comes next finds a file that is not locked
            self.path.unlink(missing_ok=True)  # while it is held, so that nobody's later lock is removed
        os.close(self._descriptor)
        self._descriptor = None


def _lock(descriptor: int, directory: Path) -> str:
    """Lock an open file. Returns why that is impossible here, or nothing. Raises RunDirectoryError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return f"{directory} is on a file system without locks: nothing kept another run out of it"
        holder = _holder(descriptor)
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise not_writable(directory, error) from None
        raise RunDirectoryError(
            str(directory), f"is in use: {holder} is writing it", "a directory that no other run is writing",
            "Wait until that run has ended, or end it; a new run needs a directory of its own (--ddp-run-dir).",
        ) from None  # fmt: skip
    return ""


def _is_still_at(path: Path, descriptor: int) -> bool:
    """Whether the file that was opened is the one that others find by its name."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def _write_holder(descriptor: int) -> None:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
    with contextlib.suppress(OSError):  # a full disk: the lock holds all the same, and says less of itself
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (strict_json(holder) + "\n").encode(), 0)


def _holder(descriptor: int) -> str:
    """Who holds the lock, as far as its file says."""
    try:
        said: Any = parse_strict_json(os.pread(descriptor, _LONGEST_HOLDER, 0).decode())
        return f"process {said['pid']} on {said['host']}, since {said['since']},"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
