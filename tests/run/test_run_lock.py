"""A lock keeps others out for as long as its holder lives, and not a moment longer."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.run_lock import RunLock
from tests.rows import rows

HOLDER = """
import sys
from pathlib import Path
from pytest_ddpscale.run.run_lock import RunLock

lock = RunLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    lock = RunLock.acquire(tmp_path)
    with pytest.raises(RunDirectoryError) as refused:
        RunLock.acquire(tmp_path)
    assert f"is in use: process {os.getpid()} on {socket.gethostname()}, since 20" in str(refused.value)
    assert refused.value.where == str(tmp_path)
    assert "Wait until that run has ended" in refused.value.action
    lock.release()


def test_releasing_lets_others_in_and_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        lock = RunLock.acquire(tmp_path)
        assert (tmp_path / "run.lock").is_file()
        lock.release()
        lock.release()
        assert list(tmp_path.iterdir()) == []


def test_a_killed_holder_keeps_nobody_out(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RunDirectoryError, match=f"process {holder.pid} on "):
        RunLock.acquire(tmp_path)
    holder.kill()
    holder.communicate(timeout=30)
    assert (tmp_path / "run.lock").is_file(), "it died without cleaning up"
    RunLock.acquire(tmp_path).release()


def test_a_child_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Ranks and launchers inherit no file descriptor of it."""
    lock = RunLock.acquire(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, close_fds=False
    )
    lock.release()
    RunLock.acquire(tmp_path).release()
    child.communicate(timeout=30)


@rows("content", ["", "{", "3", '{"pid": 4}', "\udcff"])
def test_a_holder_that_does_not_say_who_it_is_is_somebody(tmp_path: Path, content: str) -> None:
    lock = RunLock.acquire(tmp_path)
    lock.path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunDirectoryError, match="is in use: another process is writing it"):
        RunLock.acquire(tmp_path)
    lock.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_used_without_one_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    lock = RunLock.acquire(tmp_path)
    assert lock.note == f"{tmp_path} is on a file system without locks: another run could have written to it"
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_fails_for_another_reason_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", breaks)
    with pytest.raises(RunDirectoryError, match=r"cannot be written \(Input/output error\)"):
        RunLock.acquire(tmp_path)


def test_where_no_file_can_be_made_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        RunLock.acquire(tmp_path / "nowhere")


def test_a_lock_removed_while_it_was_being_taken_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder released it between our opening the file and locking it: the file we hold has no name."""
    first = RunLock.acquire(tmp_path)
    flock = fcntl.flock
    tried: list[int] = []

    def late(descriptor: int, operation: int) -> None:
        if not tried:
            first.release()
        tried.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    second = RunLock.acquire(tmp_path)
    assert len(tried) == 2
    with pytest.raises(RunDirectoryError, match="is in use"):
        RunLock.acquire(tmp_path)
    second.release()
