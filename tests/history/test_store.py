"""The history file is ours, or it is left as it is; a run is in it once, with all that it told."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace as altered

from pytest_ddpscale.errors import HistoryError, OptionError, RunDirectoryError
from pytest_ddpscale.history.key_values import KeyValue
from pytest_ddpscale.history.store import (
    MOST_RUNS,
    SCHEMA_VERSION,
    NodeRun,
    add_run,
    forget,
    node_runs,
    reading,
    skus_and_hosts,
    writing,
)
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import GangRecord, StudyEnd, gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import RunOutcome
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.writing import write_simulated_run
from tests.approved import assert_approved
from tests.builders.clusters import a100, faults
from tests.builders.nights import SKU, STUDY, at, conclude, judged_run, key_value, measurements
from tests.builders.records import blocks_of, gang_at
from tests.small_disk import small_disk

ROW = (SKU, "2026-01-01T00:00:00+00:00", "id", "2026-01-01T00:00:00+00:00", "0" * 64, "{}")
INSERT = "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?)"
NOT_OURS = "is not a history file, or is damaged"


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "a" / "b c?#%.sqlite"


def add(file: Path, host: str = "n1") -> None:
    with writing(file) as connection:
        connection.execute(INSERT, (host, *ROW))


def hosts(file: Path) -> list[str]:
    with reading(file) as connection:
        return [host for _, host in skus_and_hosts(connection)]


def runs_of(file: Path, host: str = "n1", sku: str = SKU) -> list[NodeRun]:
    with reading(file) as connection:
        return node_runs(connection, sku, host)


def sql(statement: str, ours: bool = True) -> Callable[[Path], None]:
    """On a history with a row, or on a file of another program."""

    def spoil(file: Path) -> None:
        if ours:
            add(file)
        with sqlite3.connect(file) as connection:
            connection.execute(statement)
        connection.close()

    return spoil


def damaged(file: Path) -> None:
    add(file)
    size = file.stat().st_size
    with file.open("r+b") as content:
        content.seek(4096)
        content.write(b"\xa5" * (size - 4096))


def cut_short(file: Path) -> None:
    add(file)
    os.truncate(file, 5000)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda file: file.write_text("a letter to somebody\n" * 100), NOT_OURS),
        (lambda file: file.write_text("x"), NOT_OURS),
        (sql("CREATE TABLE runs (id TEXT)", ours=False), NOT_OURS),
        (sql("PRAGMA application_id = 7", ours=False), NOT_OURS),
        (sql(f"PRAGMA user_version = {SCHEMA_VERSION + 1}"), f"has schema version 7; expected {SCHEMA_VERSION}. Anoth"),
        (sql("PRAGMA user_version = 4"), f"has schema version 4; expected {SCHEMA_VERSION}. Another version of"),
        (damaged, NOT_OURS),
        (cut_short, NOT_OURS),
        (sql("DROP TABLE nodes"), NOT_OURS),
    ],
)
def test_what_is_not_ours_is_refused_and_left_as_it_is(
    tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    file = tmp_path / "h"
    spoil(file)
    before = file.read_bytes()
    for use in (add, hosts):
        with pytest.raises(HistoryError) as refused:
            use(file)
        assert words in str(refused.value)
        assert refused.value.where == str(file)
        assert "not changed" in refused.value.action
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


def add_and_fail(file: Path) -> None:
    with writing(file) as connection:
        connection.execute(INSERT, ("n1", *ROW))
        raise KeyError


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
    with pytest.raises(KeyError):
        add_and_fail(history)
    add(history, "one")
    add(history, "two")
    assert hosts(history) == ["one", "two"]
    assert list(history.parent.iterdir()) == [history], "no journal is left"
    with reading(history) as connection:
        mode = connection.execute("PRAGMA journal_mode").fetchone()
    assert mode == ("delete",), "NFS cannot share a write-ahead log"


KILLED = f"""
import os, signal, sys
from pathlib import Path
from pytest_ddpscale.history.store import writing

