"""Rank 0 follows the supervisor's word about the round that has just ended, and no other."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.worker.steering import is_decided


@pytest.mark.parametrize("decided", [True, False])
def test_the_word_is_followed(tmp_path: Path, decided: bool) -> None:
    run = RunDirectory(tmp_path)
    run.write_json(run.steering_json, {"study": "weak/r", "round": 4, "decided": decided})
    assert is_decided(run, "weak/r", 4, patience_s=30.0) is decided


@pytest.mark.parametrize(
    "word",
    [
        {"study": "weak/r", "round": 3, "decided": True},
        {"study": "strong/r", "round": 4, "decided": True},
        {"study": "weak/r", "round": 4, "decided": "yes"},
        ["weak/r", 4, True],
    ],
)
def test_another_word_ends_nothing(tmp_path: Path, word: Any) -> None:
    run = RunDirectory(tmp_path)
    run.write_json(run.steering_json, word)
    assert not is_decided(run, "weak/r", 4, patience_s=0.1)


def test_without_a_word_measuring_goes_on(tmp_path: Path) -> None:
    began = time.monotonic()
    assert not is_decided(RunDirectory(tmp_path), "weak/r", 4, patience_s=0.2)
    assert time.monotonic() - began >= 0.2


def test_a_word_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_json(run.steering_json, {"study": "weak/r", "round": 3, "decided": False})
    word = {"study": "weak/r", "round": 4, "decided": True}
    speaker = threading.Timer(0.1, run.write_json, (run.steering_json, word))
    speaker.start()
    assert is_decided(run, "weak/r", 4, patience_s=30.0)
    speaker.join()
