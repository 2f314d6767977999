"""A site's SQLite file: a document for each node of each run, added in one transaction.

Many nodes may end a run in the same second, and the file may be on NFS. A write-ahead log needs shared memory
(https://www.sqlite.org/wal.html, "Disadvantages"), so this uses SQLite's rollback journal under POSIX locks. Writers
take turns from their first statement (BEGIN IMMEDIATE) and wait for up to a minute.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from pytest_ddpscale.errors import HistoryError, OptionError, RunDirectoryError
from pytest_ddpscale.history.key_values import KeyValue, key_values_of
from pytest_ddpscale.history.past_run import past_run, started_at_of
from pytest_ddpscale.history.prediction import compared, references
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_directory import RUNS_FOLDER, RunDirectory
from pytest_ddpscale.run.strict_json import Record, decode, strict_json
from pytest_ddpscale.run.verdicts import Judgement, read_judged
from pytest_ddpscale.util.regular_file import refuse_irregular

DEFAULT_HISTORY = RUNS_FOLDER / "history.sqlite"
SCHEMA_VERSION = 6
APPLICATION_ID = 0x64647073  # "ddps": marks the file as ours in SQLite's header
BUSY_S = 60.0
# Most runs of a node that serve as a baseline. Not every run has every value, so twenty values may need more runs.
MOST_RUNS = 60
Recorded = Literal["added", "replaced", "known"]

_SCHEMA = (
    """CREATE TABLE nodes (
        host TEXT NOT NULL, sku TEXT NOT NULL, started_at TEXT NOT NULL, run TEXT NOT NULL, judged_at TEXT NOT NULL,
        sha256 TEXT NOT NULL, document TEXT NOT NULL, PRIMARY KEY (host, sku, started_at, run))""",
    "CREATE INDEX nodes_of_run ON nodes (run)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_BROKEN = ("not a database", "malformed", "no such table", "no such column", "encrypted")
_UNHARMED = "The run itself is unharmed: add it later with `ddpscale history --add RUN_DIR`."


class NodeRun(Record, kw_only=True):
    """One run, restricted to one node.

    Attributes:
        sku: as the history stores it, see `history_sku`.
        run: unique digest.
        path: of its directory when it was added.
        started_at: in UTC, as ``2026-01-31T12:00:00+00:00``, which sorts by time.
        failed: ids of the requirements that failed, on any host.
        counts: whether it may serve as a baseline; a broken node must not become its own, waived or not.
        thresholds: digest of the thresholds file; empty if it is not known.
        values: of the node and its GPUs.
    """

    host: str
    sku: str
    run: str
    path: str
    started_at: str
    outcome: str
    failed: tuple[str, ...] = ()
    counts: bool
    thresholds: str = ""
    versions: dict[str, str]
    values: tuple[KeyValue, ...] = ()

    @property
    def norm(self) -> list[KeyValue]:
        """The values that serve as a baseline for later runs."""
        return [value for value in self.values if self.counts and not value.has_regressed]

    @property
    def worse(self) -> list[KeyValue]:
        """The values that had regressed from the runs before."""
        return [value for value in self.values if value.has_regressed]

    def marked(self, connection: sqlite3.Connection) -> NodeRun:
        """Its regressed values marked by the runs before; whether other nodes took part changes nothing."""
        past = references(run.norm for run in node_runs(connection, self.sku, self.host, self.started_at))
        fallen = {comparison.value.series for comparison in compared(self.values, past)[0] if comparison.has_regressed}
        return replace(
            self,
            values=tuple(replace(key_value, has_regressed=key_value.series in fallen) for key_value in self.values),
        )


_DOCUMENT = msgspec.json.Decoder(NodeRun)


def _node_run(document: str) -> NodeRun:
    return decode(_DOCUMENT, bytes(document, "utf-8"))


def skus_and_hosts(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Every SKU with every host that has a run of it, sorted."""
    return connection.execute("SELECT DISTINCT sku, host FROM nodes ORDER BY sku, host").fetchall()


