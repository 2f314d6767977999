"""A lock that lets one process at a time write a run directory; it ends with its holder, even if that is killed."""

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
from pytest_ddpscale.run.run_directory import LOCK_NAME, not_writable
from pytest_ddpscale.run.strict_json import parse_strict_json, strict_json

# Errors of flock on file systems without locks: NFS without lockd, Lustre mounted without -o flock.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
_LONGEST_HOLDER = 4096  # bytes of the lock file to read


@dataclass
class RunLock:
    """The lock of a run directory, until `release` or the end of the process.

    Attributes:
        path: the locked file (flock), which contains host, process and time of its holder.
        note: why the lock has no effect; empty if it has.
    """

    path: Path
    note: str = ""
    _descriptor: int | None = field(default=None, repr=False)

    @staticmethod
    def acquire(directory: Path) -> RunLock:
        """Lock an existing directory.

        On a file system without locks the run continues without one, and `note` says so.

        Raises:
            RunDirectoryError: another process, which the message names, holds it; or it cannot be written.
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
        """Release the lock. Does nothing the second time."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):  # on a read-only disk the file stays, but unlocked
            self.path.unlink(missing_ok=True)  # while it is held, so a later lock is not removed
        os.close(self._descriptor)
        self._descriptor = None


def _lock(descriptor: int, directory: Path) -> str:
    """Lock an open file. Returns why that is impossible, or an empty string. Raises RunDirectoryError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return f"{directory} is on a file system without locks: another run could have written to it"
        holder = _holder(descriptor)
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise not_writable(directory, error) from None
        raise RunDirectoryError(
            str(directory), f"is in use: {holder} is writing it", "a directory that no other run is writing",
            "Wait until that run has ended, or end it; a new run needs its own directory (--ddp-run-dir).",
        ) from None  # fmt: skip
    return ""


def _is_still_at(path: Path, descriptor: int) -> bool:
    """Whether the opened file is still the one at this path."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def _write_holder(descriptor: int) -> None:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
    with contextlib.suppress(OSError):  # on a full disk the lock still holds, but does not name its holder
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (strict_json(holder) + "\n").encode(), 0)


def _holder(descriptor: int) -> str:
    """The holder named in the lock file."""
    try:
        said: Any = parse_strict_json(os.pread(descriptor, _LONGEST_HOLDER, 0).decode())
        return f"process {said['pid']} on {said['host']}, since {said['since']},"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
