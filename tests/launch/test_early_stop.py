"""After each round the supervisor says whether the study goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.launch.early_stop import EarlyStop
from pytest_ddpscale.results.run_directory import RunDirectory


class JudgeAfter:
    """Wants more rounds of one arm until it has heard some measurements."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.heard: list[dict[str, Any]] = []

    def hear(self, record: dict[str, Any]) -> None:
        self.heard.append(record)

    def needed_arms(self, study_id: str) -> list[str]:
        mine = [r for r in self.heard if r.get("study") == study_id and r["kind"] == "measurement"]
        return ["alone"] if len(mine) < self.enough else []


def word(run: RunDirectory) -> Any:
    return json.loads(run.steering_json.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("enough", "arms"), [(2, ["alone"]), (1, [])])
def test_the_end_of_a_round_is_answered(tmp_path: Path, enough: int, arms: list[str]) -> None:
    run = RunDirectory(tmp_path)
    steering = EarlyStop(JudgeAfter(enough), run)
    steering.hear({"kind": "measurement", "study": "weak/r"})
    steering.hear({"kind": "round_end", "study": "weak/r", "round": 4})
    assert word(run) == {"study": "weak/r", "round": 4, "arms": arms}


def test_a_word_that_cannot_be_written_costs_the_advice_only(tmp_path: Path) -> None:
    steering = EarlyStop(JudgeAfter(1), RunDirectory(tmp_path / "missing"))
    steering.hear({"kind": "round_end", "study": "weak/r", "round": 4})


def test_other_records_are_heard_and_not_answered(tmp_path: Path) -> None:
    run, judge = RunDirectory(tmp_path), JudgeAfter(0)
    steering = EarlyStop(judge, run)
    others: list[dict[str, Any]] = [{}, {"kind": "startup", "rank": 0}, {"kind": "study_start", "study": "weak/r"}]
    for record in others:
        steering.hear(record)
    assert len(judge.heard) == 3
    assert not run.steering_json.exists()