def node_runs(connection: sqlite3.Connection, sku: str, host: str, before: str = "~") -> list[NodeRun]:
    """The latest runs of a node that started before a moment (ISO 8601), oldest first.

    The result goes back as far as needed for `MOST_RUNS` runs that serve as a baseline. Runs in between that do not,
    because they were rejected, waived or only surveyed the node, are included and do not count towards the limit.
    """
    runs: list[NodeRun] = []
    norms = 0
    for (document,) in connection.execute(
        "SELECT document FROM nodes WHERE host = ? AND sku = ? AND started_at < ? ORDER BY started_at DESC, run DESC",
        (host, sku, before),
    ):
        runs.append(_node_run(document))
        norms += bool(runs[-1].norm)
        if norms == MOST_RUNS:
            break
    return runs[::-1]


def hosts_of(connection: sqlite3.Connection, run: str) -> set[str]:
    """Hosts that took part in a run."""
    return {host for (host,) in connection.execute("SELECT host FROM nodes WHERE run = ?", (run,))}


def add_run(history_file: Path, path: Path) -> Recorded:
    """Add a judged run directory.

    Raises:
        RunDirectoryError: it is not a run directory, is broken, was not judged or has changed since, or was imported.
        HistoryError: the history cannot be used.
    """
    run = RunDirectory.open(path)
    return record_run(history_file, run, read_judged(run, run))


def record_run(
    history_file: Path, directory: RunDirectory, judgement: Judgement, evidence: Evidence | None = None
) -> Recorded:  # fmt: skip
    """Add a run with its key values; regressed values are marked and not used as a baseline.

    A run is identified by its id and its start, wherever its directory is now. Adding it again changes nothing; a run
    that was resumed and judged again replaces its earlier state. The order of adding changes nothing either: later
    runs of its nodes are marked anew.

    Raises:
        RunDirectoryError: the run is broken, or was imported.
        HistoryError: the history cannot be used; the run is unharmed.
    """
    run, failed = (
        past_run(directory, judgement, evidence),
        [verdict for verdict in judgement.verdicts if verdict.outcome == "failed"],
    )
    started_at, values = started_at_of(run.record), defaultdict[str, list[KeyValue]](list)
    identity = f"{judgement.sku} {started_at} {run.record.id}"
    if run.record.is_imported:
        raise RunDirectoryError(
            run.path, "was imported: another tool measured it, elsewhere", "a run that was measured here"
        )
    for value in key_values_of(run.evidence):
        values[value.series.host].append(value)
    rows = [
        NodeRun(
            host=host, sku=history_sku(judgement.sku, is_simulated=run.is_simulated), run=identity,
            path=str(directory.path.absolute()), started_at=started_at, outcome=judgement.outcome,
            failed=tuple(verdict.id for verdict in failed), versions=dict(run.versions[host]),
            counts=judgement.outcome != "rejected" and all(verdict.severity != "fail" for verdict in failed),
            thresholds=run.record.thresholds.sha256 if run.record.thresholds else "",
            values=tuple(values[host]),
        )
        for host in run.hosts
    ]  # fmt: skip
    # Before the file is locked for writing, because all nodes of a site may wait for it.
    if history_file.exists() and history_file.stat().st_size:
        with reading(history_file) as connection:
            rows = [row.marked(connection) for row in rows]
    state = judgement.basis.get("judged_at", started_at), run.digest
    with writing(history_file) as connection:
        known = connection.execute("SELECT judged_at, sha256 FROM nodes WHERE run = ?", (identity,)).fetchone()
        if known and (known[1] == state[1] or state[0] <= known[0]):
            return "known"
        connection.execute("DELETE FROM nodes WHERE run = ?", (identity,))
        for one in rows:
            row = one.host, one.sku, one.started_at, one.run, *state, strict_json(one)
            connection.execute("INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            for number, document in connection.execute(
                "SELECT rowid, document FROM nodes WHERE host = ? AND sku = ? AND started_at > ? ORDER BY started_at",
                row[:3],
            ).fetchall():
                anew = strict_json(_node_run(document).marked(connection))
                connection.execute("UPDATE nodes SET document = ? WHERE rowid = ?", (anew, number))
    return "replaced" if known else "added"


