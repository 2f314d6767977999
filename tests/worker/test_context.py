"""What a rank says of itself, and rank 0 following the supervisor's word about the round that has just ended."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_ddpscale.run.rank_folder import RankFailure, RankStatus, WantedArms, leave, left, read_status
from pytest_ddpscale.worker.context import RankProgress, needed_arms
from pytest_ddpscale.worker.control import host_name


@pytest.fixture
def here(tmp_path: Path) -> RankProgress:
    return RankProgress(tmp_path, 1)


def test_start_up_is_told_at_once(here: RankProgress, tmp_path: Path) -> None:
    assert read_status(tmp_path, 1) == RankStatus(pid=os.getpid(), local_rank=1, entered=1)


def test_a_new_phase_is_told_with_all_that_was_set_before(here: RankProgress, tmp_path: Path) -> None:
    here.rank, here.study, here.arm, here.round = 5, "weak/r", "ddp@2", 3
    here.phase = "timed block"
    here.count_step()
    here.count_step()
    found = RankStatus(
        pid=os.getpid(), rank=5, local_rank=1, phase="timed block", study="weak/r", arm="ddp@2", round=3, entered=2,
        steps=2,
    )  # fmt: skip
    assert read_status(tmp_path, 1) == found


def test_the_same_phase_again_is_seen_to_be_another(here: RankProgress, tmp_path: Path) -> None:
    here.phase = "warm-up"
    here.phase = "warm-up"
    found = read_status(tmp_path, 1)
    assert found is not None
    assert found.entered == 3


def test_a_failure_is_left_with_the_agent(here: RankProgress, tmp_path: Path) -> None:
    here.rank, here.study = 5, "weak/r"
    here.tell_failure(ValueError("no answer from http://ann:hunter2@proxy:8080"))
    told = left(tmp_path, RankFailure, 1)
    assert told is not None
    message = "no answer from http://***@proxy:8080"
    assert replace(told, unix_s=0.0) == RankFailure(
        local_rank=1, rank=5, study="weak/r", phase="start-up", type="ValueError", message=message
    )


def test_without_an_agent_nothing_is_told() -> None:
    here = RankProgress()
    here.phase = "warm-up"
    here.count_step()
    assert here.phase == "warm-up"
    here.tell_failure(ValueError("no"))


def test_a_folder_that_cannot_be_written_from_the_start_costs_the_word_only(tmp_path: Path) -> None:
    here = RankProgress(tmp_path / "missing", 1)
    here.phase = "warm-up"
    here.count_step()
    here.tell_failure(ValueError("no"))


def test_nor_does_one_that_is_gone_later(tmp_path: Path) -> None:
    folder = tmp_path / "status"
    folder.mkdir()
    here = RankProgress(folder, 1)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    here.phase = "warm-up"
    here.count_step()
    here.tell_failure(ValueError("no"))


def test_the_node_is_named_as_its_agent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDPSCALE_HOST", raising=False)
    assert host_name() == os.uname().nodename
    monkeypatch.setenv("DDPSCALE_HOST", "n7")
    assert host_name() == "n7"


def test_a_failure_is_told_whatever_characters_its_message_has(here: RankProgress, tmp_path: Path) -> None:
    here.tell_failure(OSError("no such file: /data/\udcff.pt"))
    found = left(tmp_path, RankFailure, 1)
    assert found is not None
    assert found.message == "no such file: /data/\\udcff.pt"


def test_of_an_interface_that_is_not_there_the_variables_that_name_one_are_told(
    here: RankProgress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth9")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    here.tell_failure(RuntimeError("Bootstrap : no socket interface found"))
    found = left(tmp_path, RankFailure, 1)
    assert found is not None
    assert found.message == "Bootstrap : no socket interface found\nNCCL_SOCKET_IFNAME=eth9"


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
