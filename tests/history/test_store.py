"""The history file is ours, or it is left as it is; a run is in it once, with all that it told."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace as altered

from pytest_ddpscale.errors import HistoryError, RunDirectoryError
from pytest_ddpscale.history.store import (
    SCHEMA_VERSION,
    NodeRun,
    add_run,
    node_runs,
    reading,
    record_run,
    skus_and_hosts,
    writing,
)
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.records import GangRecord, StudyEnd, gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.writing import write_simulated_run
from tests.builders.clusters import a100, faults
from tests.builders.nights import SKU, STUDY, VERSIONS, at, conclude, judged_run, measurements
from tests.builders.records import blocks_of, gang_at
from tests.small_disk import small_disk

ROW = ("n1", "sku", "2026-01-01T00:00:00+00:00", "id", "2026-01-01T00:00:00+00:00", "0" * 64, "{}")
INSERT = "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?)"


def add(file: Path, host: str = "n1") -> None:
    with writing(file) as connection:
        connection.execute(INSERT, (host, *ROW[1:]))


def hosts(file: Path) -> list[str]:
    with reading(file) as connection:
        return [host for _, host in skus_and_hosts(connection)]


def sql(statement: str) -> Callable[[Path], None]:
    """On a history with a row."""

    def spoil(file: Path) -> None:
        add(file)
        with sqlite3.connect(file) as connection:
            connection.execute(statement)
        connection.close()

    return spoil


def other(statement: str) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
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


def test_the_file_is_made_with_its_folder_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b c?#%.sqlite"
    add(file, "one")
    add(file, "two")
    assert hosts(file) == ["one", "two"]
    assert [path.name for path in file.parent.iterdir()] == [file.name], "no journal is left"
    with reading(file) as connection:
        mode = connection.execute("PRAGMA journal_mode").fetchone()
    assert mode == ("delete",), "NFS cannot share a write-ahead log"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda file: file.write_text("a letter to somebody\n" * 100), "is not a history file, or is damaged"),
        (lambda file: file.write_text("x"), "is not a history file, or is damaged"),
        (other("CREATE TABLE runs (id TEXT)"), "another program's"),
        (other("PRAGMA application_id = 7"), "another program's"),
        (sql(f"PRAGMA user_version = {SCHEMA_VERSION + 1}"), f"has schema version 7; expected {SCHEMA_VERSION}. Ano"),
        (sql("PRAGMA user_version = 4"), f"has schema version 4; expected {SCHEMA_VERSION}. Another version of"),
        (damaged, "is not a history file, or is damaged"),
        (cut_short, "is not a history file, or is damaged"),
        (sql("DROP TABLE nodes"), "is not a history file, or is damaged"),
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


@pytest.mark.parametrize(
    "spoiled",
    ["replace(document, '100.0', '-1')", "replace(document, '100.0', '\"much\"')", "'{'", "'[]'", "x'00'", "'{}'"],
)
def test_rows_that_nobody_of_us_wrote_are_a_sentence(tmp_path: Path, spoiled: str) -> None:
    add_run(tmp_path / "h", judged_run(tmp_path / "run").path)
    with writing(tmp_path / "h") as connection:
        connection.execute(f"UPDATE nodes SET document = {spoiled}")
    with pytest.raises(HistoryError, match="is damaged"):
        runs_of(tmp_path / "h")


def test_an_empty_file_is_begun_but_not_read_and_reading_makes_none(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="does not exist"):
        hosts(tmp_path / "h")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "h").touch()
    with pytest.raises(HistoryError, match="is empty"):
        hosts(tmp_path / "h")
    add(tmp_path / "h")
    assert hosts(tmp_path / "h") == ["n1"]


def add_and_fail(file: Path) -> None:
    with writing(file) as connection:
        connection.execute(INSERT, ROW)
        raise KeyError


def test_what_is_raised_while_writing_undoes_it_all(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        add_and_fail(tmp_path / "h")
    add(tmp_path / "h", "later")
    assert hosts(tmp_path / "h") == ["later"]


KILLED = f"""
import os, signal, sys
from pathlib import Path
from pytest_ddpscale.history.store import writing

with writing(Path(sys.argv[1])) as connection:
    connection.execute("PRAGMA cache_spill = 1")
    connection.execute("PRAGMA cache_size = 1")
    for number in range(2000):
        connection.execute("{INSERT}", (f"killed{{number}}", *{ROW[1:]!r}))
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


def test_a_file_that_stays_locked_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddpscale.history.store.BUSY_S", 0.05)
    file = tmp_path / "h"
    with writing(file), pytest.raises(HistoryError, match="was locked by others for too long") as refused:
        add(file)
    assert "--add RUN_DIR" in refused.value.action


def test_what_cannot_be_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for use, file in ((add, tmp_path), (hosts, tmp_path), (add, tmp_path / "file" / "h")):
        with pytest.raises(HistoryError, match="cannot be used"):
            use(file)


def test_a_read_only_disk_can_be_read_and_not_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kib=256) as disk:
        add(disk.path / "h")
        disk.make_read_only()
        assert hosts(disk.path / "h") == ["n1"]
        for name in ("h", "new", "folder/new"):
            with pytest.raises(HistoryError, match="cannot be used"):
                add(disk.path / name, "other")


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kib=256) as disk:
        add(disk.path / "h")
        disk.fill()
        with pytest.raises(HistoryError, match="cannot be used"):
            add(disk.path / "h", "x" * 100_000)
        disk.make_room()
        assert hosts(disk.path / "h") == ["n1"]


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def runs_of(file: Path, host: str = "n1", sku: str = SKU) -> list[NodeRun]:
    with reading(file) as connection:
        return node_runs(connection, sku, host)


