"""Memory cgroups, as their files are laid out."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.find_batch.memory_limit import MemoryCgroup, MemoryLimit, memory_limit, own_cgroup

GIB = 2**30


def process(folder: Path, cgroup: str, mounts: list[str]) -> Path:
    """A process as /proc has it."""
    found = folder / "self"
    found.mkdir()
    (found / "cgroup").write_text(cgroup)
    (found / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    return found


def mount_of(mount: Path, root: str = "/") -> str:
    """A line of mountinfo."""
    return f"35 31 0:32 {root} {mount} rw,relatime shared:9 - cgroup2 cgroup2 rw"


def v2(folder: Path, limit: str = "max", kills: int = 0, group: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.events").write_text(f"low 0\noom 3\noom_kill {kills}\n")
    (folder / "memory.oom.group").write_text(f"{group}\n")
    return folder


@pytest.mark.parametrize(
    ("above", "below", "limit"),
    [(str(2 * GIB), "max", 2 * GIB), (str(2 * GIB), str(GIB), GIB), ("max", "max", None), ("max", str(GIB), GIB)],
)
def test_version_2_has_the_limits_of_all_above(tmp_path: Path, above: str, below: str, limit: int | None) -> None:
    root = tmp_path / "cgroup"
    root.mkdir()  # which has no memory.max
    v2(root / "slice", above)
    group = v2(root / "slice" / "unit", below, kills=7)
    found = own_cgroup(process(tmp_path, "0::/slice/unit\n", [mount_of(root)]))
    assert found == MemoryCgroup(group, root)
    assert (found.limit_bytes, found.oom_kills) == (limit, 7)


def test_a_cgroup_above_may_end_all_below(tmp_path: Path) -> None:
    v2(tmp_path / "cgroup" / "pod", group=1)
    below = v2(tmp_path / "cgroup" / "pod" / "c1")
    assert MemoryCgroup(below, tmp_path / "cgroup").ends_as_one
    assert not MemoryCgroup(below, below).ends_as_one


def test_in_a_container_a_path_of_the_host_is_the_mount(tmp_path: Path) -> None:
    root = v2(tmp_path / "cgroup", str(GIB), group=1)
    found = own_cgroup(process(tmp_path, "0::/kubepods/pod7/c1\n", [mount_of(root)]))
    assert found == MemoryCgroup(root, root)
    assert (found.limit_bytes, found.ends_as_one) == (GIB, True)


def test_a_mount_of_a_part_of_the_hierarchy(tmp_path: Path) -> None:
    group = v2(tmp_path / "memory" / "step", str(GIB))
    mounts = [mount_of(tmp_path / "memory", "/docker/c1")]
    assert own_cgroup(process(tmp_path, "0::/docker/c1/step\n", mounts)) == MemoryCgroup(group, tmp_path / "memory")


def test_without_cgroups_there_is_none(tmp_path: Path) -> None:
    assert own_cgroup(tmp_path / "nowhere") is None
    assert own_cgroup(process(tmp_path, "0::/\n", [mount_of(tmp_path / "nowhere")])) is None


def test_the_limit_is_what_is_free_or_less_by_a_cgroup(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000000 kB\nMemFree: 100 kB\nMemAvailable: 2097152 kB\n")
    wide, narrow = (MemoryCgroup(v2(tmp_path / name, str(limit)), tmp_path) for name, limit in
                    (("wide", 3 * GIB), ("narrow", GIB)))  # fmt: skip
    free = MemoryLimit(2 * GIB, "that is free on this machine")
    assert memory_limit(None, meminfo) == memory_limit(wide, meminfo) == free
    assert memory_limit(narrow, meminfo) == MemoryLimit(GIB, f"of the memory cgroup {tmp_path / 'narrow'}")
    assert memory_limit(None, tmp_path / "nowhere") is None
