"""Rank 0 follows the supervisor's word about the round that has just ended, and no other."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.worker.wanted_arms import needed_arms


@pytest.mark.parametrize("arms", [[], ["alone", "ddp@2"]])
def test_the_word_is_followed(tmp_path: Path, arms: list[str]) -> None:
    run = RunDirectory(tmp_path)
    run.write_json(run.steering_json, {"study": "weak/r", "round": 4, "arms": arms})
    assert needed_arms(run, "weak/r", 4, patience_s=30.0) == arms


@pytest.mark.parametrize(
    "word",
    [
        {"study": "weak/r", "round": 3, "arms": []},
        {"study": "strong/r", "round": 4, "arms": []},
        {"study": "weak/r", "round": 4, "arms": "none"},
        ["weak/r", 4, True],
    ],
)
def test_another_word_ends_nothing(tmp_path: Path, word: Any) -> None:
    run = RunDirectory(tmp_path)
    run.write_json(run.steering_json, word)
    assert needed_arms(run, "weak/r", 4, patience_s=0.1) is None


def test_without_a_word_measuring_goes_on(tmp_path: Path) -> None:
    began = time.monotonic()
    assert needed_arms(RunDirectory(tmp_path), "weak/r", 4, patience_s=0.2) is None
    assert time.monotonic() - began >= 0.2


def test_a_word_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_json(run.steering_json, {"study": "weak/r", "round": 3, "arms": ["alone"]})
    word = {"study": "weak/r", "round": 4, "arms": []}
    speaker = threading.Timer(0.1, run.write_json, (run.steering_json, word))
    speaker.start()
    assert needed_arms(run, "weak/r", 4, patience_s=30.0) == []
    speaker.join()
