"""The exact command line of torchrun on a node, and what it says about how ranks ended."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_ddpscale.node.protocol import ProcessExit
from pytest_ddpscale.node.ranks import ended_pids, interfaces, rank_exits, torchrun_command
from tests.rows import rows

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
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def test_each_node_has_its_own_which_meets_itself_in_a_file() -> None:
    assert torchrun_command("g1", 8, Path("/logs/gang-0"), Path("/shm/x/rendezvous")) == [
        *TORCHRUN, "--nnodes=1", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file",
        "--rdzv-endpoint=/shm/x/rendezvous", "--rdzv-id=g1", "--local-addr=127.0.0.1", "--nproc-per-node=8",
        "--max-restarts=0", "--redirects=3", "--log-dir=/logs/gang-0", "-m", "pytest_ddpscale.worker",
    ]  # fmt: skip


def test_on_one_node_ranks_listen_on_loopback() -> None:
    assert interfaces(1, "127.0.0.1:20000", {}) == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def test_nccl_that_is_to_use_ipv6_chooses_as_it_knows_no_loopback() -> None:
    assert interfaces(1, "127.0.0.1:20000", {"NCCL_SOCKET_FAMILY": "AF_INET6"}) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert "NCCL_SOCKET_IFNAME" in interfaces(1, "127.0.0.1:20000", {"NCCL_SOCKET_FAMILY": "AF_INET"})


def test_on_several_gloo_listens_on_the_interface_that_leads_to_the_first_and_nccl_chooses() -> None:
    assert interfaces(2, "127.0.0.1:20000", {}) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert interfaces(2, "nobody.invalid:20000", {}) == {}


def test_ranks_that_failed_are_told_with_the_first_one_first() -> None:
    later = [ProcessExit(0, -15, 8023, False), ProcessExit(2, 1, 8025, False)]
    assert rank_exits(SUMMARY) == [ProcessExit(1, -9, 8024, True), *later]


def test_ranks_that_torchrun_ended_itself_are_told_apart() -> None:
    assert ended_pids(SUMMARY) == [8023]


@rows("output", ["", "Killed", SUMMARY[:200], "rank : 1 (local_rank: x)"])
def test_output_that_says_nothing_of_failures(output: str) -> None:
    assert rank_exits(output) == []
