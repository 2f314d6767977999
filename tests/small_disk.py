"""A disk that is soon full, and may be made read-only: a tmpfs of its own, which takes root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SmallDisk:
    """A mounted file system.

    Attributes:
        path: where it is mounted.
    """

    path: Path

    def fill(self, leave_bytes: int = 0) -> None:
        """Use up all space but so much, rounded down to whole pages."""
        free = os.statvfs(self.path)
        size = free.f_bavail * free.f_frsize - leave_bytes
        with (self.path / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, max(size, 1))

    def make_room(self) -> None:
        """Give the space back."""
        (self.path / "filler").unlink()

    def make_read_only(self) -> None:
        """As a kernel does with a disk that fails."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True, timeout=30)


@contextmanager
def small_disk(path: Path, kib: int) -> Iterator[SmallDisk]:
    """A file system of so many KiB for as long as the context lasts; skips the test where none can be mounted."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a disk that fills up takes root, to run `{' '.join(command)}`: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: what is left of a failed test may still have a file open there.
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=30)
