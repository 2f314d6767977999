"""Rank 0 follows the supervisor's word about the round that has just ended, and no other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pytest_ddpscale.run.rank_folder import WantedArms, leave
from pytest_ddpscale.worker.context import needed_arms


@pytest.mark.parametrize("arms", [(), ("alone", "ddp@2")])
def test_the_word_is_followed(tmp_path: Path, arms: tuple[str, ...]) -> None:
    leave(tmp_path, WantedArms("weak/r", 4, arms))
    assert needed_arms(tmp_path, "weak/r", 4, patience_s=30.0) == list(arms)


@pytest.mark.parametrize("word", [WantedArms("weak/r", 3, ()), WantedArms("strong/r", 4, ())])
def test_a_word_about_something_else_is_none(tmp_path: Path, word: WantedArms) -> None:
    leave(tmp_path, word)
    assert needed_arms(tmp_path, "weak/r", 4, patience_s=0.05) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"say":"wanted","study":"weak/r","round":4,"arms":"none"}'])
def test_garbage_is_none_either(tmp_path: Path, content: str) -> None:
    leave(tmp_path, WantedArms("weak/r", 4, ()))
    [file] = tmp_path.iterdir()
    file.write_text(content)
    assert needed_arms(tmp_path, "weak/r", 4, patience_s=0.05) is None


def test_without_a_supervisor_nobody_waits_for_ever(tmp_path: Path) -> None:
    assert needed_arms(tmp_path, "weak/r", 4, patience_s=0.05) is None


def test_a_word_that_comes_late_is_heard(tmp_path: Path) -> None:
    leave(tmp_path, WantedArms("weak/r", 3, ("alone",)))
    speaker = threading.Timer(0.1, leave, (tmp_path, WantedArms("weak/r", 4, ())))
    speaker.start()
    assert needed_arms(tmp_path, "weak/r", 4, patience_s=30.0) == []
    speaker.join()
