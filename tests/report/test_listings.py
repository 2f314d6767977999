"""Plans and runs as they are listed on a terminal."""

from __future__ import annotations

import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.estimate import PAIRS_ROUND_S, estimate
from pytest_ddpscale.plan.pairing import pair_study
from pytest_ddpscale.report.listings import plan_lines, run_lines, shortened
from pytest_ddpscale.run import run_directory
from pytest_ddpscale.util.regular_file import MOST_BYTES
from tests.builders.judgements import PLAN
from tests.report.judged import STARTED_UNIX_S, failed, write_judged_run


def test_pairs_of_nodes_come_last_with_the_rounds_that_they_take_at_least() -> None:
    plan = replace(PLAN, nodes=4, ranks_per_node=8, pairs=pair_study("cuda"))
    assert plan_lines(plan, 5, isolate=False)[-1].endswith("  at least 3 rounds of pairs of nodes")
    without = estimate(replace(plan, pairs=None))
    assert estimate(plan).seconds == pytest.approx(without.seconds + 3 * PAIRS_ROUND_S)
    assert estimate(plan).most_seconds == pytest.approx(without.most_seconds + 11 * PAIRS_ROUND_S)


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
    answer, report, _, _, *lines = run_lines(tmp_path, 300)
    assert (answer, report) == (f"{killed}: finished, not judged", f"report: {killed / 'report.html'}")
    assert [line.split()[0] for line in lines] == ["bad", "b", "a", "c", "d"]
    assert [line.split()[4:6] for line in lines[1:3]] == [["1", "1"], ["2", "2"]]
    said = ("broken: ", "ACCEPTED", "REJECTED: ", "suite tune: nothing is faster", "finished, not judged")
    assert all(what in line for what, line in zip(said, lines, strict=True))
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
    with pytest.raises(RunDirectoryError, match="holds no run; expected a folder of run directories"):
        run_lines(tmp_path, 100)
    with pytest.raises(RunDirectoryError, match="nowhere: does not exist"):
        run_lines(tmp_path / "nowhere", 100)
