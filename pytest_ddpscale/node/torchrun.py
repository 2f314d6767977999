"""torchrun on one node: its command line, and what it says about how ranks ended."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# As torchrun prints them at its end: `rank : 1 (local_rank: 1)`, `exitcode : -9 (pid: 123)`.
_FAILURE = re.compile(r"rank\s*: \d+ \(local_rank: (\d+)\)\s+exitcode\s*: (-?\d+) \(pid: (\d+)\)")
_ROOT_CAUSE = "Root Cause"
# As it says before it ends the ranks that are left once one has failed.
_ENDED = re.compile(r"Sending process (\d+) closing signal")


@dataclass(frozen=True)
class Place:
    """This node among those of the gang.

    Attributes:
        index: in Slurm's order.
        nodes: how many there are.
        host: this node's name as Slurm has it.
        endpoint: ``HOST:PORT`` of the rendezvous on the first node; None with one node.
    """

    index: int
    nodes: int
    host: str
    endpoint: str | None


@dataclass(frozen=True)
class RankExit:
    """How a rank ended.

    Attributes:
        local_rank: on this node.
        exit_code: its process's; negative for a signal's number.
        pid: its process's.
        is_root_cause: torchrun saw it end first.
    """

    local_rank: int
    exit_code: int
    pid: int
    is_root_cause: bool


def torchrun_command(
    place: Place, gang_id: str, ranks_per_node: int, log_dir: Path, worker_arguments: Sequence[str]
) -> list[str]:
    """``python -m torch.distributed.run … -m pytest_ddpscale.worker …`` of the running interpreter, not of PATH's."""
    if place.endpoint is None:
        # Without an address torchrun asks for this host's name, which may not resolve, or to something unreachable.
        rendezvous = ["--standalone", "--local-addr=127.0.0.1"]
    else:
        rendezvous = [
            f"--nnodes={place.nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={place.endpoint}",
            f"--rdzv-id={gang_id}",
            # Otherwise torchrun finds out by resolving names who hosts the store, and may find nobody, or two.
            f"--rdzv-conf=is_host={'true' if place.index == 0 else 'false'},join_timeout=300",
            f"--local-addr={place.host}",
        ]
    ranks = [f"--nproc-per-node={ranks_per_node}", "--max-restarts=0"]
    logs = ["--redirects=3", f"--log-dir={log_dir}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    return [*torchrun, *rendezvous, *ranks, *logs, "-m", "pytest_ddpscale.worker", *worker_arguments]


def rank_exits(output: str) -> list[RankExit]:
    """The ranks of which torchrun says that they failed, the first one first."""
    head, _, root = output.partition(_ROOT_CAUSE)
    found = [(part, match) for part in (root, head) for match in _FAILURE.finditer(part)]
    return [RankExit(int(m[1]), int(m[2]), int(m[3]), part is root) for part, m in found]


def ended_pids(output: str) -> list[int]:
    """The processes that torchrun says it ended itself, because another one failed."""
    return [int(pid) for pid in _ENDED.findall(output)]


def rank_log(log_dir: Path, local_rank: int) -> Path | None:
    """Where torchrun keeps what a rank wrote to its standard error; None if it has not begun to."""
    found = sorted(log_dir.glob(f"*/attempt_*/{local_rank}/stderr.log"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None
