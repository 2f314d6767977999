"""torchrun on one node: its command line, and its report of how ranks ended."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from pytest_ddpscale.node.addresses import address_toward, interface_of
from pytest_ddpscale.node.protocol import ProcessExit

# torchrun's final report: `rank : 1 (local_rank: 1)`, `exitcode : -9 (pid: 123)`.
_FAILURE = re.compile(r"rank\s*: \d+ \(local_rank: (\d+)\)\s+exitcode\s*: (-?\d+) \(pid: (\d+)\)")
_ROOT_CAUSE = "Root Cause"
# Logged by torchrun before it ends the remaining ranks after a failure.
_ENDED = re.compile(r"Sending process (\d+) closing signal")


def torchrun_command(gang_id: str, ranks_per_node: int, log_dir: Path, rendezvous: Path) -> list[str]:
    """``python -m torch.distributed.run … -m pytest_ddpscale.worker …`` with the running interpreter, not PATH's.

    Each node has its own torchrun, independent of the others. Its rendezvous is a file, because a store of torchrun's
    would listen on all interfaces.
    """
    # Without an address torchrun resolves this host's name, which may fail.
    store = ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file", f"--rdzv-endpoint={rendezvous}"]
    node = ["--nnodes=1", *store, f"--rdzv-id={gang_id}", "--local-addr=127.0.0.1"]
    ranks = [f"--nproc-per-node={ranks_per_node}", "--max-restarts=0"]
    logs = ["--redirects=3", f"--log-dir={log_dir}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    return [*torchrun, *node, *ranks, *logs, "-m", "pytest_ddpscale.worker"]


def interfaces(nodes: int, endpoint: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that make ranks listen only where other ranks are, unless the user chose otherwise.

    NCCL listens only on interfaces that it uses for data. On several nodes that choice is left to NCCL or the user.

    Args:
        nodes: number of nodes.
        endpoint: ``ADDRESS:PORT`` on the first node, where rank 0 hosts the store.
        environ: the ranks' environment otherwise.
    """
    if nodes == 1:
        # With IPv6, NCCL skips ::1 and would find no interface at all.
        is_ipv6 = environ.get("NCCL_SOCKET_FAMILY") == "AF_INET6"
        return {"GLOO_SOCKET_IFNAME": "lo"} | ({} if is_ipv6 else {"NCCL_SOCKET_IFNAME": "lo"})
    try:
        found = interface_of(address_toward(endpoint.rpartition(":")[0]))
    except OSError:  # ranks will report which host cannot be reached
        found = None
    return {"GLOO_SOCKET_IFNAME": found} if found else {}


def rank_exits(output: str) -> list[ProcessExit]:
    """The ranks that failed according to torchrun, the root cause first."""
    head, _, root = output.partition(_ROOT_CAUSE)
    found = [(part, match) for part in (root, head) for match in _FAILURE.finditer(part)]
    return [ProcessExit(int(m[1]), int(m[2]), int(m[3]), part is root) for part, m in found]


def ended_pids(output: str) -> list[int]:
    """The processes that torchrun reports to have ended itself because another one failed."""
    return [int(pid) for pid in _ENDED.findall(output)]
