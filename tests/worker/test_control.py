"""The control plane over a real TCPStore."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from torch.distributed import DistError, TCPStore

from pytest_ddpscale.worker.control import Control, connect


@pytest.fixture
def pair() -> tuple[Control, Control]:
    timeout = timedelta(seconds=2)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
    client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False, timeout=timeout)
    return Control(server, 0, 0, 2), Control(client, 1, 1, 2)


def test_what_one_rank_says_another_hears(pair: tuple[Control, Control]) -> None:
    first, second = pair
    second.say("weak/x/0/alone", {"steps": 5, "step_s": [0.1, 0.2]})
    assert first.hear("weak/x/0/alone") == {"steps": 5, "step_s": [0.1, 0.2]}


def test_hearing_waits_until_it_is_said(pair: tuple[Control, Control]) -> None:
    first, second = pair
    speaker = threading.Timer(0.2, second.say, ("late", 1))
    speaker.start()
    assert first.hear("late") == 1
    speaker.join()


def test_nobody_waits_for_ever(pair: tuple[Control, Control]) -> None:
    with pytest.raises(DistError):
        pair[0].hear("never")


def test_what_was_taken_is_gone(pair: tuple[Control, Control]) -> None:
    first, second = pair
    second.say("once", 1)
    assert first.take("once") == 1
    with pytest.raises(DistError):
        first.hear("once")


def test_nan_is_not_passed_on(pair: tuple[Control, Control]) -> None:
    with pytest.raises(ValueError, match=r"JSON compliant|Out of range"):
        pair[0].say("x", float("nan"))


def test_a_worker_that_torchrun_did_not_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="started by torchrun"):
        connect(timedelta(seconds=1))
