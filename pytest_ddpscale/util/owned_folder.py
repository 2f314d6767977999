"""Temporary folders with an owner: what a killed process leaves behind is removed by the next one.

A file in the folder is locked as long as its owner lives. The kernel releases the lock when the owner ends, however it
ends, so a reused process id cannot pass for it, and a process in another container of the node counts as well. Folders
without that file, such as those of a user, are never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

PREFIX = "ddpscale-"
_LOCK = ".ddpscale-owner"


@contextlib.contextmanager
def owned_folder(kind: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder ``ddpscale-KIND-…`` of this process, which is removed at the end.

    Args:
        kind: what it is for; part of its name.
        parent: where it is made; default: the system's temporary folder.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=parent))
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if _is_locked(descriptor) and (folder / _LOCK).exists():
            break
        os.close(descriptor)  # another process took it for an orphan before it was locked
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_orphans(parents: Sequence[Path]) -> list[Path]:
    """Remove this user's folders below some folders whose owner no longer lives. Returns them."""
    removed: list[Path] = []
    for parent in dict.fromkeys(parents):
        with contextlib.suppress(OSError):  # not readable, or none
            removed += [folder for folder in sorted(parent.glob(f"{PREFIX}*")) if _was_removed(folder)]
    return removed


def _was_removed(folder: Path) -> bool:
    """Remove a folder if it is an orphan. Returns whether it was."""
    try:
        here = folder.lstat()
        if not stat.S_ISDIR(here.st_mode) or here.st_uid != os.geteuid():
            return False
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no folder of ours, or removed meanwhile
        return False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not _is_locked(descriptor):
            return False
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
    return not folder.exists()


def _is_locked(descriptor: int) -> bool:
    """Lock a file, unless another process has. Returns whether this one has it now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # by its owner, or a file system without locks, which does not show whether one lives
        return False
    return True
