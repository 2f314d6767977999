"""What NCCL wrote before its rank failed is told by the agent of the rank's node, and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pytest_ddpscale.node.protocol import decode, encode
from pytest_ddpscale.results.rank_status import STATUS_VARIABLE

LINES = [f"n1:42:42 [1] NCCL INFO Channel {number:02}/0 : 3[1] -> 2[0] via P2P/CUMEM" for number in range(30)]
LINES[27] = "n1:42:99 [1] misc/ibvwrap.cc:123 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out"
FAILURE = "rank      : 3 (local_rank: 1)\nexitcode  : 1 (pid: 42)\n"
LOG = "nccl-rank-3.log"
# In the place of torchrun: the second rank of the second node fails, or ends in order.
TORCHRUN = f"""
import os, sys
from pathlib import Path
Path(next(one.partition("=")[2] for one in sys.argv if one.startswith("--log-dir="))).mkdir(parents=True)
(Path(os.environ[os.environ["LIES_IN"]]) / "{LOG}").write_text({"".join(f"{line}{chr(10)}" for line in LINES)!r})
is_sound = os.environ["ENDS"] == "in order"
print("" if is_sound else {FAILURE!r}, flush=True)
sys.exit(0 if is_sound else 1)
"""


def told(tmp_path: Path, **environ: str) -> list[str]:
    """What the agent says of its ranks' NCCL."""
    run = tmp_path / "site/torch/distributed/run.py"
    run.parent.mkdir(parents=True)
    (run.parent.parent / "__init__.py").touch()
    run.write_text(TORCHRUN, encoding="utf-8")
    (tmp_path / "logs").mkdir()
    slurm = {"SLURM_PROCID": "1", "SLURMD_NODENAME": "n1"}
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest_ddpscale.node", "--gang=g", "--slurm", "--ranks-per-node=2",
         f"--log-dir={tmp_path}/logs/gang-0", "--", "--x"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, **slurm, **paths, "ENDS": "badly", "LIES_IN": STATUS_VARIABLE, **environ},
    ) as agent:  # fmt: skip
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(encode({"say": "start", "nodes": 2, "endpoint": "n0:29500"}))
        agent.stdin.flush()
        said = [decode(line.decode()) for line in agent.stdout]
    words = [one for one in said if one is not None and one["say"] == "nccl"]
    assert {one["local_rank"] for one in words} <= {1}
    return [str(one["text"]) for one in words]


def test_the_last_twenty_lines_of_a_failed_rank_are_told_and_its_log_is_kept(tmp_path: Path) -> None:
    assert told(tmp_path) == LINES[-20:]
    assert (tmp_path / "logs/gang-0/n1" / LOG).read_text(encoding="utf-8").splitlines() == LINES


def test_of_ranks_that_end_in_order_nothing_is_kept(tmp_path: Path) -> None:
    assert told(tmp_path, ENDS="in order") == []
    assert not list((tmp_path / "logs").rglob(LOG))


def test_a_log_that_the_user_asked_for_is_told_from_where_it_is(tmp_path: Path) -> None:
    assert told(tmp_path, NCCL_DEBUG="WARN", LIES_IN="KEPT", KEPT=str(tmp_path / "logs")) == LINES[-20:]
    assert list((tmp_path / "logs").rglob(LOG)) == [tmp_path / "logs" / LOG]
