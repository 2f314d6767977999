"""The run directory: all measurements and results of one session. One process at a time writes one.

Writes are atomic or append-and-flush, so a killed run keeps every finished measurement. Reading tolerates a torn last
line, which a kill may leave behind, but no other damage. A lock ends with its holder, even if that is killed; its file
stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_ddpscale.errors import RunDirectoryError, WritingError
from pytest_ddpscale.families import read_family
from pytest_ddpscale.plan.study import PLAN_SCHEMA_VERSION, Plan
from pytest_ddpscale.run.record_lines import AnyRecord, RecordReader, checked_line
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.run.run_json import RUN_SCHEMA_VERSION, RunRecord, now_iso
from pytest_ddpscale.run.strict_json import parse_strict_json, strict_json
from pytest_ddpscale.util.atomic_writing import write_atomically
from pytest_ddpscale.util.regular_file import open_regular, read_regular, refuse_irregular, size_text

T = TypeVar("T")
RUNS_FOLDER = Path("ddpscale-runs")
LOCK_NAME = "run.lock"
# Files that verdicts rest on, by the key of their digest in verdicts.json.
JUDGED = {"measurements_sha256": "measurements.jsonl", "plan_sha256": "plan.json", "run_sha256": "run.json"}
# What to expect of a broken file, and what to do.
BROKEN = "the file as pytest-ddpscale wrote it", "Restore it from a copy, or measure again."
# A block of 8,192 ranks with 1,000 steps each has 42 MiB.
MOST_LINE_BYTES = 2**27
# Errors of flock on file systems without locks: NFS without lockd, Lustre mounted without -o flock.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
_LONGEST_HOLDER = 4096  # bytes of the lock file to read
_GANG = b'{"kind":"gang"'


class _Name(str):
    """A file or folder in the run directory: its path, as an attribute of the directory."""

    def __get__(self, run: RunDirectory, kind: type[RunDirectory]) -> Path:
        return run.path / self


@dataclass(frozen=True)
class RunDirectory:
    """Paths of a run's files, with methods to read and write them.

    Attributes:
        path: the directory itself.
    """

    path: Path
    _read: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    run_json = _Name("run.json")  # who, when, where, with what versions
    plan_json = _Name("plan.json")  # the planned studies
    measurements_jsonl = _Name("measurements.jsonl")  # all records, one line each
    baseline_json = _Name("baseline.json")  # values of these nodes in earlier runs, from the site's history
    superseded_jsonl = _Name("superseded.jsonl")  # earlier records of studies that were measured again
    verdicts_json = _Name("verdicts.json")  # verdicts and outcome, the source of all reports
    suite_json = _Name("suite.json")  # results of a suite, which has no verdicts
    plots = _Name("plots")
    logs = _Name("logs")  # output of torchrun and of all ranks

    @staticmethod
    def create(path: Path) -> RunDirectory:
        """Create a new run directory.

        Raises:
            RunDirectoryError: it cannot be written, or already holds a run or verdicts, which are never overwritten.
        """
        run = RunDirectory(path)
        run.refuse_if_taken()
        try:
            make_directory(path, exist_ok=True)
            run.logs.mkdir(exist_ok=True)
        except OSError as error:
            raise not_writable(path, error) from None
        return run

    @property
    def is_only_begun(self) -> bool:
        """Whether a session began a run here and ended before it had a plan, so nothing would be lost."""
        if any(path.exists() for path in (self.plan_json, self.measurements_jsonl, self.verdicts_json)):
            return False
        try:
            return self.read_run().status == "running"
        except RunDirectoryError:  # there is none, or it is broken
            return False

    def refuse_if_taken(self) -> None:
        """Refuse to begin a run in a directory with files that it might overwrite.

        Raises:
            RunDirectoryError: the directory holds a run, verdicts or other files.
        """
        # What a session that is killed before it has a plan leaves; includes `write_atomically`'s temporaries.
        begun, temporary = ("logs", LOCK_NAME, "run.json"), (".run.json.", ".plan.json.")
        names = [entry.name for entry in self.path.iterdir()] if self.path.is_dir() else []
        found, action = "is not empty", "Name another one, because a run could overwrite the files in it."
        if (self.run_json.exists() and not self.is_only_begun) or self.measurements_jsonl.exists():
            found = "already holds a run"
            action = f"Name another one, judge it (--ddp-judge={self.path}), or finish it (--ddp-resume={self.path})."
        elif all(name in begun or name.startswith(temporary) for name in names):
            return
        raise RunDirectoryError(str(self.path), found, "a new or empty directory", action)

    @staticmethod
    def open(path: Path) -> RunDirectory:
        """Open an existing run directory to read it.

        Raises:
            RunDirectoryError: there is none, it is broken, or another version wrote it.
        """
        run = RunDirectory(path)
        if not run.run_json.exists():
            found = "has no run.json" if path.is_dir() else "is a file" if path.exists() else "does not exist"
            expected = "a run directory" if path.exists() else ""
            raise RunDirectoryError(str(path), found, expected, "`ddpscale runs` lists runs.")
        run.read_run()
        if run.plan_json.exists():
            run.read_plan()
        return run

    def write_json(self, path: Path, data: Any) -> None:
        """Write a JSON file atomically: readers see the old or the new content.

        Raises:
            WritingError: the disk is full, read-only or broken; the old content stays.
        """
        with self._writing(path):
            write_atomically(path, strict_json(data) + "\n")

    def note(self, **fields: Any) -> None:
        """Change fields of run.json. Raises like `read_run` and `write_json`."""
        self.write_json(self.run_json, msgspec.structs.replace(self.read_run(), **fields))

    def read_run(self) -> RunRecord:
        """The content of run.json. Raises RunDirectoryError."""
        return read_file(self.run_json, RunRecord, RUN_SCHEMA_VERSION)

    def read_plan(self) -> Plan:
        """The content of plan.json. Raises RunDirectoryError."""
        return read_file(self.plan_json, Plan, PLAN_SCHEMA_VERSION)

    def read_suite(self) -> dict[str, Any]:
        """The content of suite.json. Raises RunDirectoryError."""
        suite = _read_json(self.suite_json)
        if not isinstance(suite, dict):
            raise broken_file(self.suite_json, "is not a suite.json: it is no object")
        return suite

    def read_records(self) -> list[AnyRecord]:
        """All records, in order, without a torn last line; cached until the file changes.

        Raises:
            RunDirectoryError: another line is not a record; the message has its number.
        """
        path = self.measurements_jsonl
        if not path.exists():
            return []
        status = path.stat()
        stamp = status.st_ino, status.st_size, status.st_mtime_ns
        if stamp != self._read.get("stamp"):
            self._read.update(records=list(_decoded(path, RecordReader().read)), stamp=stamp)
        records: list[AnyRecord] = self._read["records"]
        return records

    def read_gangs(self) -> list[GangRecord]:
        """Only these of all records, of which there may be gigabytes. Raises like `read_records`."""
        if not self.measurements_jsonl.exists():
            return []
        read = RecordReader().read
        gangs = _decoded(self.measurements_jsonl, lambda line: line.startswith(_GANG) and read(line))
        return [gang for gang in gangs if isinstance(gang, GangRecord)]

    def measurements_sha256(self) -> str:
        """Digest of measurements.jsonl."""
        return _sha256(self.measurements_jsonl)

    def digests(self) -> dict[str, str]:
        """SHA-256 of the files that verdicts rest on, by key in their basis; that of no bytes if one is missing."""
        return {key: _sha256(self.path / name) for key, name in JUDGED.items()}

    def cut_torn_line(self) -> None:
        """Remove an incomplete last line left by a kill, before further records are appended. No rank may be writing.

        Raises:
            WritingError: the file cannot be changed.
        """
        with self._writing(self.measurements_jsonl):
            _cut_torn_line(self.measurements_jsonl)

    def append_record(self, record: AnyRecord) -> None:
        """Append one record, which then survives a kill of this process. Raises like `append_records`."""
        self.append_records([record])

    def append_records(self, records: Sequence[AnyRecord]) -> None:
        """Append records, opening the file once, because on a shared file system opening may cost more than writing.

        Raises:
            WritingError: the disk is full, read-only or broken; earlier records stay, and no part of these is written.
        """
        if records:
            self.append_lines(b"".join(map(checked_line, records)))

    def append_lines(self, lines: bytes) -> None:
        """Append lines unchanged. Raises like `append_records`."""
        with self._writing(self.measurements_jsonl):
            append_whole(self.measurements_jsonl, lines)

    def set_aside(self, is_superseded: Callable[[AnyRecord], bool]) -> None:
        """Move records to superseded.jsonl. No rank may be writing.

        A crash in between leaves records in both files but loses none.

        Raises:
            OSError: a file cannot be written.
        """
        if not self.measurements_jsonl.exists():
            return
        superseded, kept = list[bytes](), list[bytes]()
        with open_regular(self.measurements_jsonl) as lines:  # keep lines as written; the last one may be incomplete
            for record, line in zip(self.read_records(), lines, strict=False):
                (superseded if is_superseded(record) else kept).append(line)
        _cut_torn_line(self.superseded_jsonl)
        append_whole(self.superseded_jsonl, b"".join(superseded))
        with self.superseded_jsonl.open("rb") as file:
            os.fsync(file.fileno())
        write_atomically(self.measurements_jsonl, b"".join(kept))

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self.unwritten(path, error) from None

    def unwritten(self, path: Path, error: OSError) -> WritingError:
        """The error for a file of the run, or of a judgement on another one, that cannot be written."""
        is_measured = self.measurements_jsonl.exists()
        then = f"measure the rest with --ddp-resume={self.path}" if is_measured else "try again"
        return WritingError(
            str(path), f"cannot be written ({error.strerror or error})", "a writable file system with space left",
            f"Earlier measurements are kept. Free space or repair the disk, then {then}.",
        )  # fmt: skip


@dataclass
class RunLock:
    """The lock of a run directory, until `release` or the end of the process.

    Attributes:
        path: the locked file (flock), which contains host, process and time of its latest holder.
        note: why the lock has no effect; empty if it has.
    """

    path: Path
    note: str
    _descriptor: int | None

    @staticmethod
    def acquire(directory: Path) -> RunLock:
        """Lock an existing directory.

        On a file system without locks the run continues without one, and `note` says so.

        Raises:
            RunDirectoryError: another process, which the message names, holds it; or it cannot be written.
        """
        path, note = directory / LOCK_NAME, ""
        try:  # not through a link, because the file is emptied
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise not_writable(directory, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                holder = "another process"
                with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                    written: Any = parse_strict_json(os.pread(descriptor, _LONGEST_HOLDER, 0))
                    holder = f"process {written['pid']} on {written['host']}, since {written['since']},"
                os.close(descriptor)
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise not_writable(directory, error) from None
                raise RunDirectoryError(
                    str(directory), f"is in use: {holder} is writing it", "a directory that no other run is writing",
                    "Wait until it has ended, or end it; another run needs another --ddp-run-dir.",
                ) from None  # fmt: skip
            note = f"{directory} is on a file system without locks: another run could have written to it"
        holder = strict_json({"host": socket.gethostname(), "pid": os.getpid(), "since": now_iso()}) + "\n"
        with contextlib.suppress(OSError):  # on a full disk the lock still holds, but does not name its holder
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
        return RunLock(path, note, descriptor)

    def release(self) -> None:
        """Release the lock. Does nothing the second time."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # explicitly: a process being started may still hold the descriptor
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


