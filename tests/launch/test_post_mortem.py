"""A dead gang is explained by its first failing rank, else by its exit code and last words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.launch.post_mortem import describe, failure_reports, last_lines

STARTED = 1000.0


def report(rank: int, unix_s: float, **changes: Any) -> dict[str, Any]:
    return {
        "rank": rank, "host": "node7", "study": "weak/r", "arm": "ddp@2", "round": 3, "phase": "timed block",
        "type": "OutOfMemoryError", "message": "CUDA out of memory", "unix_s": unix_s,
    } | changes  # fmt: skip


def write(log_dir: Path, *reports: dict[str, Any]) -> None:
    for one in reports:
        (log_dir / f"rank-{one['rank']}.error.json").write_text(json.dumps(one), encoding="utf-8")


class TestFailureReports:
    def test_the_first_failure_comes_first_whatever_its_rank(self, tmp_path: Path) -> None:
        write(tmp_path, report(0, 1005.0), report(1, 1002.0), report(10, 1003.5))
        assert [found["rank"] for found in failure_reports(tmp_path, STARTED)] == [1, 10, 0]

    def test_reports_of_an_earlier_gang_are_left_out(self, tmp_path: Path) -> None:
        write(tmp_path, report(0, 999.9), report(1, 1000.0))
        assert [found["rank"] for found in failure_reports(tmp_path, STARTED)] == [1]

    @pytest.mark.parametrize("torn", ["", "{", '{"rank": 0', "[]", "7", '{"rank": 0}', '{"unix_s": "late"}', "\x00"])
    def test_a_torn_report_is_left_out(self, tmp_path: Path, torn: str) -> None:
        write(tmp_path, report(1, 1002.0))
        (tmp_path / "rank-0.error.json").write_text(torn, encoding="utf-8")
        assert [found["rank"] for found in failure_reports(tmp_path, STARTED)] == [1]

    def test_bytes_that_are_no_text_are_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "rank-0.error.json").write_bytes(b"\xff\xfe{")
        assert failure_reports(tmp_path, STARTED) == []

    def test_nobody_reported(self, tmp_path: Path) -> None:
        (tmp_path / "gang-0.log").write_text("…", encoding="utf-8")
        assert failure_reports(tmp_path, STARTED) == []
        assert failure_reports(tmp_path / "missing", STARTED) == []


class TestDescribe:
    def describe(self, tmp_path: Path, reports: list[dict[str, Any]], exit_code: int | None = 1) -> str:
        return describe(reports, exit_code, tmp_path / "gang-0.log", tmp_path / "gang-0")

    def test_one_sentence_says_who_failed_where_and_with_what(self, tmp_path: Path) -> None:
        assert self.describe(tmp_path, [report(3, 1001.0)]) == (
            "rank 3 on node7 failed in timed block (study weak/r, arm ddp@2, round 3): "
            "OutOfMemoryError: CUDA out of memory"
        )

    def test_the_first_round_is_named_too(self, tmp_path: Path) -> None:
        assert "round 0)" in self.describe(tmp_path, [report(3, 1001.0, round=0)])

    def test_before_any_study_there_is_no_place(self, tmp_path: Path) -> None:
        early = report(0, 1001.0, study=None, arm=None, round=None, phase="start-up", type="RuntimeError", message="no")
        assert self.describe(tmp_path, [early]) == "rank 0 on node7 failed in start-up: RuntimeError: no"

    def test_those_that_failed_after_it_are_counted(self, tmp_path: Path) -> None:
        reports = [report(3, 1001.0), report(0, 1002.0), report(1, 1002.0)]
        assert self.describe(tmp_path, reports).endswith("CUDA out of memory; 2 more ranks failed after it")
        assert self.describe(tmp_path, reports[:2]).endswith("CUDA out of memory; 1 more rank failed after it")

    def test_without_a_report_the_exit_code_and_the_last_words_speak(self, tmp_path: Path) -> None:
        (tmp_path / "gang-0.log").write_text("one\ntwo\n", encoding="utf-8")
        assert self.describe(tmp_path, [], exit_code=-9) == (
            "the gang exited with code -9 without a report from a rank; last output:\n  one\n  two"
        )

    def test_a_gang_that_was_stopped_has_no_exit_code_to_speak_of(self, tmp_path: Path) -> None:
        (tmp_path / "gang-0.log").write_text("", encoding="utf-8")
        assert self.describe(tmp_path, [], exit_code=None) == (
            "the gang was stopped without a report from a rank; last output:\n  (empty)"
        )

    def test_a_ranks_own_errors_are_preferred_to_torchruns_output(self, tmp_path: Path) -> None:
        (tmp_path / "gang-0.log").write_text("torchrun's summary\n", encoding="utf-8")
        for rank, words in ((0, ""), (1, "Segmentation fault\n")):
            folder = tmp_path / "gang-0" / "none_x" / "attempt_0" / str(rank)
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text(words, encoding="utf-8")
        assert self.describe(tmp_path, []).endswith("last output:\n  Segmentation fault")

    def test_no_log_at_all_is_said(self, tmp_path: Path) -> None:
        assert self.describe(tmp_path, []).endswith("last output:\n  (no log: No such file or directory)")


class TestLastLines:
    def test_only_the_end_is_shown(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text("".join(f"line {i}\n" for i in range(100)), encoding="utf-8")
        assert last_lines(log).splitlines() == [f"  line {i}" for i in range(88, 100)]

    def test_torchruns_prefixes_are_taken_off(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text(
            "E0301 12:00:00.123000 4711 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9)\n"
            "W0301 12:00:00.123 4711 site-packages/torch/distributed/run.py:793] [default0]:slow\n"
            "Error E0301 stays\n",
            encoding="utf-8",
        )
        assert last_lines(log).splitlines() == ["  failed (exitcode: -9)", "  slow", "  Error E0301 stays"]

    def test_bytes_that_are_no_text_do_not_hide_the_rest(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_bytes(b"caf\xe9\nlast\n")
        assert last_lines(log).splitlines() == ["  caf\N{REPLACEMENT CHARACTER}", "  last"]