with writing(Path(sys.argv[1])) as connection:
    connection.execute("PRAGMA cache_spill = 1")
    connection.execute("PRAGMA cache_size = 1")
    for number in range(2000):
        connection.execute("{INSERT}", (f"killed{{number}}", *{ROW!r}))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_nothing_of_its_run(tmp_path: Path) -> None:
    """Even with pages in the file already: the journal that it leaves rolls them back."""
    file = tmp_path / "h"
    add(file, "before")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(file)], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert file.with_name("h-journal").exists()
    assert hosts(file) == ["before"]
    add(file, "later")
    assert hosts(file) == ["before", "later"]


WRITERS, RUNS = 4, 3
WRITER = """
import sys
from pathlib import Path
from pytest_ddpscale.history.store import add_run

print("ready", flush=True)
sys.stdin.readline()
print(*[add_run(Path(sys.argv[1]), Path(run)) for run in sys.argv[2:]])
"""


def test_all_runs_of_many_writers_are_kept_once(tmp_path: Path, history: Path) -> None:
    """The file is not there yet: they make it together, too. Each run is added by two of them."""
    runs = [
        [str(judged_run(tmp_path / f"{writer}-{run}", run, {f"n{writer}": [100.0, 99.0]}).path) for run in range(RUNS)]
        for writer in range(WRITERS)
    ]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(history), *runs[number], *runs[(number + 1) % WRITERS]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(WRITERS)
    ]  # fmt: skip
    assert [writer.stdout and writer.stdout.readline() for writer in writers] == ["ready\n"] * WRITERS
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [word for writer in writers for word in writer.communicate(timeout=60)[0].split()]
    assert sorted(said) == ["added"] * WRITERS * RUNS + ["known"] * WRITERS * RUNS
    kept = [run for writer in range(WRITERS) for run in runs_of(history, f"n{writer}")]
    assert sorted(run.path for run in kept) == sorted(path for theirs in runs for path in theirs)
    assert [len(run.values) for run in kept] == [4] * WRITERS * RUNS


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
        values += f", at least {min(one.value for one in run.values):.4g}" if run.values else ""
        versions = {name: run.versions.get(name) for name in ("driver", "torch", "cuda")}
        gpus = sorted({one.place.number for one in run.values})
        yield f"  {run.host} of {run.sku} at {run.started_at}: {run.outcome}, {values}, {', '.join(gpus)}"
        yield f"    failed {list(run.failed)}, versions {versions}, {Path(run.path).name}"


def changed(run: RunDirectory, *records: AnyRecord, outcome: RunOutcome = "incomplete", at_night: int = 0) -> Path:
    """With other measurements."""
    run.measurements_jsonl.unlink()
    run.append_records(records)
    conclude(run, outcome, at(at_night))
    return run.path


