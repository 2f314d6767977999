"""One node's ranks: torchrun, which starts them; their latest status and their processes; their logs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from pytest_ddpscale.node.addresses import address_toward, interface_of
from pytest_ddpscale.node.protocol import MOST_TEXT, Failed, Gone, ProcessExit, RankSeen
from pytest_ddpscale.run.rank_folder import FINISHED, MOST_TRACE_BYTES, TRACES, RankFailure, read_message, read_status
from pytest_ddpscale.util.masking import masked_text

# torchrun's final report: `rank : 1 (local_rank: 1)`, `exitcode : -9 (pid: 123)`.
_FAILURE = re.compile(r"rank\s*: \d+ \(local_rank: (\d+)\)\s+exitcode\s*: (-?\d+) \(pid: (\d+)\)")
_ROOT_CAUSE = "Root Cause"
# Logged by torchrun before it ends the remaining ranks after a failure.
_ENDED_BY_TORCHRUN = re.compile(r"Sending process (\d+) closing signal")


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
        interface = interface_of(address_toward(endpoint.rpartition(":")[0]))
    except OSError:  # ranks will report which host cannot be reached
        interface = None
    return {"GLOO_SOCKET_IFNAME": interface} if interface else {}


def rank_exits(output: str) -> list[ProcessExit]:
    """The ranks that failed according to torchrun, the root cause first."""
    head, _, root = output.partition(_ROOT_CAUSE)
    matches = [(part, match) for part in (root, head) for match in _FAILURE.finditer(part)]
    return [ProcessExit(int(m[1]), int(m[2]), int(m[3]), part is root) for part, m in matches]


def ended_pids(output: str) -> list[int]:
    """The processes that torchrun reports to have ended itself because another one failed."""
    return [int(pid) for pid in _ENDED_BY_TORCHRUN.findall(output)]


# States of a process that has ended, in /proc/PID/stat (proc(5)).
_ENDED = {"Z", "X", "x", ""}


class LocalRanks:
    """Watches the ranks of this node."""

    def __init__(self, folder: Path, count: int, node: int, host: str) -> None:
        self._folder = folder
        self._count = count
        self._where: dict[str, Any] = {"node": node, "host": host}
        self._reported: set[int] = set()  # local ranks whose end was reported

    def beats(self) -> list[RankSeen]:
        """One message per rank that has begun and is running."""
        return [
            RankSeen(**self._where, **asdict(status), state=state)
            for local_rank in range(self._count)
            if (status := read_status(self._folder, local_rank)) is not None
            and (state := process_state(status.pid)) not in _ENDED
        ]

    def news(self) -> list[Failed | Gone]:
        """Events since the last call: failures reported by ranks, and ranks that ended early without a report."""
        news: list[Failed | Gone] = []
        for local_rank in sorted(set(range(self._count)) - self._reported):
            status = read_status(self._folder, local_rank)
            is_gone = status and status.phase != FINISHED and process_state(status.pid) in _ENDED
            failure = read_message(self._folder, RankFailure, local_rank)  # last: a rank that is gone writes nothing
            if failure is not None:
                message = failure.message
                short = message if len(message) <= MOST_TEXT else f"{message[: MOST_TEXT - 1]}…"
                news.append(Failed(**self._where, **{**asdict(failure), "message": short}))
            elif status and is_gone:
                news.append(Gone(**self._where, **asdict(status)))
        self._reported |= {failure.local_rank for failure in news}
        return news


def process_state(pid: int) -> str:
    """Process state: ``R`` running, ``S`` sleeping, ``D`` in uninterruptible wait, ``T`` stopped; empty if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]  # the process name before it may contain anything


def oom_kills() -> int:
    """Number of OOM kills of this machine's kernel since boot; 0 if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


# This much of a log's head is sent as it grows, and this much of its tail at the end; verbose NCCL logs are larger.
HEAD_BYTES = 2**20
TAIL_BYTES = 2**16
_MOST_AT_ONCE = 2**18
_LAST_LINES = 8
_NCCL_LINES = 20
_FRAMES = 10
_STACK = "most recent call first"  # faulthandler's heading
_STACK_OF_CPP = ("Exception raised from ", "frame #")  # of torch, after what an abort has to say
_READ_BYTES = 65536


class LogRelay:
    """Finds new data in the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[Path, int] = {}

    def fresh(self, *, is_last: bool = False) -> Iterator[tuple[str, bytes]]:
        """Paths below the folder, with the data to append to each.

        Args:
            is_last: nothing more will be written, so include the tails of long files.
        """
        for path in sorted(path for path in self._folder.rglob("*") if path.is_file()):
            name = path.relative_to(self._folder).as_posix()
            most = MOST_TRACE_BYTES if path.parent == self._folder / TRACES else HEAD_BYTES
            while data := self._next(path, most):
                yield name, data
            if is_last:
                yield from ((name, data) for data in self._end(path))

    def _next(self, path: Path, most: int) -> bytes:
        sent = self._sent.get(path, 0)
        data = _read(path, sent, min(_MOST_AT_ONCE, most - sent))
        self._sent[path] = sent + len(data)
        return data

    def _end(self, path: Path) -> Iterator[bytes]:
        sent = self._sent[path]
        left = path.stat().st_size - sent if path.exists() else 0
        if left > TAIL_BYTES:
            yield f"\n[{left - TAIL_BYTES} bytes omitted]\n".encode()
        if left > 0:
            yield _read(path, max(sent, sent + left - TAIL_BYTES), TAIL_BYTES)


def _read(path: Path, start: int, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(max(0, most))
    except OSError:
        return b""


def rank_log(log_dir: Path, local_rank: int) -> Path | None:
    """torchrun's file with a rank's standard error; None if it does not exist yet."""
    return next(log_dir.glob(f"*/attempt_*/{local_rank}/stderr.log"), None)


def log_tail(log: Path | None) -> list[str]:
    """The last lines of a rank's standard error, including the stack it may have written when it was ended."""
    lines = [] if log is None else _lines_at_the_end(log)
    clean = [line for line in lines if not line.startswith(_STACK_OF_CPP)]
    headings = [number for number, line in enumerate(clean) if _STACK in line and line.startswith("Current thread")]
    if not headings:
        return [line for line in clean if line.strip()][-_LAST_LINES:]
    last_lines = [line for line in clean[: headings[-1]] if _STACK not in line and not line.startswith('  File "')]
    before = [line for line in last_lines if line.strip()]
    stack = clean[headings[-1] : headings[-1] + 1 + _FRAMES]
    return before[-_LAST_LINES // 2 :] + stack


def last_nccl_lines(log: Path) -> list[str]:
    """The last lines of NCCL's log, warnings and others; empty without a file."""
    return [line for line in _lines_at_the_end(log) if " NCCL " in line][-_NCCL_LINES:]


def _lines_at_the_end(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _READ_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    # Output may contain anything; drop control characters.
    return [masked_text("".join(c for c in line if c.isprintable())) for line in lines]
