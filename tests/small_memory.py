"""Little memory: a memory cgroup of its own, version 1 or 2, which takes root and a hierarchy that can be written."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")
_GONE_S = 20.0  # for processes that were ended to leave the group


@dataclass(frozen=True)
class SmallMemory:
    """A memory cgroup with a limit.

    Attributes:
        folder: of its files.
    """

    folder: Path

    def command(self, *command: str) -> list[str]:
        """What runs a command in it."""
        enter = f'echo $$ > {self.folder}/cgroup.procs && exec "$@"'
        return ["/bin/sh", "-c", enter, "sh", *command]

    def run(
        self, command: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command in it, to its end."""
        return subprocess.run(
            self.command(*command), capture_output=True, text=True, timeout=timeout_s, check=False, env=environ,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def processes(self) -> list[int]:
        """That are in it."""
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]


def why_no_small_memory() -> str:
    """Why there can be none here; empty if there can."""
    try:
        with small_memory(2**24):
            return ""
    except OSError as error:
        return f"needs a memory cgroup that can be written: {error.filename}: {error.strerror}"


@contextmanager
def small_memory(limit_bytes: int) -> Iterator[SmallMemory]:
    """A memory cgroup, removed afterwards. Raises OSError: there can be none here."""
    is_v1 = (_V1 / "memory.limit_in_bytes").exists()
    if not is_v1:
        control = _V2 / "cgroup.subtree_control"
        if "memory" not in control.read_text().split():
            control.write_text("+memory")
    folder = (_V1 if is_v1 else _V2) / f"ddpscale-test-{os.getpid()}-{uuid4().hex[:6]}"
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(limit_bytes))
        for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
            if (folder / swap).exists():
                with suppress(OSError):  # a kernel that does not count it has none
                    (folder / swap).write_text(str(limit_bytes) if is_v1 else "0")
        yield SmallMemory(folder)
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Once its processes are gone, as they are to be."""
    ends_s = time.monotonic() + _GONE_S
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(0.1)
        else:
            return
