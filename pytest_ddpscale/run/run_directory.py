"""The run directory: all measurements and results of one session.

Writes are atomic or append-and-flush, so a killed run keeps every finished measurement. Reading tolerates a torn last
line, which a kill may leave behind, but no other damage.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any, TypeVar

from pytest_ddpscale.errors import RunDirectoryError, WritingError
from pytest_ddpscale.plan.study import PLAN_SCHEMA_VERSION, Plan
from pytest_ddpscale.run.no_run import no_run
from pytest_ddpscale.run.record_lines import AnyRecord, RecordReader, checked_line
from pytest_ddpscale.run.run_json import RUN_SCHEMA_VERSION, RunRecord
from pytest_ddpscale.run.strict_json import parse_strict_json, read_as, strict_json
from pytest_ddpscale.util.atomic_writing import write_atomically
from pytest_ddpscale.util.printable import printable_json
from pytest_ddpscale.util.regular_file import open_regular, read_regular, refuse_irregular, size_text

T = TypeVar("T")
LOCK_NAME = "run.lock"  # lock file against other writers, see run_opening.py
# Files that verdicts rest on, by the key of their digest in verdicts.json.
JUDGED = {"measurements_sha256": "measurements.jsonl", "plan_sha256": "plan.json", "run_sha256": "run.json"}
# A block of 8,192 ranks with 1,000 steps each has 42 MiB.
MOST_LINE_BYTES = 2**27


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
            with tempfile.TemporaryFile(dir=path):
                pass
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
        path = self.path
        if (self.run_json.exists() and not self.is_only_begun) or self.measurements_jsonl.exists():
            raise RunDirectoryError(
                str(path), "already holds a run", "a new or empty directory",
                f"Name another one, judge that run with --ddp-judge={path}, or finish it with --ddp-resume={path}.",
            )  # fmt: skip
        if self.verdicts_json.exists():  # on a run in another directory
            raise RunDirectoryError(
                str(path), "already holds verdicts", "a new or empty directory", "Name another one."
            )
        # What a session that is killed before it has a plan leaves; includes `write_atomically`'s temporaries.
        begun, temporary = ("logs", LOCK_NAME, "run.json"), (".run.json.", ".plan.json.")
        names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
        if any(name not in begun and not name.startswith(temporary) for name in names):
            raise RunDirectoryError(
                str(path), "is not empty", "a new or empty directory",
                "Name another one, because a run could overwrite the files in it.",
            )  # fmt: skip

    @staticmethod
    def open(path: Path) -> RunDirectory:
        """Open an existing run directory to read it.

        Raises:
            RunDirectoryError: there is none, it is broken, or another version wrote it.
        """
        run = RunDirectory(path)
        if not run.run_json.exists():
            raise no_run(path)
        if run.plan_json.exists():
            run.read_plan()  # first: its version tells an older directory
        run.read_run()
        return run

    def write_json(self, path: Path, data: Any) -> None:
        """Write a JSON file atomically: readers see the old or the new content.

        Raises:
            WritingError: the disk is full, read-only or broken; the old content stays.
        """
        text = strict_json(data) + "\n"
        try:
            write_atomically(path, text)
        except OSError as error:
            raise self.unwritten(path, error) from None

    def read_run(self) -> RunRecord:
        """The content of run.json. Raises RunDirectoryError."""
        return read_file(self.run_json, RunRecord, RUN_SCHEMA_VERSION)

    def read_plan(self) -> Plan:
        """The content of plan.json. Raises RunDirectoryError."""
        return read_file(self.plan_json, Plan, PLAN_SCHEMA_VERSION)

    def read_suite(self) -> dict[str, Any]:
        """The content of suite.json. Raises RunDirectoryError."""
        said = _read_json(self.suite_json)
        if not isinstance(said, dict):
            raise broken_file(self.suite_json, "is not a suite.json: it is no object")
        return said

    def read_records(self) -> list[AnyRecord]:
        """All records of measurements.jsonl, in order, without a torn last line; cached until the file changes.

        Raises:
            RunDirectoryError: another line is not a record; the message has its number.
        """
        stamp = _stamp(self.measurements_jsonl)
        if self._read.get("stamp") != stamp:
            self._read.update(stamp=stamp, records=list(_records(self.measurements_jsonl)))
        found: list[AnyRecord] = self._read["records"]
        return found

    def measurements_sha256(self) -> str:
        """Digest of measurements.jsonl."""
        return self._sha256("measurements.jsonl")

    def digests(self) -> dict[str, str]:
        """SHA-256 of the files that verdicts rest on, by key in their basis; that of no bytes if one is missing."""
        return {key: self._sha256(name) for key, name in JUDGED.items()}

    def _sha256(self, name: str) -> str:
        digest = hashlib.sha256()
        if (self.path / name).exists():
            with self._opened(self.path / name) as file:
                while piece := file.read(2**20):
                    digest.update(piece)
        return digest.hexdigest()

    @staticmethod
    def _opened(path: Path) -> IO[bytes]:
        try:
            return open_regular(path)
        except OSError as error:
            raise unreadable(path, error) from None

    def cut_torn_line(self) -> None:
        """Remove an incomplete last line left by a kill, before further records are appended. No rank may be writing.

        Raises:
            WritingError: the file cannot be changed.
        """
        try:
            _cut_torn_line(self.measurements_jsonl)
        except OSError as error:
            raise self.unwritten(self.measurements_jsonl, error) from None

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
        try:
            append_whole(self.measurements_jsonl, lines)
        except OSError as error:
            raise self.unwritten(self.measurements_jsonl, error) from None

    def set_aside(self, is_superseded: Callable[[AnyRecord], bool]) -> None:
        """Move records to superseded.jsonl. No rank may be writing.

        A crash in between leaves records in both files but loses none.

        Raises:
            OSError: a file cannot be written.
        """
        superseded: list[bytes] = []
        kept: list[bytes] = []
        if not self.measurements_jsonl.exists():
            return
        with open_regular(self.measurements_jsonl) as lines:  # keep lines as written; the last one may be incomplete
            for record, line in zip(self.read_records(), lines, strict=False):
                (superseded if is_superseded(record) else kept).append(line)
        _cut_torn_line(self.superseded_jsonl)
        append_whole(self.superseded_jsonl, b"".join(superseded))
        with self.superseded_jsonl.open("rb") as file:
            os.fsync(file.fileno())
        write_atomically(self.measurements_jsonl, b"".join(kept))

    def unwritten(self, path: Path, error: OSError) -> WritingError:
        """The error for a file of the run, or of a judgement on another one, that cannot be written."""
        is_measured = self.measurements_jsonl.exists()
        then = f"measure the rest with --ddp-resume={self.path}" if is_measured else "try again"
        return WritingError(
            str(path), f"cannot be written ({error.strerror or error})", "a writable file system with space left",
            f"Earlier measurements are kept. Free space or repair the file system, then {then}.",
        )  # fmt: skip


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


def _stamp(path: Path) -> tuple[int, ...]:
    """Changes when a file is replaced or appended to; empty without a file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _records(path: Path) -> Iterator[AnyRecord]:
    """Records of the complete lines, one by one, because files of large runs do not fit into memory."""
    if not path.exists():
        return
    read = RecordReader().read
    try:
        with open_regular(path) as file:
            for number in count(1):
                line = file.readline(MOST_LINE_BYTES)
                if not line.endswith(b"\n"):
                    if len(line) == MOST_LINE_BYTES:
                        found = f"line {number} is longer than {size_text(MOST_LINE_BYTES)}, more than any record has"
                        raise broken_file(path, found)
                    return  # the end, or torn by a kill
                try:
                    yield read(line)
                except ValueError as error:
                    raise broken_file(path, f"line {number} is not a record: {error}") from None
    except OSError as error:
        raise unreadable(path, error) from None


