"""Plans and runs as they are listed on a terminal."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.report.listings import run_lines, shortened
from pytest_ddpscale.run import run_directory
from pytest_ddpscale.util.regular_file import MOST_BYTES
from tests.approved import assert_approved, masked
from tests.report.judged import STARTED_UNIX_S, failed, write_judged_run


def test_a_long_plan_is_cut_short_where_an_outcome_follows() -> None:
    lines = [f"line {number}" for number in range(8)]
    assert shortened(lines) == [*lines[:5], "  and 3 more (-v, or --collect-only)"]
    assert shortened(lines[:6]) == lines[:6], "one line is not replaced by another"


def test_each_run_has_a_line_with_what_it_came_to_the_latest_last(tmp_path: Path) -> None:
    began = [STARTED_UNIX_S + 60 * number for number in range(4)]
    write_judged_run(tmp_path / "b", "accepted", ["n1"])
    later = write_judged_run(tmp_path / "a", "rejected", ["n1", "n2"], [failed()], started_unix_s=began[1])
    suite = write_judged_run(tmp_path / "c", "accepted", ["n1"], started_unix_s=began[2])
    (suite / "suite.json").write_text('{"suite": "tune", "headline": "nothing is faster"}')
    killed = write_judged_run(tmp_path / "d", "accepted", ["n1"], started_unix_s=began[3])
    (killed / "verdicts.json").unlink()
    (killed / "report.html").touch()
    (tmp_path / "latest").symlink_to(later)
    (tmp_path / "history.sqlite").touch()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    assert_approved("runs.txt", masked("\n".join(run_lines(tmp_path, 1000)), tmp_path))
    assert max(map(len, run_lines(tmp_path, 70)[3:])) <= 70


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
    for folder, found in ((tmp_path, "holds no run"), (tmp_path / "nowhere", "nowhere: does not exist")):
        with pytest.raises(RunDirectoryError, match=f"{found}; expected .* `pytest --gpu-sku=SKU` makes a run"):
            run_lines(folder, 100)
