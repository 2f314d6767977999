"""What a rank says of itself, and rank 0 following the supervisor's word about the round that has just ended."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_ddpscale.run.rank_folder import (
    RankFailure,
    RankStatus,
    WantedArms,
    read_message,
    read_status,
    write_message,
)
from pytest_ddpscale.worker.context import RankProgress, needed_arms
from pytest_ddpscale.worker.control import host_name
from tests.rows import rows


def test_each_phase_is_told_at_once_with_all_that_was_set_before(tmp_path: Path) -> None:
    here = RankProgress(tmp_path, 1)
    assert read_status(tmp_path, 1) == RankStatus(pid=os.getpid(), local_rank=1, entered=1)
    here.rank, here.study, here.arm, here.round = 5, "weak/r", "ddp@2", 3
    for entered in (2, 3):  # the same phase again is seen to be another, with steps of its own
        here.phase = "timed block"
        here.count_step()
        here.count_step()
        found = RankStatus(
            pid=os.getpid(), rank=5, local_rank=1, phase="timed block", study="weak/r", arm="ddp@2", round=3,
            entered=entered, steps=2,
        )  # fmt: skip
        assert read_status(tmp_path, 1) == found


NO_INTERFACE = "Bootstrap : no socket interface found"


@rows(
    ("error", "message"),
    [
        (ValueError("no answer from http://ann:hunter2@proxy:8080"), "no answer from http://***@proxy:8080"),
        (ValueError("no such file: /data/\udcff.pt"), "no such file: /data/\\udcff.pt"),
        (ValueError(NO_INTERFACE), f"{NO_INTERFACE}\nNCCL_SOCKET_IFNAME=eth9"),
    ],
)
def test_a_failure_is_left_with_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth9")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    here = RankProgress(tmp_path, 1)
    here.rank, here.study = 5, "weak/r"
    here.tell_failure(error)
    told = read_message(tmp_path, RankFailure, 1)
    assert told is not None
    assert replace(told, unix_s=0.0) == RankFailure(
        local_rank=1, rank=5, study="weak/r", phase="start-up", type="ValueError", message=message
    )


def test_a_folder_that_is_missing_or_gone_costs_the_word_only(tmp_path: Path) -> None:
    folder = tmp_path / "status"
    folder.mkdir()
    later = RankProgress(folder, 1)
    shutil.rmtree(folder)
    for here in (RankProgress(), RankProgress(folder, 1), later):
        here.phase = "warm-up"
        here.count_step()
        here.tell_failure(ValueError("no"))


def test_the_node_is_named_as_its_agent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDPSCALE_HOST", raising=False)
    assert host_name() == os.uname().nodename
    monkeypatch.setenv("DDPSCALE_HOST", "n7")
    assert host_name() == "n7"


NOBODY = WantedArms("weak/r", 4, ())


@rows(
    ("word", "expected"),
    [
        (None, None),  # nobody waits for a supervisor for ever
        (NOBODY, []),
        (WantedArms("weak/r", 4, ("alone", "ddp@2")), ["alone", "ddp@2"]),
        (WantedArms("weak/r", 3, ()), None),
        (WantedArms("strong/r", 4, ()), None),
        ("", None),
        ("{", None),
        ("[]", None),
        ('{"say":"wanted","study":"weak/r","round":4,"arms":"none"}', None),
    ],
)
def test_a_word_about_the_round_is_followed(
    tmp_path: Path, word: WantedArms | str | None, expected: list[str] | None
) -> None:
    if isinstance(word, WantedArms):
        write_message(tmp_path, word)
    elif word is not None:
        [file] = tmp_path.iterdir()
        file.write_text(word)
    patience_s = 0.05 if expected is None else 30.0
    assert needed_arms(tmp_path, "weak/r", 4, patience_s) == expected


def test_a_word_that_comes_late_is_heard(tmp_path: Path) -> None:
    write_message(tmp_path, WantedArms("weak/r", 3, ("alone",)))
    speaker = threading.Timer(0.1, write_message, (tmp_path, NOBODY))
    speaker.start()
    assert needed_arms(tmp_path, "weak/r", 4, patience_s=30.0) == []
    speaker.join()
