"""Opens files that a person names or that a run directory holds, which may turn out to be anything else.

A pipe would wait for ever, and a device may have no end or act when it is opened.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO

# Of a file that is read as a whole: a hundred times plan.json and run.json of 8,192 ranks.
MOST_BYTES = 2**27


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file, or a link to one, for reading. Raises OSError, also if it is none, which is not opened."""
    refuse_irregular(path)
    return path.open("rb")


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file. Raises like `open_regular`, and OSError if it is larger than `most_bytes`."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {size_text(most_bytes)}, more than such a file has", str(path))
    return content


def refuse_irregular(path: Path) -> None:
    """Refuse a directory, pipe, socket or device. Raises OSError, also if there is nothing."""
    path.stat()
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "a pipe, socket or device"
        raise OSError(errno.EINVAL, f"{kind}, not a regular file", str(path))


def size_text(size: int) -> str:
    """``128 MiB``."""
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 2**10:g} KiB"
