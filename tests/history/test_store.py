"""The history file is ours, or it is left as it is; a run is in it once, with all that it told."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace as altered

from pytest_ddpscale.errors import HistoryError, RunDirectoryError
from pytest_ddpscale.history.store import (
    MOST_RUNS,
    NodeRun,
    add_run,
    forget,
    node_runs,
    reading,
    skus_and_hosts,
    writing,
)
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Blocker, RunOutcome
from tests.approved import assert_approved
from tests.builders.nights import SKU, at, conclude, judged_run, verdict
from tests.builders.records import gang_at
from tests.small_disk import small_disk

INSERT = "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?)"
NEW_PROCESSES = get_context("spawn")


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "a" / "b c?#%.sqlite"


def row(host: str = "n1", number: int = 0, document: str = "{}") -> tuple[str, ...]:
    return host, SKU, at(number), str(number), at(number), "0" * 64, document


def add(file: Path, host: str = "n1") -> None:
    with writing(file) as connection:
        connection.execute(INSERT, row(host))


def hosts(file: Path) -> list[str]:
    with reading(file) as connection:
        return [host for _, host in skus_and_hosts(connection)]


def runs_of(file: Path, host: str = "n1") -> list[NodeRun]:
    with reading(file) as connection:
        return node_runs(connection, SKU, host)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda ours: b"a letter to somebody\n" * 100, lambda ours: b"x", lambda ours: ours[:5000],
        lambda ours: ours[:4096] + b"\xa5" * len(ours[4096:]),
        # Of another program, other versions of ours, and damaged by hand.
        "PRAGMA application_id = 0", "PRAGMA application_id = 7", "PRAGMA user_version = 7", "PRAGMA user_version = 4",
        "DROP TABLE nodes",
    ],
)  # fmt: skip
def test_what_is_not_ours_is_refused_and_left_as_it_is(tmp_path: Path, spoil: str | Callable[[bytes], bytes]) -> None:
    file = tmp_path / "h"
    add(file)
    words = "is not a history file, or is damaged"
    if callable(spoil):
        file.write_bytes(spoil(file.read_bytes()))
    else:
        with sqlite3.connect(file) as connection:
            connection.execute(spoil)
        connection.close()
        if "user" in spoil:
            words = f"has schema version {spoil[-1]}; expected 6. Another version of"
    before = file.read_bytes()
    for use in (add, hosts):
        with pytest.raises(HistoryError, match=f"^{file}: {words}.*not changed"):
            use(file)
        assert file.read_bytes() == before
        assert list(tmp_path.iterdir()) == [file], "and none is begun beside it"


def test_rows_that_nobody_of_us_wrote_are_a_sentence(tmp_path: Path, history: Path) -> None:
    add_run(history, judged_run(tmp_path / "run").path)
    for spoiled in (
        "replace(document, '100.0', '-1')",
        "replace(document, '100.0', '\"much\"')",
        "'{'",
        "x'00'",
        "'{}'",
    ):
        with writing(history) as connection:
            connection.execute(f"UPDATE nodes SET document = {spoiled}")
        with pytest.raises(HistoryError, match="is damaged"):
            runs_of(history)


def add_many_and_fail(file: Path, fail: Callable[[], object]) -> None:
    with writing(file) as connection:
        connection.execute("PRAGMA cache_spill = 1")
        connection.execute("PRAGMA cache_size = 1")
        connection.executemany(INSERT, map(row, map(str, range(2000))))
        fail()


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_file_is_made_with_its_folder_by_writing_alone_and_all_of_a_transaction_or_nothing_is_kept(
    tmp_path: Path, history: Path
) -> None:
    with pytest.raises(HistoryError, match="does not exist"):
        hosts(history)
    assert list(tmp_path.iterdir()) == []
    history.parent.mkdir()
    history.touch()
    with pytest.raises(HistoryError, match="is empty"):
        hosts(history)
    with pytest.raises(IndexError):
        add_many_and_fail(history, [].pop)
    add(history, "one")
    add(history, "two")
    assert hosts(history) == ["one", "two"]
    assert list(history.parent.iterdir()) == [history], "no journal is left"
    with reading(history) as connection:
        mode = connection.execute("PRAGMA journal_mode").fetchone()
    assert mode == ("delete",), "NFS cannot share a write-ahead log"


def test_a_writer_that_is_killed_leaves_nothing_of_its_run(tmp_path: Path) -> None:
    """Even with pages in the file already: the journal that it leaves rolls them back."""
    file = tmp_path / "h"
    add(file, "before")
    killed = NEW_PROCESSES.Process(target=add_many_and_fail, args=(file, kill_me))
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert file.with_name("h-journal").exists()
    assert hosts(file) == ["before"]
    add(file, "later")
    assert hosts(file) == ["before", "later"]


def test_all_runs_of_many_writers_are_kept_once(tmp_path: Path, history: Path) -> None:
    """The file is not there yet: they make it together, too. Each run is added twice."""
    runs = [judged_run(tmp_path / str(run), run, {f"n{run % 4}": [100.0, 99.0]}).path for run in range(12)]
    store = (add_run.__module__,)
    with ProcessPoolExecutor(4, NEW_PROCESSES, import_module, store) as writers:
        list(writers.map(time.sleep, [0.5] * 4))  # until all have begun
        said = list(writers.map(add_run, [history] * 24, runs * 2))
    assert sorted(said) == ["added"] * 12 + ["known"] * 12
    kept = [run for host in hosts(history) for run in runs_of(history, host)]
    assert sorted(run.path for run in kept) == sorted(map(str, runs))
    assert {len(run.values) for run in kept} == {4}


def test_what_cannot_be_read_or_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for use, file in ((add, tmp_path), (hosts, tmp_path), (add, tmp_path / "file" / "h")):
        with pytest.raises(HistoryError, match="cannot be used"):
            use(file)
    monkeypatch.setattr("pytest_ddpscale.history.store.BUSY_S", 0.05)
    locked = r"was locked by others for too long.* --add RUN_DIR"
    add(tmp_path / "h")  # a writer has the file from its first statement on
    with writing(tmp_path / "h"), pytest.raises(HistoryError, match=locked):
        add(tmp_path / "h")


def test_a_full_or_read_only_disk_keeps_what_was_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kib=256) as disk:
        add(disk.path / "h")
        disk.fill()
        with pytest.raises(HistoryError, match="cannot be used"):
            add(disk.path / "h", "x" * 100_000)
        disk.make_room()
        disk.make_read_only()
        assert hosts(disk.path / "h") == ["n1"]
        for name in ("h", "new", "folder/new"):
            with pytest.raises(HistoryError, match="cannot be used"):
                add(disk.path / name, "other")


def told(history: Path) -> Iterator[str]:
    """What the file has of each node."""
    with reading(history) as connection:
        runs = [run for one in skus_and_hosts(connection) for run in node_runs(connection, *one)]
    for run in runs:
        values = f"{len(run.norm) if run.counts else 'not'} of {len(run.values)} values count"
        values += f", at least {min(value.value for value in run.values):.4g}" if run.values else ""
        versions = [run.versions.get(name) for name in ("driver", "torch", "cuda")]
        yield f"  {run.host} of {run.sku} at {run.started_at}: {run.outcome}, {values}"
        yield f"    failed {[*run.failed]}, versions {versions}, {Path(run.path).name}"


def changed(run: RunDirectory, *records: AnyRecord) -> Path:
    """With other measurements."""
    run.measurements_jsonl.unlink()
    run.append_records(records)
    conclude(run, "incomplete", at(0))
    return run.path


def variants(folder: Path) -> Iterator[tuple[str, Path]]:
    """Runs to add one after the other, of nodes that tell which one it is."""

    def run(host: str, name: str = "", pace: float = 100.0, **options: Any) -> RunDirectory:
        return judged_run(folder / (name or host), hosts={host: [pace] * 2}, **options)

    for outcome in get_args(RunOutcome):
        yield outcome, run(outcome, driver="580.65", outcome=outcome).path
    wrong = run("wrong-data")
    blocker = Blocker("run", "acceptance", "wrong data", "wrong-data")
    judgement = conclude(wrong, "rejected", at(0), verdict())
    wrong.write_json(wrong.verdicts_json, replace(judgement, blockers=(blocker,)))
    yield "rejected for what no requirement asks", wrong.path
    yield "in another zone", run("zone", record={"started_at": "2026-01-01T03:30:00+05:30"}).path
    one, part = run("one").path, run("resumed", outcome="incomplete").path
    yield "one", one
    yield "it began in the same second", run("one", "two").path
    yield "the first one again, from an archive", run("one", "archive", record={"id": str(one)}).path
    yield "to be resumed", part
    resumed = run("resumed", "later", 90.0, record={"id": str(part)})
    conclude(resumed, "accepted", at(1))
    yield "resumed", resumed.path
    yield "what it had been", part
    killed = run("killed")
    [gang] = [one for one in killed.read_records() if isinstance(one, GangRecord)]
    yield "killed before it measured, a node was left out", changed(killed, gang, Survey("left-out", 0.0))
    yield "nothing was launched on a node", changed(run("none"), Survey("surveyed", 0.0))
    both = judged_run(folder / "versions", hosts={"v1": [100.0, 100.0], "v2": [100.0, 100.0]})
    mine, theirs = {"torch": "2.14.0", "cuda": "13.0"}, {"torch": "2.15.0", "cuda": None}
    records = [
        gang_at(one.places, versions=[mine, None, theirs, theirs]) if isinstance(one, GangRecord) else one
        for one in both.read_records()
    ]
    yield "nodes with other versions", changed(both, *records)
    for status in ("imported", "simulated"):
        yield status, run(status, record={"status": status}).path


def test_a_run_is_kept_once_with_its_values_and_versions(tmp_path: Path, history: Path) -> None:
    """It counts unless a requirement failed, waived or not; hosts take part that were launched, or else surveyed."""
    said, before = list[str](), list[str]()
    for name, path in variants(tmp_path):
        try:
            said.append(f"{name}: {add_run(history, path)}")
        except RunDirectoryError as error:
            said.append(f"{name}: {error.found}")
        now = list(told(history))
        said += [line for line in now if line not in before]
        said += [f"  no more: {line}" for line in before if line not in now]
        before = now
    assert_approved("history-runs.txt", "\n".join(said) + "\n")


def test_a_value_regresses_by_the_past_of_its_own_node(tmp_path: Path, history: Path) -> None:
    for night in range(7):
        pace = [100.0 + night % 2, 90.0 if night == 6 else 100.0]
        add_run(history, judged_run(tmp_path / str(night), night, {"n1": pace, "n2": pace}).path)
    assert [len(one.worse) for one in runs_of(history)] == [0] * 6 + [2]
    assert forget(history, "n1", SKU) == 7
    assert hosts(history) == ["n2"]


def test_runs_without_a_norm_push_none_out_of_the_window(tmp_path: Path, history: Path) -> None:
    """Runs that only looked at the node, were rejected, or regressed in all."""
    add_run(history, judged_run(tmp_path / "run").path)
    [sound] = runs_of(history)
    fallen = tuple(altered(value, has_regressed=True) for value in sound.values)
    without = [altered(sound, values=()), altered(sound, counts=False), altered(sound, values=fallen)]
    with writing(history) as connection:
        connection.execute("DELETE FROM nodes")
        for number, one in enumerate([sound] * (MOST_RUNS + 1) + without * MOST_RUNS):
            connection.execute(INSERT, row("n1", number, strict_json(altered(one, run=str(number)))))
    found = runs_of(history)
    assert [one.run for one in found] == [str(number) for number in range(1, 4 * MOST_RUNS + 1)]
    assert sum(bool(one.norm) for one in found) == MOST_RUNS
