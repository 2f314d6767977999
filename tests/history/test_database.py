"""The history file is ours, or it is left as it is."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddpscale.errors import HistoryError
from pytest_ddpscale.history.database import DEFAULT_HISTORY, SCHEMA_VERSION, history_file_of, reading, writing
from pytest_ddpscale.run.run_directory import RUNS_FOLDER, RunDirectory
from tests.small_disk import small_disk

ROW = ("id", "/run", "sku", "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00", "accepted", "0" * 64)


def add(file: Path, identity: str = "id") -> None:
    with writing(file) as connection:
        connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", (identity, *ROW[1:]))


def ids(file: Path) -> list[str]:
    with reading(file) as connection:
        return [identity for (identity,) in connection.execute("SELECT id FROM runs ORDER BY id")]


def text_file(file: Path) -> None:
    file.write_text("a letter to somebody\n" * 100)


def short_file(file: Path) -> None:
    file.write_text("x")


def other_database(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE runs (id TEXT)")
    connection.close()


def other_application(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA application_id = 7")
    connection.close()


def newer(file: Path) -> None:
    add(file)
    connection = sqlite3.connect(file)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()


def older(file: Path) -> None:
    add(file)
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version = 1")
    connection.close()


def damaged(file: Path) -> None:
    add(file)
    size = file.stat().st_size
    with file.open("r+b") as content:
        content.seek(4096)
        content.write(b"\xa5" * (size - 4096))


def cut_short(file: Path) -> None:
    add(file)
    os.truncate(file, 5000)


def without_a_table(file: Path) -> None:
    add(file)
    connection = sqlite3.connect(file)
    connection.execute("DROP TABLE runs")
    connection.close()


def test_the_file_is_made_with_its_folder_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b c?#%.sqlite"
    add(file, "one")
    add(file, "two")
    assert ids(file) == ["one", "two"]
    assert [path.name for path in file.parent.iterdir()] == [file.name], "no journal is left"


def test_there_is_no_write_ahead_log_which_nfs_cannot_share(tmp_path: Path) -> None:
    add(tmp_path / "h")
    with reading(tmp_path / "h") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (text_file, "is not a history file, or is damaged"),
        (short_file, "is not a history file, or is damaged"),
        (other_database, "is another program's database"),
        (other_application, "is another program's database"),
        (newer, f"has schema version {SCHEMA_VERSION + 1}; expected at most {SCHEMA_VERSION}"),
        (older, "has schema version 1; expected 4. An earlier pytest-ddpscale wrote it: remove it, or keep using"),
        (damaged, "is not a history file, or is damaged"),
        (cut_short, "is not a history file, or is damaged"),
        (without_a_table, "is not a history file, or is damaged"),
    ],
)
def test_what_is_not_ours_is_refused_and_left_as_it_is(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    file = tmp_path / "h"
    spoil(file)
    before = file.read_bytes()
    for use in (add, ids):
        with pytest.raises(HistoryError) as refused:
            use(file)
        assert words in str(refused.value)
        assert refused.value.where == str(file)
        assert "not changed" in refused.value.action
        assert file.read_bytes() == before


def test_an_empty_file_is_begun_but_not_read(tmp_path: Path) -> None:
    file = tmp_path / "h"
    file.touch()
    with pytest.raises(HistoryError, match="is empty"):
        ids(file)
    add(file)
    assert ids(file) == ["id"]


def test_reading_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="does not exist"):
        ids(tmp_path / "h")
    assert list(tmp_path.iterdir()) == []


def add_and_fail(file: Path) -> None:
    with writing(file) as connection:
        connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", ROW)
        raise KeyError


def test_what_is_raised_while_writing_undoes_it_all(tmp_path: Path) -> None:
    file = tmp_path / "h"
    with pytest.raises(KeyError):
        add_and_fail(file)
    add(file, "later")
    assert ids(file) == ["later"]


KILLED = f"""
import os, signal, sys
from pathlib import Path
from pytest_ddpscale.history.database import writing

with writing(Path(sys.argv[1])) as connection:
    connection.execute("PRAGMA cache_spill = 1")
    connection.execute("PRAGMA cache_size = 1")
    for number in range(2000):
        connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", (f"killed{{number}}", *{ROW[1:]!r}))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_nothing_of_its_run(tmp_path: Path) -> None:
    """Even with pages in the file already: the journal that it leaves rolls them back."""
    file = tmp_path / "h"
    add(file, "before")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(file)], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert file.with_name("h-journal").exists()
    assert ids(file) == ["before"]
    add(file, "later")
    assert ids(file) == ["before", "later"]


def test_a_file_that_stays_locked_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddpscale.history.database.BUSY_S", 0.05)
    file = tmp_path / "h"
    with writing(file), pytest.raises(HistoryError, match="was locked by others for too long") as refused:
        add(file)
    assert "--add RUN_DIR" in refused.value.action


def test_a_number_that_no_database_takes_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="cannot store the run's values"), writing(tmp_path / "h") as connection:
        connection.execute("INSERT INTO key_values (world_size) VALUES (?)", (10**30,))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    for use in (add, ids):
        with pytest.raises(HistoryError, match="cannot be used"):
            use(tmp_path)


def test_where_no_folder_can_be_made_there_is_no_history(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match="cannot be used"):
        add(tmp_path / "file" / "h")


def test_a_read_only_disk_can_be_read_and_not_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kib=256) as disk:
        add(disk.path / "h")
        disk.make_read_only()
        assert ids(disk.path / "h") == ["id"]
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
        assert ids(disk.path / "h") == ["id"]


def test_it_is_the_file_that_was_asked_for(tmp_path: Path) -> None:
    asked = tmp_path / "site.sqlite"
    assert history_file_of(asked, RunDirectory(RUNS_FOLDER / "run")) == asked


def test_it_lies_beside_the_runs_of_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert history_file_of(None, RunDirectory(RUNS_FOLDER / "run")) == DEFAULT_HISTORY
    absolute = tmp_path / RUNS_FOLDER / "run"
    assert history_file_of(None, RunDirectory(absolute)) == tmp_path / DEFAULT_HISTORY


@pytest.mark.parametrize("path", ["run", "elsewhere/run", f"{RUNS_FOLDER}/run/judged-1"])
def test_a_run_elsewhere_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert history_file_of(None, RunDirectory(Path(path))) is None