def variants(folder: Path) -> Iterator[tuple[str, Path]]:
    """Runs to add one after the other, of nodes that tell which one it is."""

    def run(host: str, name: str = "", **options: Any) -> RunDirectory:
        return judged_run(folder / (name or host), hosts={host: [100.0, 100.0]}, **options)

    for outcome in get_args(RunOutcome):
        yield outcome, run(outcome, driver="580.65", outcome=outcome).path
    first = run("one").path
    yield "in another zone", run("zone", record={"started_at": "2026-01-01T03:30:00+05:30"}).path
    yield "one", first
    yield "it began in the same second", run("one", "two").path
    yield "the first one again, from an archive", Path(shutil.copytree(first, folder / "archive"))
    resumed = run("resumed", outcome="incomplete")
    yield "to be resumed", resumed.path
    before = Path(shutil.copytree(resumed.path, folder / "before"))
    (who,) = gangs_by_number(resumed.read_records()).values()
    anew = blocks_of(measurements("resumed", [90.0, 90.0]), gang=1)
    end = StudyEnd(STUDY.id, "rounds")
    yield "resumed", changed(resumed, who, altered(who, gang=1), *anew, end, outcome="accepted", at_night=1)
    yield "what it had been", before
    killed, surveyed = run("killed"), Survey("left-out", 0.0)
    gangs = [one for one in killed.read_records() if isinstance(one, GangRecord)]
    yield "killed before it measured, a node was left out", changed(killed, *gangs, surveyed)
    yield "nothing was launched on a node", changed(run("none"), Survey("surveyed", 0.0))
    both = judged_run(folder / "versions", hosts={"v1": [100.0, 100.0], "v2": [100.0, 100.0]})
    mine, theirs = {"torch": "2.14.0", "cuda": "13.0"}, {"torch": "2.15.0", "cuda": None}
    records = [
        gang_at(one.places, versions=[mine, None, theirs, theirs]) if isinstance(one, GangRecord) else one
        for one in both.read_records()
    ]
    yield "nodes with other versions", changed(both, *records, outcome="accepted")
    yield "imported", run("imported", record={"status": "imported"}).path
    cluster, simulated = a100(8), RunDirectory.create(folder / "simulated")
    plan = cluster.plan(rounds=FEWEST_ROUNDS)
    write_simulated_run(simulated, cluster, SimulatedRun(plan, cluster.performance, faults(), 0))
    simulated.write_json(simulated.run_json, altered(simulated.read_run(), started_at=at(0)))
    conclude(simulated, "incomplete", judged_at=at(0))
    yield "simulated", simulated.path


def test_a_run_is_kept_once_with_its_values_and_versions(tmp_path: Path, history: Path) -> None:
    """It counts unless a requirement failed, waived or not; hosts take part that were launched, or else surveyed."""
    said, before = list[str](), set[str]()
    for name, path in variants(tmp_path):
        try:
            said.append(f"{name}: {add_run(history, path)}")
        except RunDirectoryError as error:
            said.append(f"{name}: {error.found}")
        now = list(told(history))
        said += [line for line in now if line not in before]
        said += [f"  no more: {line}" for line in before - {*now}]
        before = {*now}
    assert_approved("history-runs.txt", "\n".join(said) + "\n")


@pytest.mark.parametrize("others", [(), ("n2",)])
def test_a_value_regresses_by_the_past_of_its_own_node(tmp_path: Path, history: Path, others: Sequence[str]) -> None:
    for night in range(7):
        pace = [100.0 + night % 2, 90.0 if night == 6 else 100.0]
        add_run(history, judged_run(tmp_path / str(night), night, dict.fromkeys(("n1", *others), pace)).path)
    assert [len(one.worse) for one in runs_of(history)] == [0] * 6 + [2]
    assert forget(history, "n1", SKU) == 7
    with pytest.raises(OptionError, match="--forget: found 'n2', of which the history has no run"):
        forget(history, "n2", "b200")
    assert len(hosts(history)) == len(others)


def test_runs_without_a_norm_push_none_out_of_the_window(history: Path) -> None:
    """Runs that only looked at the node, were rejected, or regressed in all."""
    sound, fallen = (key_value(),), (key_value(has_regressed=True),)
    kinds: Sequence[tuple[bool, tuple[KeyValue, ...]]] = (
        *[(True, sound)] * (MOST_RUNS + 1), *[(True, ()), (False, sound), (True, fallen)] * MOST_RUNS,
    )  # fmt: skip
    with writing(history) as connection:
        for number, (counts, values) in enumerate(kinds):
            one = NodeRun(host="n1", sku=SKU, run=str(number), path="", started_at=at(number), outcome="partial",
                          counts=counts, versions={}, values=values)  # fmt: skip
            connection.execute(INSERT, ("n1", SKU, one.started_at, one.run, "", "", strict_json(one)))
    found = runs_of(history)
    assert [one.run for one in found] == [str(number) for number in range(1, len(kinds))]
    assert sum(bool(one.norm) for one in found) == MOST_RUNS
