"""The runs in a folder, as `ddpscale runs` lists them."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.report.listings import run_lines
from pytest_ddpscale.run import run_directory
from pytest_ddpscale.util.regular_file import MOST_BYTES
from tests.report.judged import STARTED_UNIX_S, failed, write_judged_run


def test_each_run_has_a_line_with_what_it_came_to_the_latest_last(tmp_path: Path) -> None:
    later = write_judged_run(tmp_path / "a", "rejected", ["n1", "n2"], [failed()], started_unix_s=STARTED_UNIX_S + 60)
    write_judged_run(tmp_path / "b", "accepted", ["n1"])
    suite = write_judged_run(tmp_path / "c", "accepted", ["n1"], started_unix_s=STARTED_UNIX_S + 120)
    (suite / "suite.json").write_text('{"suite": "tune", "headline": "nothing is faster"}')
    killed = write_judged_run(tmp_path / "d", "accepted", ["n1"], started_unix_s=STARTED_UNIX_S + 180)
    (killed / "verdicts.json").unlink()
    (tmp_path / "latest").symlink_to(later)
    (tmp_path / "history.sqlite").touch()
    (tmp_path / "d" / "report.html").touch()
    answer, report, _, heads, *lines = run_lines(tmp_path, 300)
    assert answer == f"{tmp_path / 'd'}: finished, not judged"
    assert report == f"report: {tmp_path / 'd' / 'report.html'}"
    assert heads.split() == ["run", "began,", "UTC", "SKU", "nodes", "devices", "outcome"]
    assert [line.split()[0] for line in lines] == ["b", "a", "c", "d"]
    assert [line.split()[4:6] for line in lines[:2]] == [["1", "1"], ["2", "2"]]
    assert "ACCEPTED" in lines[0]
    assert "REJECTED: " in lines[1]
    assert lines[2].endswith("suite tune: nothing is faster")
    assert lines[3].endswith("finished, not judged")
    assert max(map(len, run_lines(tmp_path, 70)[3:])) <= 70


def test_a_broken_run_is_one_line_and_hides_no_other(tmp_path: Path) -> None:
    write_judged_run(tmp_path / "good", "accepted", ["n1"])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    lines = run_lines(tmp_path, 300)
    assert any("broken: " in line and "bad" in line for line in lines)
    assert any("ACCEPTED" in line for line in lines)


def test_a_line_longer_than_any_record_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system leaves after a crash: zeros without an end."""
    monkeypatch.setattr(run_directory, "MOST_LINE_BYTES", 2**16)
    run = write_judged_run(tmp_path / "torn", "accepted", ["n1"])
    os.truncate(run / "measurements.jsonl", 2**28)
    tracemalloc.start()
    assert "broken: " in run_lines(tmp_path, 300)[-1]
    assert tracemalloc.get_traced_memory()[1] < 1.5 * MOST_BYTES  # which reading run.json asks for
    tracemalloc.stop()


def test_a_folder_without_runs_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no run; expected a folder of run directories"):
        run_lines(tmp_path, 100)
    with pytest.raises(RunDirectoryError, match="nowhere: does not exist"):
        run_lines(tmp_path / "nowhere", 100)
