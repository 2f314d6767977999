"""Temporary folders with an owner: what a killed process leaves behind is removed by the next one.

A file in the folder is locked as long as its owner lives. The kernel releases the lock when the owner ends, however it
ends, so a reused process id cannot pass for it, and a process in another container of the node counts as well. Folders
without that file, such as those of a user, are never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

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
        lock = (folder / _LOCK).open("x+b")
        if _is_locked(lock) and (folder / _LOCK).exists():
            break
        lock.close()  # another process took it for an orphan before it was locked
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_orphans(parents: Sequence[Path]) -> list[Path]:
    """Remove folders of ours below some folders, as far as this user may, whose owner no longer lives. Returns them."""
    removed: list[Path] = []
    for parent in dict.fromkeys(parents):
        with contextlib.suppress(OSError):  # not readable, or none
            removed += [folder for folder in sorted(parent.glob(f"{PREFIX}*")) if _was_removed(folder)]
    return removed


def _was_removed(folder: Path) -> bool:
    """Remove a folder if it is an orphan. Returns whether it was."""
    try:
        with (folder / _LOCK).open("r+b") as lock:
            if _is_locked(lock):
                shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # no folder of ours, another user's, or removed meanwhile
        return False
    return not folder.exists()


def _is_locked(lock: IO[bytes]) -> bool:
    """Lock a file, unless another process has. Returns whether this one has it now."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # by its owner, or a file system without locks, which does not show whether one lives
        return False
    return True
