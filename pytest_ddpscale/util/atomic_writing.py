"""Replaces files atomically: readers see the old or the new content."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Write a file by renaming a finished one over it. Its permissions are those that the umask gives any new file.

    Args:
        path: its folder is created if missing.
        content: text is encoded as UTF-8.
        sync: wait until the disk has it, so that a crash of the machine leaves no empty file; not for files in memory.

    Raises:
        OSError: the file cannot be written; the old content stays.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
