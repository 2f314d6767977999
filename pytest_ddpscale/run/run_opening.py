"""Create and reopen run directories, locked against other processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import count
from pathlib import Path

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.run_directory import LOCK_NAME, RunDirectory, make_directory, not_writable
from pytest_ddpscale.run.run_lock import RunLock

RUNS_FOLDER = Path("ddpscale-runs")


def new_run_directory(asked: Path | None, sku: str) -> tuple[RunDirectory, RunLock]:
    """The requested directory, or ``ddpscale-runs/<UTC time>-<sku>`` with a link ``latest`` to it.

    Raises:
        RunDirectoryError: it cannot be written, already holds a run, or another process is beginning one in it.
    """
    if asked is not None:
        return _created(asked)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    path = _claimed(_numbered(RUNS_FOLDER / f"{stamp}-{sku}"))
    opened = _created(path)
    _link_latest(path)
    return opened


def judging_directory(judged: RunDirectory, asked: Path | None) -> tuple[RunDirectory, RunLock]:
    """The directory for the verdicts on a run; existing verdicts, which may be signed, are never overwritten.

    Args:
        judged: the run; its own directory is used if it has no verdicts and no other process writes it.
        asked: the requested directory; None for the run's own, or else ``judged-N`` in it.

    Raises:
        RunDirectoryError: the directory cannot be written.
    """
    if asked is not None:
        return _created(asked)
    if not judged.verdicts_json.exists():
        _refuse_read_only(judged)
        with contextlib.suppress(RunDirectoryError):  # the run is still measured, or another process judges it
            lock = RunLock.acquire(judged.path)
            if not judged.verdicts_json.exists():
                return judged, lock
            lock.release()
    return _created(_claimed(judged.path / f"judged-{number}" for number in count(1)))


def reopened(path: Path) -> tuple[RunDirectory, RunLock]:
    """Open an earlier run to resume it.

    Raises:
        RunDirectoryError: it cannot be written, or another process still writes it.
    """
    return RunDirectory.open(path), RunLock.acquire(path)


def _created(path: Path) -> tuple[RunDirectory, RunLock]:
    """Create a run in a directory; if two processes try, one succeeds."""
    try:
        RunDirectory(path).refuse_if_taken()  # before a lock file is written into a directory in use
    except RunDirectoryError:
        if (path / LOCK_NAME).exists():
            RunLock.acquire(path).release()  # its error names the process that writes there
        raise
    try:
        make_directory(path, exist_ok=True)
    except OSError as error:
        raise not_writable(path, error) from None
    lock = RunLock.acquire(path)
    try:
        return RunDirectory.create(path), lock
    except BaseException:
        lock.release()
        raise


def _numbered(path: Path) -> Iterator[Path]:
    """The path, then with ``-2``, ``-3`` … appended."""
    yield path
    for number in count(2):
        yield path.with_name(f"{path.name}-{number}")


def _claimed(paths: Iterator[Path]) -> Path:
    """Create the first path that does not exist; no other process gets the same one. Raises RunDirectoryError."""
    for path in paths:
        try:
            make_directory(path)
        except FileExistsError:
            continue
        except OSError as error:
            raise not_writable(path, error) from None
        return path
    raise AssertionError("the paths never end")


def _refuse_read_only(run: RunDirectory) -> None:
    if not os.access(run.path, os.W_OK):
        raise RunDirectoryError(
            str(run.path), "cannot be written", "a writable directory", "Name one with --ddp-run-dir."
        )


def _link_latest(path: Path) -> None:
    link = RUNS_FOLDER / "latest"
    temporary = RUNS_FOLDER / f".latest-{os.getpid()}"
    try:
        temporary.symlink_to(path.name)
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)  # on a file system without links the run works without `latest`
