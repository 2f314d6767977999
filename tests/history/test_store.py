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
    record_run,
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
from tests.builders.clusters import a100, faults
from tests.builders.nights import SKU, STUDY, VERSIONS, at, conclude, judged_run, key_value, measurements
from tests.builders.records import blocks_of, gang_at
from tests.rows import rows
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


@rows(
    ("outcome", "failed", "counts"),
    [
        ("accepted", (), True),
        ("partial", (), True),
        ("rejected", ("throughput_per_gpu[r-2gpu]",), False),
        ("accepted_with_waivers", ("throughput_per_gpu[r-2gpu]",), False),
    ],
)
def test_a_run_is_kept_with_its_values_and_versions_and_counts_unless_it_failed(
    tmp_path_factory: pytest.TempPathFactory, outcome: RunOutcome, failed: Sequence[str], counts: bool
) -> None:
    folder = tmp_path_factory.mktemp(outcome)
    run = judged_run(folder / "run", 3, outcome=outcome, driver="580.65",
                     record={"started_at": "2026-01-01T03:30:00+05:30"})  # fmt: skip
    assert add_run(folder / "h", run.path) == "added"
    [found] = runs_of(folder / "h")
    assert (found.path, found.started_at, found.outcome) == (str(run.path), "2025-12-31T22:00:00+00:00", outcome)
    assert found.versions == {"python": "3.11.2", **VERSIONS, "driver": "580.65"}
    assert (found.failed, found.counts, len(found.norm)) == (failed, counts, 4 * counts)
    assert sorted(one.value for one in found.values) == pytest.approx([100.0] * 4)


def test_a_run_is_known_by_its_id_wherever_it_is(tmp_path: Path, history: Path) -> None:
    paths = [
        judged_run(tmp_path / f"{n}", hosts={host: [100.0, 100.0]}).path for n, host in enumerate(("n1", "n1", "n2"))
    ]
    assert [add_run(history, path) for path in paths] == ["added"] * 3, "they began in one second"
    shutil.copytree(paths[0], tmp_path / "archive")
    assert add_run(history, tmp_path / "archive") == "known"
    assert [[one.path for one in runs_of(history, host)] for host in ("n1", "n2")] == [
        [str(path) for path in paths[:2]],
        [str(paths[2])],
    ]


def changed(run: RunDirectory, records: Sequence[AnyRecord], outcome: RunOutcome, judged_at: str) -> Path:
    """With other measurements."""
    run.measurements_jsonl.unlink()
    run.append_records(records)
    conclude(run, outcome, judged_at)
    return run.path


def test_a_resumed_run_takes_the_place_of_what_it_had_been(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", outcome="incomplete")
    earlier = tmp_path / "earlier"
    shutil.copytree(run.path, earlier)
    add_run(history, run.path)
    (who,) = gangs_by_number(run.read_records()).values()
    anew = blocks_of(measurements("n1", [90.0, 90.0]), gang=1)
    resumed = changed(run, [who, altered(who, gang=1), *anew, StudyEnd(STUDY.id, "rounds")], "accepted", at(1))
    assert add_run(history, resumed) == "replaced"
    assert add_run(history, earlier) == "known", "what it had been does not come back"
    [found] = runs_of(history)
    assert found.outcome == "accepted"
    assert {round(one.value) for one in found.values} == {90}


def test_hosts_take_part_that_were_launched_or_if_none_was_surveyed(tmp_path: Path, history: Path) -> None:
    """A killed run has its hosts; a node that was left out has no part in it."""
    run, surveyed = judged_run(tmp_path / "run"), Survey("n9", 0.0)
    gangs = [one for one in run.read_records() if isinstance(one, GangRecord)]
    add_run(history, changed(run, [*gangs, surveyed], "incomplete", at(0)))
    assert [one.values for one in runs_of(history)] == [()]
    assert runs_of(history, "n9") == []
    add_run(history, changed(judged_run(tmp_path / "nobody", 1), [surveyed], "incomplete", at(1)))
    assert [one.outcome for one in runs_of(history, "n9")] == ["incomplete"]


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


def test_simulated_runs_have_a_sku_of_their_own_and_imported_ones_are_refused(tmp_path: Path, history: Path) -> None:
    with pytest.raises(RunDirectoryError, match="was imported"):
        add_run(history, judged_run(tmp_path / "imported", record={"status": "imported"}).path)
    assert not history.exists()
    cluster = a100(8)
    run = RunDirectory.create(tmp_path / "run")
    simulated = SimulatedRun(cluster.plan(rounds=FEWEST_ROUNDS), cluster.performance, faults(), 0)
    write_simulated_run(run, cluster, simulated)
    judgement = conclude(run, "incomplete", judged_at=at(0))
    record_run(history, run, type(judgement)("a100-sxm4-80gb", "incomplete", "", ()))
    [found] = runs_of(history, "simulated-0", "simulated a100-sxm4-80gb")
    assert {one.gpu_index for one in found.values} == {None, *range(8)}


def test_versions_are_those_of_each_host(tmp_path: Path, history: Path) -> None:
    run = judged_run(tmp_path / "run", hosts={"n1": [100.0, 100.0], "n2": [100.0, 100.0]})
    mine, theirs = {"torch": "2.14.0", "cuda": "13.0"}, {"torch": "2.15.0", "cuda": None}
    records = [
        gang_at(one.places, versions=[mine, None, theirs, theirs]) if isinstance(one, GangRecord) else one
        for one in run.read_records()
    ]
    add_run(history, changed(run, records, "accepted", at(0)))
    assert runs_of(history, "n1")[0].versions["torch"] == "2.14.0"
    assert runs_of(history, "n2")[0].versions == {"python": "3.11.2", "torch": "2.15.0"}


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
