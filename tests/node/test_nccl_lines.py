"""What NCCL wrote before its rank failed is told by the agent of the rank's node, and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pytest_ddpscale.node.protocol import FileBytes, Joining, Report, Start, decode_news, encode_order
from pytest_ddpscale.run.rank_folder import STATUS_VARIABLE
from tests.builders.launches import task

LINES = [f"n1:42:42 [1] NCCL INFO Channel {number:02}/0 : 3[1] -> 2[0] via P2P/CUMEM" for number in range(30)]
LINES[27] = "n1:42:99 [1] misc/ibvwrap.cc:123 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out"
FAILURE = "rank      : 3 (local_rank: 1)\nexitcode  : 1 (pid: 42)\n"
LOG = "nccl-rank-3.log"
# In the place of torchrun: the second rank of the second node fails, or ends in order.
TORCHRUN = f"""
import os, sys
from pathlib import Path
folder = Path(os.environ["{STATUS_VARIABLE}"], os.environ.get("LIES_IN", ""))
(folder / "{LOG}").write_text({"".join(f"{line}{chr(10)}" for line in LINES)!r})
is_sound = os.environ["ENDS"] == "in order"
print("" if is_sound else {FAILURE!r}, flush=True)
sys.exit(0 if is_sound else 1)
"""


def told(tmp_path: Path, **environ: str) -> tuple[list[str], dict[str, str]]:
    """What the agent says of its ranks' NCCL, and the logs that it sends."""
    run = tmp_path / "site/torch/distributed/run.py"
    run.parent.mkdir(parents=True)
    (run.parent.parent / "__init__.py").touch()
    run.write_text(TORCHRUN, encoding="utf-8")
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest_ddpscale.node", "--node=1", "--host=n1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **paths, "ENDS": "badly", **environ},
    ) as agent:  # fmt: skip
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(encode_order(task(nodes=2)) + encode_order(Start("n0:29500")))
        agent.stdin.flush()
        joining = Joining()
        pieces = [found for line in agent.stdout if (found := decode_news(line)) is not None]
        said = [whole for piece in pieces if (whole := joining.whole(piece)) is not None]
    assert getattr(said[-1], "is_last", False)
    words = [one.words for one in said if isinstance(one, Report) and one.words]
    assert {word.local_rank for word in words} <= {1}
    return [line for word in words for line in word.nccl], {
        one.file: one.data.decode() for one in said if isinstance(one, FileBytes)
    }


WHOLE = "".join(f"{line}\n" for line in LINES)


def test_the_last_twenty_lines_of_a_failed_rank_are_told_and_its_log_is_kept(tmp_path: Path) -> None:
    assert told(tmp_path) == (LINES[-20:], {f"gang/{LOG}": WHOLE})


def test_of_ranks_that_end_in_order_nothing_is_kept(tmp_path: Path) -> None:
    assert told(tmp_path, ENDS="in order") == ([], {})


def test_a_log_that_the_user_asked_for_is_told_from_where_it_is_and_kept_for_the_run(tmp_path: Path) -> None:
    assert told(tmp_path, NCCL_DEBUG="WARN", LIES_IN="logs/run") == (LINES[-20:], {f"run/{LOG}": WHOLE})