def forget(history_file: Path, node: str, sku: str | None = None) -> int:
    """Remove what a node reached; without `sku`, of all SKUs. Returns the number of its runs.

    Raises:
        HistoryError: the history does not exist or cannot be used.
        OptionError: it has no run of the node.
    """
    with reading(history_file):
        pass  # fails if there is no history; writing would create one
    with writing(history_file) as connection:
        runs = connection.execute("DELETE FROM nodes WHERE host = ? AND ? IN (sku, '')", (node, sku or "")).rowcount
    if not runs:
        raise OptionError("--forget", f"found {node!r}, of which the history has no run", "a node that it has")
    return runs


def history_sku(sku: str, *, is_simulated: bool) -> str:
    """The SKU under which the history stores a run, so that no machine is compared with a simulated one."""
    return f"simulated {sku}" if is_simulated else sku


@contextmanager
def writing(file: Path) -> Iterator[sqlite3.Connection]:
    """One transaction, committed at the end and rolled back on exceptions. Creates the file if it does not exist.

    Raises:
        HistoryError: the file is not ours, broken, of another version, locked, or cannot be written.
    """
    with _opened(file, "rwc") as connection:
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
        HistoryError: the file does not exist or is empty, or as for `writing`.
    """
    if not file.exists() or not file.stat().st_size:
        raise HistoryError(
            str(file), "does not exist, or is empty", "a history file",
            "Name it with --history or DDPSCALE_HISTORY, or create one: `ddpscale history --add RUN_DIR`.",
        )  # fmt: skip
    # Not read-only, because a killed writer's transaction has to be rolled back first. Without write permission SQLite
    # only reads.
    with _opened(file, "rw") as connection:
        _is_ours(connection, file)
        yield connection


@contextmanager
def _opened(file: Path, mode: Literal["rw", "rwc"]) -> Iterator[sqlite3.Connection]:
    """A connection; what goes wrong with it is a sentence."""
    try:
        if mode == "rwc":
            file.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                file.open("xb").close()  # with the umask's permissions: SQLite itself never lets a group write
        refuse_irregular(file)
        uri = f"{file.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)) as connection:
            yield connection
    except (sqlite3.Error, OSError) as error:
        message = getattr(error, "strerror", None) or str(error)
        if any(word in message for word in _BROKEN):
            raise _not_ours(file, message) from None
        found, expected = f"cannot be used ({message})", "a file that can be read and written, with space left"
        if "locked" in message or "busy" in message:
            found, expected = f"was locked by others for too long ({message})", "a free file within a minute"
        raise HistoryError(str(file), found, expected, _UNHARMED) from None
    except (TypeError, ValueError) as error:  # in rows that this package did not write
        raise _not_ours(file, str(error)) from None


def _is_ours(connection: sqlite3.Connection, file: Path) -> bool:
    """Whether the file is a history of this version; False for an empty one. Raises HistoryError for any other."""
    application, version = (
        connection.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in ("application_id", "user_version")
    )
    if application == APPLICATION_ID and version != SCHEMA_VERSION:
        raise HistoryError(
            str(file), f"has schema version {version}", str(SCHEMA_VERSION),
            "Another version of pytest-ddpscale wrote it: use that one, name another file, or move this one away and "
            "add its runs again (`ddpscale history --add RUN_DIR`). It was not changed.",
        )  # fmt: skip
    # SQLite takes a file of a few bytes for an empty database and would overwrite it. No other process is creating it
    # now, because we hold the lock. We must not open the file to look, because closing it would release SQLite's locks.
    if application != APPLICATION_ID and file.stat().st_size > 0:
        raise _not_ours(file, "another program's")
    return bool(application)


def _not_ours(file: Path, why: str) -> HistoryError:
    return HistoryError(
        str(file), f"is not a history file, or is damaged ({why})", "a history file that pytest-ddpscale made",
        "It was not changed. Name another file with --history or DDPSCALE_HISTORY, or move this one away.",
    )  # fmt: skip
