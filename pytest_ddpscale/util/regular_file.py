"""Opens files that a person names or that a run directory holds, which may turn out to be anything else.

A pipe would wait for ever, and a device may have no end or act when it is opened.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

# Of a file that is read as a whole: a hundred times plan.json and run.json of 8,192 ranks.
MOST_BYTES = 2**27
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISDIR, "a directory"),
)


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file, or a link to one, for reading.

    Raises:
        OSError: it cannot be opened, or is a pipe, a socket, a device or a directory, which is not opened.
    """
    try:
        refuse_irregular(path)
        # Should another file have taken its place meanwhile, opening it does not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a null character in the path
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        _refuse(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file. Raises like `open_regular`, and OSError if it is larger than `most_bytes`."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {size_text(most_bytes)}, more than such a file has", str(path))
    return content


def refuse_irregular(path: Path) -> None:
    """Refuse what exists and is not a regular file. Raises OSError, also if there is nothing."""
    _refuse(path.stat().st_mode, path)


def size_text(size: int) -> str:
    """``128 MiB``."""
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 2**10:g} KiB"


def _refuse(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "of an unknown kind")
        raise OSError(errno.EINVAL, f"{kind}, not a regular file", str(path))
