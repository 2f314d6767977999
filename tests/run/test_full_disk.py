"""A disk that fills up, breaks or becomes read-only costs what is being written, and nothing that was."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_ddpscale.errors import RunDirectoryError, WritingError
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory, append_whole
from pytest_ddpscale.run.run_opening import RunLock, new_run_directory
from tests.builders.json_types import run_record
from tests.small_disk import SmallDisk, small_disk

RECORD = StudyEnd("weak/r", "error", "so many words that a small disk is soon full of them")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", kib=64) as disk:
        yield disk


@pytest.fixture
def run(disk: SmallDisk) -> RunDirectory:
    run = RunDirectory.create(disk.path / "run")
    run.write_json(run.run_json, run_record())
    return run


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def append_until_full(run: RunDirectory) -> WritingError:
    """Fill the disk with records."""
    for _ in range(1000):
        try:
            run.append_record(RECORD)
        except WritingError as full:
            return full
    raise AssertionError("the disk is not full after a thousand records")


def test_a_full_disk_keeps_every_record_and_no_part_of_the_last(disk: SmallDisk, run: RunDirectory) -> None:
    error = append_until_full(run)
    assert str(error).startswith(f"{run.measurements_jsonl}: cannot be written (No space left on device); expected ")
    assert error.action.startswith("Earlier measurements are kept. Free space ")
    assert f"measure the rest with --ddp-resume={run.path}." in error.action
    kept = len(run.read_records())
    assert kept > 10
    assert run.measurements_jsonl.read_bytes() == line_of(RECORD) * kept


def test_writing_goes_on_when_there_is_room_again(disk: SmallDisk, run: RunDirectory) -> None:
    disk.fill(leave_bytes=8192)
    append_until_full(run)
    kept = len(run.read_records())
    disk.make_room()
    run.append_record(StudyEnd("b", "rounds"))
    assert run.read_records() == [RECORD] * kept + [StudyEnd("b", "rounds")]


def test_a_file_that_cannot_be_replaced_keeps_its_content(disk: SmallDisk, run: RunDirectory) -> None:
    disk.fill()
    with pytest.raises(WritingError, match=r"run\.json: cannot .*\(No space left on device\).* then try again\.$"):
        run.write_json(run.run_json, run_record(sku="x" * 10_000))
    assert run.read_run().sku == "cpu"
    disk.make_room()
    assert sorted(path.name for path in run.path.iterdir()) == ["logs", "run.json"]


def test_a_full_disk_lets_a_run_be_locked_and_released(disk: SmallDisk, run: RunDirectory) -> None:
    """Judging again where there is no room has to say so when it writes, and not before."""
    disk.fill()
    lock = RunLock.acquire(run.path)
    with pytest.raises(RunDirectoryError, match="is in use"):
        RunLock.acquire(run.path)
    lock.release()


def test_a_read_only_disk_is_refused_and_keeps_what_is_there(disk: SmallDisk, run: RunDirectory) -> None:
    run.append_record(RECORD)
    disk.make_read_only()
    for write in (
        lambda: run.append_record(RECORD),
        lambda: run.write_json(run.run_json, {}),
        run.cut_torn_line,
        lambda: new_run_directory(disk.path / "new", "cpu"),
        lambda: RunLock.acquire(run.path),
    ):
        with pytest.raises(RunDirectoryError, match=r"cannot be written \(Read-only file system\)"):
            write()
    assert run.read_records() == [RECORD]


@pytest.mark.parametrize("limit", [100, 101, 150, 199])
def test_a_line_that_does_not_fit_leaves_no_part(tmp_path: Path, limit: int) -> None:
    """Wherever in it the space ends; without root, by a limit on the size of files."""
    path = tmp_path / "file"
    with largest_file(limit):
        append_whole(path, b"x" * 99 + b"\n")
        with pytest.raises(OSError, match="File too large") as failed:
            append_whole(path, b"y" * 99 + b"\n")
    assert failed.value.errno == errno.EFBIG
    assert path.read_bytes() == b"x" * 99 + b"\n"