def new_run_directory(requested: Path | None, sku: str) -> tuple[RunDirectory, RunLock]:
    """The requested directory, or ``ddpscale-runs/<UTC time>-<sku>`` with a link ``latest`` to it.

    Raises:
        RunDirectoryError: it cannot be written, already holds a run, or another process is beginning one in it.
    """
    if requested is not None:
        return _created(requested)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    path = _claimed(RUNS_FOLDER / f"{stamp}-{sku}", "")
    opened = _created(path)
    temporary = RUNS_FOLDER / f".latest-{os.getpid()}"
    try:
        temporary.symlink_to(path.name)
        temporary.replace(RUNS_FOLDER / "latest")
    except OSError:
        temporary.unlink(missing_ok=True)  # on a file system without links the run works without `latest`
    return opened


def judging_directory(judged: RunDirectory, requested: Path | None) -> tuple[RunDirectory, RunLock]:
    """The directory for the verdicts on a run; existing verdicts, which may be signed, are never overwritten.

    Args:
        judged: the run; its own directory is used if it has no verdicts and no other process writes it.
        requested: the requested directory; None for the run's own, or else ``judged-N`` in it.

    Raises:
        RunDirectoryError: the directory cannot be written.
    """
    if requested is not None:
        return _created(requested)
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
    return _created(_claimed(judged.path / "judged", "-1"))