def test_a_run_is_kept_with_its_values_and_versions(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", 3, outcome="rejected", driver="580.65")
    assert add_run(history, run.path) == "added"
    [found] = runs_of(history)
    assert (found.path, found.started_at, found.outcome) == (str(run.path), at(3), "rejected")
    assert found.versions == {"python": "3.11.2", **VERSIONS, "driver": "580.65"}
    assert (found.failed, found.counts) == (("throughput_per_gpu[r-2gpu]",), False)
    assert sorted(one.value for one in found.values) == pytest.approx([100.0] * 4)


def test_a_run_that_was_moved_or_copied_is_the_same_run(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run")
    add_run(history, run.path)
    shutil.copytree(run.path, tmp_path / "archive")
    assert add_run(history, tmp_path / "archive") == "known"
    assert [one.path for one in runs_of(history)] == [str(run.path)]


def test_runs_that_began_in_one_second_are_told_apart(tmp_path: Path, history: Path) -> None:
    for number, host in enumerate(("n1", "n1", "n2")):
        assert add_run(history, judged_run(tmp_path / str(number), hosts={host: [100.0, 100.0]}).path) == "added"
    assert [len(runs_of(history, host)) for host in ("n1", "n2")] == [2, 1]


@pytest.mark.parametrize("others", [(), ("n2",)])
def test_a_value_regresses_by_the_past_of_its_own_node(tmp_path: Path, history: Path, others: Sequence[str]) -> None:
    for night in range(7):
        pace = [100.0 + night % 2, 90.0 if night == 6 else 100.0]
        add_run(history, judged_run(tmp_path / str(night), night, dict.fromkeys(("n1", *others), pace)).path)
    assert [len(one.worse) for one in runs_of(history)] == [0] * 6 + [2]


def test_a_resumed_run_takes_the_place_of_what_it_had_been(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", outcome="incomplete")
    earlier = tmp_path / "earlier"
    shutil.copytree(run.path, earlier)
    add_run(history, run.path)
    (who,) = gangs_by_number(run.read_records()).values()
    anew = blocks_of(measurements("n1", [90.0, 90.0]), gang=1)
    run.measurements_jsonl.unlink()
    run.append_records([who, altered(who, gang=1), *anew, StudyEnd(STUDY.id, "rounds")])
    conclude(run, "accepted", judged_at=at(1))
    assert add_run(history, run.path) == "replaced"
    assert add_run(history, earlier) == "known", "what it had been does not come back"
    [found] = runs_of(history)
    assert found.outcome == "accepted"
    assert {round(one.value) for one in found.values} == {90}


def test_hosts_of_a_killed_run_that_measured_nothing_are_known(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", outcome="incomplete")
    gangs = list(gangs_by_number(run.read_records()).values())
    run.measurements_jsonl.unlink()
    run.append_records(gangs)
    conclude(run, "incomplete", at(0))
    add_run(history, run.path)
    [found] = runs_of(history)
    assert found.values == ()


def test_a_node_that_was_left_out_has_no_part_in_the_run(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", driver="580.65")
    surveyed = Survey("n9", 0.0)
    run.append_record(surveyed)
    conclude(run, "accepted", at(0))
    add_run(history, run.path)
    assert runs_of(history, "n9") == []
    nobody = judged_run(tmp_path / "nobody", 1, outcome="incomplete")
    nobody.measurements_jsonl.unlink()
    nobody.append_record(surveyed)
    conclude(nobody, "incomplete", at(1))
    add_run(history, nobody.path)
    assert [one.outcome for one in runs_of(history, "n9")] == ["incomplete"]


def test_simulated_runs_have_a_sku_of_their_own(tmp_path: Path, history: Path) -> None:
    cluster = a100(8)
    run = RunDirectory.create(tmp_path / "run")
    simulated = SimulatedRun(cluster.plan(rounds=FEWEST_ROUNDS), cluster.performance, faults(), 0)
    write_simulated_run(run, cluster, simulated)
    judgement = conclude(run, "incomplete", judged_at=at(0))
    record_run(history, run, type(judgement)("a100-sxm4-80gb", "incomplete", "", ()))
    with reading(history) as connection:
        assert skus_and_hosts(connection) == [("simulated a100-sxm4-80gb", "simulated-0")]
    [found] = runs_of(history, "simulated-0", "simulated a100-sxm4-80gb")
    assert {one.gpu_index for one in found.values} == {None, *range(8)}


def test_what_another_tool_measured_is_refused(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", record={"status": "imported"})
    with pytest.raises(RunDirectoryError, match="was imported"):
        add_run(history, run.path)
    assert not history.exists()


def test_times_of_another_zone_are_kept_in_utc(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", record={"started_at": "2026-01-01T03:30:00+05:30"})
    add_run(history, run.path)
    assert runs_of(history)[0].started_at == "2025-12-31T22:00:00+00:00"


def test_versions_are_those_of_each_host(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", hosts={"n1": [100.0, 100.0], "n2": [100.0, 100.0]})
    mine, theirs = {"torch": "2.14.0", "cuda": "13.0"}, {"torch": "2.15.0", "cuda": None}
    records = [
        gang_at(one.places, versions=[mine, None, theirs, theirs]) if isinstance(one, GangRecord) else one
        for one in run.read_records()
    ]
    run.measurements_jsonl.unlink()
    run.append_records(records)
    conclude(run, "accepted", at(0))
    add_run(history, run.path)
    assert runs_of(history, "n1")[0].versions["torch"] == "2.14.0"
    assert runs_of(history, "n2")[0].versions == {"python": "3.11.2", "torch": "2.15.0"}