def read_file(path: Path, kind: type[T], supported: int) -> T:
    """The content of a JSON file with the supported `schema_version`.

    Raises:
        RunDirectoryError: the file is missing or broken, or a newer or older version wrote it.
    """
    data = _read_json(path)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise broken_file(path, f"is not a {path.name}: it has no schema_version")
    if version != supported:
        what_next = (
            "A newer pytest-ddpscale wrote it: upgrade to read it."
            if version > supported
            else "An older pytest-ddpscale wrote it: measure again, or judge with the version that run.json names."
        )
        raise RunDirectoryError(str(path), f"has schema_version {version}", str(supported), what_next)
    try:
        return read_as(kind, data)
    except ValueError as error:
        raise broken_file(path, f"has invalid content ({error})") from None


def _read_json(path: Path) -> Any:
    """The JSON of a file, its texts `printable`. Raises RunDirectoryError."""
    try:
        return printable_json(parse_strict_json(read_regular(path)))
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise broken_file(path, f"cannot be read ({error})") from None


def not_writable(path: Path, error: OSError) -> RunDirectoryError:
    """The error for a directory in which no run can begin."""
    return RunDirectoryError(
        str(path), f"cannot be written ({error.strerror or error})", "a writable directory", "Name another one."
    )


def unreadable(path: Path, error: OSError) -> RunDirectoryError:
    """The error for a file that cannot be read, or is not a regular one."""
    return broken_file(path, f"cannot be read ({error.strerror or error})")


def broken_file(path: Path, found: str) -> RunDirectoryError:
    """The error for a damaged file."""
    return RunDirectoryError(
        str(path), found, "the file as pytest-ddpscale wrote it", "Restore it from a copy, or measure again."
    )
