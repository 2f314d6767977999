"""The ranks of a node: what they said last, and what the kernel says of their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_ddpscale.node.protocol import Failed, Gone, RankSeen
from pytest_ddpscale.node.ranks import LocalRanks, oom_kills, process_state
from pytest_ddpscale.run.rank_folder import FINISHED, RankFailure, RankStatus, StatusWriter, write_message


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    found = subprocess.Popen(["sleep", "60"])
    yield found
    found.kill()
    found.wait()


def wait_for_state(pid: int, state: str) -> None:
    until = time.monotonic() + 20
    while process_state(pid) != state:
        assert time.monotonic() < until, f"{process_state(pid)} instead of {state}"
        time.sleep(0.01)


def test_a_process_is_seen_to_sleep_stop_and_end(process: subprocess.Popen[bytes]) -> None:
    wait_for_state(process.pid, "S")
    process.send_signal(signal.SIGSTOP)
    wait_for_state(process.pid, "T")
    process.kill()
    wait_for_state(process.pid, "Z")
    process.wait()
    assert process_state(process.pid) == ""


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    program = tmp_path / "a) R (b"
    program.symlink_to("/bin/sleep")
    odd = subprocess.Popen([str(program), "60"])
    try:
        wait_for_state(odd.pid, "S")
    finally:
        odd.kill()
        odd.wait()


def test_the_kernels_count_of_processes_ended_for_lack_of_memory_is_a_number() -> None:
    assert oom_kills() >= 0


def status(pid: int, local_rank: int = 0) -> RankStatus:
    return RankStatus(
        pid=pid, rank=4 + local_rank, local_rank=local_rank, phase="timed block", study="weak/r", arm="ddp@2", round=3,
        entered=12,
    )  # fmt: skip


def test_a_rank_that_lives_has_a_beat_with_its_state_and_steps(tmp_path: Path) -> None:
    ranks = LocalRanks(tmp_path, 2, 1, "n2")
    assert ranks.beats() == []
    writer = StatusWriter(tmp_path, 1)
    writer.tell(status(os.getpid(), 1))
    writer.count_step()
    assert ranks.beats() == [
        RankSeen(
            node=1, host="n2", pid=os.getpid(), rank=5, local_rank=1, phase="timed block", study="weak/r", arm="ddp@2",
            round=3, entered=12, steps=1, state="R",
        )
    ]  # fmt: skip
    assert ranks.news() == []


def test_a_rank_that_is_gone_is_told_once_with_where_it_was(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    ranks = LocalRanks(tmp_path, 2, 1, "n2")
    StatusWriter(tmp_path, 0).tell(status(process.pid))
    assert ranks.news() == []
    process.kill()
    wait_for_state(process.pid, "Z")  # as torchrun leaves it for a moment
    [news] = ranks.news()
    assert isinstance(news, Gone)
    assert (news.rank, news.phase) == (4, "timed block")
    assert ranks.news() == []
    assert ranks.beats() == []


def test_a_failure_is_told_in_place_of_a_processs_end(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    ranks, writer = LocalRanks(tmp_path, 1, 1, "n2"), StatusWriter(tmp_path, 0)
    writer.tell(status(process.pid))
    write_message(writer.folder, RankFailure(local_rank=0, rank=4, type="ValueError", message="x" * 5000))
    process.kill()
    process.wait()
    [failed] = ranks.news()
    assert failed == Failed(node=1, host="n2", local_rank=0, rank=4, type="ValueError", message="x" * 599 + "…")
    assert ranks.news() == []


def test_a_rank_that_has_finished_may_go(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    StatusWriter(tmp_path, 0).tell(replace(status(process.pid), phase=FINISHED))
    process.kill()
    process.wait()
    assert LocalRanks(tmp_path, 1, 1, "n2").news() == []
