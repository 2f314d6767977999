"""A site's SQLite file: opened, checked, and written in one transaction, with errors as sentences.

Many nodes may end a run in the same second, and the file may be on NFS. A write-ahead log needs shared memory
(https://www.sqlite.org/wal.html, "Disadvantages"), so this uses SQLite's rollback journal under POSIX locks. Writers
take turns from their first statement (BEGIN IMMEDIATE) and wait for up to a minute.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from pytest_ddpscale.errors import HistoryError
from pytest_ddpscale.run.run_directory import RUNS_FOLDER, RunDirectory
from pytest_ddpscale.util.regular_file import refuse_irregular

DEFAULT_HISTORY = RUNS_FOLDER / "history.sqlite"
SCHEMA_VERSION = 4
APPLICATION_ID = 0x64647073  # "ddps": marks the file as ours in SQLite's header
BUSY_S = 60.0

_SCHEMA = (
    """CREATE TABLE runs (
        id TEXT PRIMARY KEY, run_path TEXT NOT NULL, sku TEXT NOT NULL, started_at TEXT NOT NULL,
        judged_at TEXT NOT NULL, outcome TEXT NOT NULL, measurements_sha256 TEXT NOT NULL)""",
    """CREATE TABLE hosts (
        host TEXT NOT NULL, run TEXT NOT NULL REFERENCES runs (id), versions TEXT NOT NULL, PRIMARY KEY (host, run))""",
    """CREATE TABLE verdicts (
        run TEXT NOT NULL REFERENCES runs (id), id TEXT NOT NULL, outcome TEXT NOT NULL, severity TEXT NOT NULL)""",
    """CREATE TABLE key_values (
        run TEXT NOT NULL REFERENCES runs (id), host TEXT NOT NULL, gpu_index INTEGER, gpu_uuid TEXT,
        metric TEXT NOT NULL, subject TEXT NOT NULL, world_size INTEGER NOT NULL, arm TEXT NOT NULL,
        definition TEXT NOT NULL, value REAL NOT NULL, unit TEXT NOT NULL, batch_size INTEGER,
        standing TEXT NOT NULL CHECK (standing IN ('norm', 'worse')))""",
    "CREATE INDEX runs_by_time ON runs (sku, started_at)",
    "CREATE INDEX verdicts_of_run ON verdicts (run)",
    "CREATE INDEX key_values_of_host ON key_values (host, run)",
    "CREATE INDEX key_values_of_run ON key_values (run)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_BROKEN = ("not a database", "malformed", "no such table", "no such column", "encrypted")
_BUSY = ("locked", "busy")


def history_file_of(asked: Path | None, run: RunDirectory) -> Path | None:
    """The site's history: the given file, else the one beside a run in ``ddpscale-runs``; None elsewhere."""
    if asked is not None:
        return asked
    folder = run.path.parent
    return folder / DEFAULT_HISTORY.name if folder.resolve() == RUNS_FOLDER.resolve() else None


@contextmanager
def writing(file: Path) -> Iterator[sqlite3.Connection]:
    """One transaction, committed at the end and rolled back on exceptions. Creates the file if it does not exist.

    Raises:
        HistoryError: the file is not ours, broken, newer than this version, locked, or cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            file.open("xb").close()  # with the umask's permissions: SQLite itself never lets a group write
        refuse_irregular(file)
    except OSError as error:
        raise _unwritable(file, error.strerror or str(error)) from None
    with _in_words(file), closing(_connect(file, "rwc")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        if not _is_ours(connection, file):
            for statement in _SCHEMA:
                connection.execute(statement)
        yield connection
        connection.execute("COMMIT")


@contextmanager
def reading(file: Path) -> Iterator[sqlite3.Connection]:
    """The history for reading. Nothing is locked between statements, so that no writer has to wait.

    Raises:
        HistoryError: the file does not exist, is empty, or as for `writing`.
    """
    if not file.exists():
        raise HistoryError(
            str(file), "does not exist", "a history file",
            "Name it with --history or DDPSCALE_HISTORY, or create one: `ddpscale history --add RUN_DIR`.",
        )  # fmt: skip
    try:
        refuse_irregular(file)
    except OSError as error:
        raise _unwritable(file, error.strerror or str(error)) from None
    # Not read-only, because a killed writer's transaction has to be rolled back first. Without write permission SQLite
    # only reads.
    with _in_words(file), closing(_connect(file, "rw")) as connection:
        if not _is_ours(connection, file):
            raise HistoryError(str(file), "is empty", "a history file", "`ddpscale history --add RUN_DIR` fills it.")
        try:
            yield connection
        except (TypeError, ValueError) as error:  # in rows that this package did not write
            raise _not_ours(file, f"is damaged ({error})") from None


def _connect(file: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode={mode}", uri=True, timeout=BUSY_S, isolation_level=None)


def _is_ours(connection: sqlite3.Connection, file: Path) -> bool:
    """Whether the file is a history of this version; False for an empty one. Raises HistoryError for any other."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application == APPLICATION_ID:
        if version > SCHEMA_VERSION:
            raise HistoryError(
                str(file), f"has schema version {version}", f"at most {SCHEMA_VERSION}",
                "A newer pytest-ddpscale wrote it: upgrade to use it, or name another file. It was not changed.",
            )  # fmt: skip
        if version < SCHEMA_VERSION:
            raise HistoryError(
                str(file), f"has schema version {version}", str(SCHEMA_VERSION),
                "An earlier pytest-ddpscale wrote it: remove it, or keep using that version. It was not changed.",
            )  # fmt: skip
        return True
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application or version or tables:
        raise _not_ours(file, "is another program's database")
    # SQLite takes a file of a few bytes for an empty database and would overwrite it. No other process is creating it
    # now, because we hold the lock. We must not open the file to look, because closing it would release SQLite's locks.
    if file.stat().st_size > 0:
        raise _not_ours(file, "is not a history file, or is damaged")
    return False


@contextmanager
def _in_words(file: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        said = str(error)
        if any(word in said for word in _BROKEN):
            raise _not_ours(file, f"is not a history file, or is damaged ({said})") from None
        if any(word in said for word in _BUSY):
            raise HistoryError(
                str(file), f"was locked by others for too long ({said})", "a free file within a minute",
                "The run itself is unharmed: add it later with `ddpscale history --add RUN_DIR`.",
            ) from None  # fmt: skip
        raise _unwritable(file, said) from None
    except (OverflowError, UnicodeError) as error:  # a number of 40 digits, half a character
        raise HistoryError(str(file), f"cannot store the run's values ({error})", "numbers and names") from None


def _not_ours(file: Path, found: str) -> HistoryError:
    return HistoryError(
        str(file), found, "a history file that pytest-ddpscale made",
        "It was not changed. Name another file with --history or DDPSCALE_HISTORY, or move this one away.",
    )  # fmt: skip


def _unwritable(file: Path, why: str) -> HistoryError:
    return HistoryError(
        str(file), f"cannot be used ({why})", "a file that can be read and written, with space left",
        "The run itself is unharmed: add it later with `ddpscale history --add RUN_DIR`.",
    )  # fmt: skip