def _created(path: Path) -> tuple[RunDirectory, RunLock]:
    """Create a run in a directory; if two processes try, one succeeds."""
    if (path / LOCK_NAME).exists():
        RunLock.acquire(path).release()  # its error names the process that writes there
    run, lock = RunDirectory.create(path), RunLock.acquire(path)
    try:
        run.refuse_if_taken()  # meanwhile another process may have begun a run, and ended
    except RunDirectoryError:
        lock.release()
        raise
    return run, lock


def _claimed(path: Path, first: str) -> Path:
    """Create the first of a path with `first` after it, ``-2``, ``-3`` … that does not exist; no other process gets the
    same one. Raises RunDirectoryError."""
    for number in count(1):
        claimed = path.with_name(f"{path.name}{first if number == 1 else f'-{number}'}")
        try:
            make_directory(claimed)
        except FileExistsError:
            continue
        except OSError as error:
            raise not_writable(claimed, error) from None
        return claimed
    raise AssertionError("the numbers never end")


def make_directory(path: Path, *, exist_ok: bool = False) -> None:
    """Create a run directory that only its user and group may read. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o750, exist_ok=exist_ok)


def append_whole(path: Path, data: bytes) -> None:
    """Append all of the data or, if that fails, none of it.

    Raises:
        OSError: the disk is full, read-only or broken.
    """
    with path.open("ab", buffering=0) as file:  # unbuffered: closing must not repeat a failed write
        length, rest = file.seek(0, os.SEEK_END), memoryview(data)
        try:
            while rest:  # a full disk first writes less than asked; the next write raises the error
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(length)
            raise


def _cut_torn_line(path: Path) -> None:
    """Cut a file after its last complete line. Raises OSError."""
    if not path.exists():
        return
    refuse_irregular(path)
    with path.open("r+b") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise broken_file(path, f"cannot be read ({why})") from None


def _decoded(path: Path, read: Callable[[bytes], T]) -> Iterator[T]:
    """Each whole line of a file, read. Raises RunDirectoryError with the line's number."""
    with _reading(path), open_regular(path) as file:
        for number in count(1):
            line = file.readline(MOST_LINE_BYTES)
            if not line.endswith(b"\n"):
                if len(line) == MOST_LINE_BYTES:
                    too_long = f"is longer than {size_text(MOST_LINE_BYTES)}, more than any record has"
                    raise broken_file(path, f"line {number} {too_long}")
                return  # the end, or torn by a kill
            try:
                yield read(line)
            except ValueError as error:
                raise broken_file(path, f"line {number} is not a record: {error}") from None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    if path.exists():
        with _reading(path), open_regular(path) as file:
            while piece := file.read(2**20):
                digest.update(piece)
    return digest.hexdigest()


def read_file(path: Path, kind: type[T], supported: int) -> T:
    """The content of a JSON file with the supported `schema_version`.

    Raises:
        RunDirectoryError: the file is missing or broken, or another version wrote it.
    """
    data = _read_json(path)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise broken_file(path, f"is not a {path.name}: it has no schema_version")
    if version != supported:
        expected = f"{supported}, which this version reads: finish it with the version that began it"
        raise RunDirectoryError(str(path), f"has schema_version {version}", expected)
    try:
        return msgspec.convert(data, kind, dec_hook=read_family)
    except (ValueError, RecursionError) as error:
        raise broken_file(path, f"has invalid content ({error})") from None


def _read_json(path: Path) -> Any:
    """The JSON of a file. Raises RunDirectoryError."""
    with _reading(path):
        return parse_strict_json(read_regular(path))


def not_writable(path: Path, error: OSError) -> RunDirectoryError:
    """The error for a directory in which no run can begin."""
    return RunDirectoryError(
        str(path), f"cannot be written ({error.strerror or error})", "a writable directory", "Name another one."
    )


def broken_file(path: Path, found: str) -> RunDirectoryError:
    """The error for a damaged file, or for one that is not a regular one."""
    return RunDirectoryError(str(path), found, *BROKEN)
