"""Memory that processes of this machine may use: the limit of their memory cgroup (version 2), or free memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROCESS = Path("/proc/self")
_MEMINFO = Path("/proc/meminfo")
_KIB = 1024


@dataclass(frozen=True)
class MemoryCgroup:
    """A memory cgroup.

    Attributes:
        folder: of its files.
        mount: of its hierarchy: the folder itself, or one above it.
    """

    folder: Path
    mount: Path

    @property
    def limit_bytes(self) -> int | None:
        """The least limit of this cgroup and its parents; None without any."""
        found = [_number(folder / "memory.max") for folder in self._lineage()]
        return min((limit for limit in found if limit is not None), default=None)

    @property
    def oom_kills(self) -> int | None:
        """Processes of it that the kernel has killed for lack of memory; None if the kernel does not count them."""
        return _number_in(self.folder / "memory.events", "oom_kill")

    @property
    def ends_as_one(self) -> bool:
        """Whether the kernel kills all of its processes at once, including this one."""
        return any(_number(folder / "memory.oom.group") == 1 for folder in self._lineage())

    def _lineage(self) -> Iterator[Path]:
        yield self.folder
        if self.folder != self.mount:
            for folder in self.folder.parents:
                yield folder
                if folder == self.mount:
                    return


@dataclass(frozen=True)
class MemoryLimit:
    """Bytes that all ranks of this machine may use together, and the source of that limit in words."""

    limit_bytes: int
    of: str


def own_cgroup(process: Path = _PROCESS) -> MemoryCgroup | None:
    """The memory cgroup of a process, and so of its children; None without one."""
    try:
        memberships = (process / "cgroup").read_text(encoding="utf-8").splitlines()
        mounts = (process / "mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    path = next((path for _, controllers, path in (m.split(":", 2) for m in memberships) if not controllers), "/")
    for mount, root in _mounts(mounts):
        inside = path.removeprefix(root.rstrip("/")).lstrip("/")
        # In a container the path may be the host's, and the container sees only its own part.
        folder = mount / inside if (mount / inside).is_dir() else mount
        if (folder / "memory.max").exists():
            return MemoryCgroup(folder, mount)
    return None


def memory_limit(cgroup: MemoryCgroup | None, meminfo: Path = _MEMINFO) -> MemoryLimit | None:
    """Memory for ranks on this machine's CPU: free memory, or a lower limit of a cgroup; None if unknown."""
    free = _number_in(meminfo, "MemAvailable:")
    limits = [] if free is None else [MemoryLimit(free * _KIB, "that is free on this machine")]
    if cgroup is not None and cgroup.limit_bytes is not None:
        limits.append(MemoryLimit(cgroup.limit_bytes, f"of the memory cgroup {cgroup.folder}"))
    return min(limits, key=lambda limit: limit.limit_bytes, default=None)


def _mounts(lines: list[str]) -> Iterator[tuple[Path, str]]:
    """Mount points and roots of cgroup hierarchies that may count memory: proc_pid_mountinfo(5)."""
    for line in lines:
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            root, mount = before.split(" ")[3:5]
            yield Path(mount), root


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # ValueError: `max`
        return None


def _number_in(file: Path, name: str) -> int | None:
    """The number after a name in a file of names and numbers."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    return next((int(words[1]) for words in map(str.split, lines) if words[:1] == [name]), None)
