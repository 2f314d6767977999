"""Create, lock and open run directories: one process at a time writes one.

A lock ends with its holder, even if that is killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.no_run import RUNS_FOLDER
from pytest_ddpscale.run.run_directory import JUDGED, LOCK_NAME, RunDirectory, make_directory, not_writable
from pytest_ddpscale.run.strict_json import parse_strict_json, strict_json
from pytest_ddpscale.run.verdicts import Judgement, read_judgement

# Errors of flock on file systems without locks: NFS without lockd, Lustre mounted without -o flock.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
_LONGEST_HOLDER = 4096  # bytes of the lock file to read


@dataclass
class RunLock:
    """The lock of a run directory, until `release` or the end of the process.

    Attributes:
        path: the locked file (flock), which contains host, process and time of its holder.
        note: why the lock has no effect; empty if it has.
    """

    path: Path
    note: str = ""
    _descriptor: int | None = field(default=None, repr=False)

    @staticmethod
    def acquire(directory: Path) -> RunLock:
        """Lock an existing directory.

        On a file system without locks the run continues without one, and `note` says so.

        Raises:
            RunDirectoryError: another process, which the message names, holds it; or it cannot be written.
        """
        path = directory / LOCK_NAME
        while True:
            try:  # not through a link, because the file is emptied
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            except OSError as error:
                raise not_writable(directory, error) from None
            note = _lock(descriptor, directory)
            if note or _is_still_at(path, descriptor):
                break
            os.close(descriptor)  # its holder has just released and removed it
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
        with contextlib.suppress(OSError):  # on a full disk the lock still holds, but does not name its holder
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, (strict_json(holder) + "\n").encode(), 0)
        return RunLock(path, note, descriptor)

    def release(self) -> None:
        """Release the lock. Does nothing the second time."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):  # on a read-only disk the file stays, but unlocked
            self.path.unlink(missing_ok=True)  # while it is held, so a later lock is not removed
        os.close(self._descriptor)
        self._descriptor = None


def _lock(descriptor: int, directory: Path) -> str:
    """Lock an open file. Returns why that is impossible, or an empty string. Raises RunDirectoryError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return f"{directory} is on a file system without locks: another run could have written to it"
        holder = _holder(descriptor)
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise not_writable(directory, error) from None
        raise RunDirectoryError(
            str(directory), f"is in use: {holder} is writing it", "a directory that no other run is writing",
            "Wait until that run has ended, or end it; a new run needs its own directory (--ddp-run-dir).",
        ) from None  # fmt: skip
    return ""


def _is_still_at(path: Path, descriptor: int) -> bool:
    """Whether the opened file is still the one at this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    """The holder named in the lock file."""
    try:
        said: Any = parse_strict_json(os.pread(descriptor, _LONGEST_HOLDER, 0).decode())
        return f"process {said['pid']} on {said['host']}, since {said['since']},"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"


def new_run_directory(asked: Path | None, sku: str) -> tuple[RunDirectory, RunLock]:
    """The requested directory, or ``ddpscale-runs/<UTC time>-<sku>`` with a link ``latest`` to it.

    Raises:
        RunDirectoryError: it cannot be written, already holds a run, or another process is beginning one in it.
    """
    if asked is not None:
        return _created(asked)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    name = f"{stamp}-{sku}"
    path = _claimed(RUNS_FOLDER / (f"{name}-{number}" if number > 1 else name) for number in count(1))
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
        if not os.access(judged.path, os.W_OK):
            raise RunDirectoryError(
                str(judged.path), "cannot be written", "a writable directory", "Name one with --ddp-run-dir."
            )
        with contextlib.suppress(RunDirectoryError):  # the run is still measured, or another process judges it
            lock = RunLock.acquire(judged.path)
            if not judged.verdicts_json.exists():
                return judged, lock
            lock.release()
    return _created(_claimed(judged.path / f"judged-{number}" for number in count(1)))


def open_judged(path: Path) -> tuple[RunDirectory, RunDirectory]:
    """The directories of a run's measurements and of its verdicts and reports; the latter may have none yet.

    Args:
        path: a run directory, or one that ``--ddp-judge`` made, such as ``RUN/judged-2``.

    Raises:
        RunDirectoryError: it is neither, is broken, or the judged run is missing or has changed.
    """
    judged = RunDirectory(path)
    if judged.run_json.is_file() or not judged.verdicts_json.is_file():
        return RunDirectory.open(path), judged
    basis = read_judgement(judged.verdicts_json).basis
    named = Path(basis.get("measurements_path", "")).parent
    # As typed, relative to where pytest was started; inside the run itself; or next to it, if both were moved.
    for place in (named, path.parent, path.parent / named.name):
        run = RunDirectory(place)
        if run.run_json.is_file() and run.measurements_sha256() == basis.get("measurements_sha256"):
            return RunDirectory.open(place), judged
    raise RunDirectoryError(
        str(path), f"holds verdicts on {named}, which is missing or has changed", "the judged run, unchanged",
        f"Judge the run again with `pytest --ddp-judge={named}`, or start from the directory that contains it.",
    )  # fmt: skip


def read_judged(run: RunDirectory, judged: RunDirectory) -> Judgement:
    """The verdicts in `judged` on the measurements in `run`.

    Those of a run that still measures, or was killed, are on a part of it, and accept and reject nothing.

    Raises:
        RunDirectoryError: it was never judged, verdicts.json is broken, or the run has changed since.
    """
    if not judged.verdicts_json.exists():
        judge = f"Judge it with `pytest --ddp-judge={run.path}`."
        raise RunDirectoryError(str(run.path), "was never judged", "verdicts", judge)
    judgement = read_judgement(judged.verdicts_json)
    changed = [JUDGED[key] for key, digest in run.digests().items() if judgement.basis.get(key) != digest]
    if changed and not (judgement.outcome == "incomplete" and judgement.unfinished):
        raise RunDirectoryError(
            str(judged.verdicts_json), f"was made from another {', '.join(changed)} than {run.path} has now",
            "unchanged files",
            f"Restore them from a copy, or measure again; `pytest --ddp-judge={run.path}` judges them as they are.",
        )  # fmt: skip
    return judgement


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


def _link_latest(path: Path) -> None:
    link = RUNS_FOLDER / "latest"
    temporary = RUNS_FOLDER / f".latest-{os.getpid()}"
    try:
        temporary.symlink_to(path.name)
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)  # on a file system without links the run works without `latest`
