"""The exact command line of torchrun on a node, and what it says about how ranks ended."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_ddpscale.node.torchrun import Place, RankExit, ended_pids, rank_exits, rank_log, torchrun_command

# As torch prints it at its end.
SUMMARY = """\
W1121 20:04:21.395000 7786 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 8023 closing signal \
SIGTERM
E1121 20:04:21.510000 7786 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 \
(pid: 8024) of binary: /venv/bin/python
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
pytest_ddpscale.worker FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_20:04:21
  host      : n2
  rank      : 8 (local_rank: 0)
  exitcode  : -15 (pid: 8023)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 8023
[2]:
  time      : 2026-11-21_20:04:21
  host      : n2
  rank      : 10 (local_rank: 2)
  exitcode  : 1 (pid: 8025)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_20:04:21
  host      : n2
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 8024)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 8024
============================================================
"""
WORKER = ["--run-dir", "/run dir", "--studies", "weak/r"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def test_on_one_node_it_needs_no_address() -> None:
    place = Place(0, 1, "n1", None)
    assert torchrun_command(place, "g1", 8, Path("/logs/gang-0"), WORKER) == [
        *TORCHRUN, "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=8", "--max-restarts=0",
        "--redirects=3", "--log-dir=/logs/gang-0", "-m", "pytest_ddpscale.worker", *WORKER,
    ]  # fmt: skip


@pytest.mark.parametrize(("index", "is_host"), [(0, "true"), (1, "false"), (2, "false")])
def test_on_several_the_first_one_hosts_the_rendezvous(index: int, is_host: str) -> None:
    place = Place(index, 3, f"n{index + 1}", "n1:23456")
    assert torchrun_command(place, "g1", 2, Path("/logs/gang-0"), WORKER) == [
        *TORCHRUN, "--nnodes=3", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:23456", "--rdzv-id=g1",
        f"--rdzv-conf=is_host={is_host},join_timeout=300", f"--local-addr=n{index + 1}", "--nproc-per-node=2",
        "--max-restarts=0", "--redirects=3", "--log-dir=/logs/gang-0", "-m", "pytest_ddpscale.worker", *WORKER,
    ]  # fmt: skip


def test_ranks_that_failed_are_told_with_the_first_one_first() -> None:
    later = [RankExit(0, -15, 8023, False), RankExit(2, 1, 8025, False)]
    assert rank_exits(SUMMARY) == [RankExit(1, -9, 8024, True), *later]


def test_ranks_that_torchrun_ended_itself_are_told_apart() -> None:
    assert ended_pids(SUMMARY) == [8023]


@pytest.mark.parametrize("output", ["", "Killed", SUMMARY[:200], "rank : 1 (local_rank: x)"])
def test_output_that_says_nothing_of_failures(output: str) -> None:
    assert rank_exits(output) == []


def test_a_ranks_log_is_that_of_the_last_attempt(tmp_path: Path) -> None:
    assert rank_log(tmp_path, 1) is None
    for age, name in enumerate(("none_b", "none_a")):
        folder = tmp_path / name / "attempt_0" / "1"
        folder.mkdir(parents=True)
        (folder / "stderr.log").touch()
        os.utime(folder / "stderr.log", (1000 + age, 1000 + age))
    assert rank_log(tmp_path, 1) == tmp_path / "none_a" / "attempt_0" / "1" / "stderr.log"
    assert rank_log(tmp_path, 0) is None
