"""The agent of one node: torchrun under it, its ranks watched, the supervisor on its standard input and output."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddpscale import __version__
from pytest_ddpscale.node.addresses import address_toward
from pytest_ddpscale.node.chunks import chunks_of
from pytest_ddpscale.node.log_tail import last_nccl_lines, last_words
from pytest_ddpscale.node.ports import reserved_port
from pytest_ddpscale.node.processes import GANG_VARIABLE, members, stop_gang
from pytest_ddpscale.node.protocol import SILENCE_S, decode, encode
from pytest_ddpscale.node.ranks import LocalRanks, oom_kills
from pytest_ddpscale.node.survey_process import (
    POST_MORTEM_LIMIT_S,
    SurveyProcess,
    post_mortem_command,
    survey_command,
)
from pytest_ddpscale.node.torchrun_command import (
    GangNode,
    RankExit,
    ended_pids,
    interfaces,
    rank_exits,
    rank_log,
    torchrun_command,
)
from pytest_ddpscale.results.rank_status import STATUS_VARIABLE
from pytest_ddpscale.util.orphans import die_with_parent

POLL_S = 0.3
GRACE_S = 5.0  # between asking ranks to end and killing them; their stacks are written in it
# For a file that another node has made. Nobody looked for its name before it was there, so the first look goes to the
# server, whatever a client remembers: the rest is for servers that tell each other late, and short of SILENCE_S.
APPEARS_S = 5.0
_OUTPUT_BYTES = 100_000  # of torchrun's own output, whose end tells how ranks ended
_MOST_TOLD = 16  # ranks in one message
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of our own is made in it)


@dataclass(frozen=True)
class Task:
    """What an agent is there for.

    Attributes:
        gang_id: of the gang, the same on all nodes.
        node: this one's index in Slurm's order.
        host: its name as Slurm has it.
        ranks_per_node: how many ranks to start.
        log_dir: where torchrun keeps each rank's output.
        worker_arguments: command line of ``pytest_ddpscale.worker``.
        beat_s: seconds between two words on every rank.
        survey: whether to say first what this node is.
        has_gpus: whether that asks for GPUs.
        post_mortem: whether to look at the GPUs once ranks have failed.
        proof: a file in the run directory, if it is to be said whether this node sees it.
    """

    gang_id: str
    node: int
    host: str
    ranks_per_node: int
    log_dir: Path
    worker_arguments: Sequence[str]
    beat_s: float
    survey: bool = False
    has_gpus: bool = True
    post_mortem: bool = False
    proof: Path | None = None


class NodeAgent:
    """Starts, watches and ends the ranks of one node.

    Args:
        task: what to start.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._output = b""
        self._heard = time.monotonic()
        self._orders: deque[dict[str, Any]] = deque()
        self._half_line = b""
        self._is_input_open = True
        self._oom_kills = oom_kills()
        self._port: socket.socket | None = None

    def run(self) -> int:
        """Serve until the ranks are done or the supervisor wants no more. Returns the exit code."""
        # torchrun's ends come from the supervisor's word, not from a signal that Slurm sends to all at once.
        signal.signal(signal.SIGTERM, _exit_on_signal)
        sees = {} if self._task.proof is None else {"sees_run_directory": _appears(self._task.proof)}
        self._say("up", version=__version__, pid=os.getpid(), **sees)
        survey = self._start_survey() if self._task.survey else None
        try:
            order = self._await_start(survey)
        finally:
            if survey is not None:
                survey.stop()
        if order is None:
            self._say("exit", code=0)
            return 0
        endpoint = order["endpoint"] or self._endpoint("127.0.0.1")
        place = GangNode(self._task.node, int(order["nodes"]), self._task.host, endpoint)
        status = Path(tempfile.mkdtemp(prefix="ddpscale-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
        try:
            return self._serve(place, status, order.get("deadline_unix_s"))
        finally:
            shutil.rmtree(status, ignore_errors=True)

    def _endpoint(self, address: str) -> str:
        """Where rank 0 will host the store, on a port that is kept for it."""
        self._port = reserved_port(self._task.gang_id, os.environ)
        return f"{address}:{self._port.getsockname()[1]}"

    def _tell_endpoint(self, peer: str) -> None:
        """Where ranks will meet: on the interface that leads to another node, and no other."""
        try:
            self._say("endpoint", endpoint=self._endpoint(address_toward(peer)))
        except OSError as error:
            self._say("endpoint", problem=error.strerror or str(error))

    def _start_survey(self) -> SurveyProcess:
        task = self._task
        # Ranks' logs lie in a folder of the run directory's, and are not there yet.
        command = survey_command(task.host, task.log_dir.parent, gpus=task.has_gpus)
        return SurveyProcess(command, task.host)

    def _await_start(self, survey: SurveyProcess | None) -> dict[str, Any] | None:
        """The order to start; None if the supervisor wants none, or is gone. Meanwhile the survey is passed on."""
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            while not self._is_unwanted():
                for _ in selector.select(POLL_S):
                    self._read_orders(selector)
                if survey is not None and (found := survey.poll()) is not None:
                    survey = None
                    self._tell_survey("survey", found)
                start = next((order for order in self._orders if order["say"] == "start"), None)
                if start is not None and not self._is_unwanted():  # a "stop" may have come with it
                    return start
        return None

    def _serve(self, place: GangNode, status: Path, deadline_unix_s: float | None) -> int:
        log_dir = self._task.log_dir / place.host if place.nodes > 1 else self._task.log_dir
        ranks = LocalRanks(status, self._task.ranks_per_node)
        process = self._start_torchrun(place, status, log_dir, deadline_unix_s)
        try:
            was_ended = self._watch(process, ranks)
        finally:
            stop_gang(process, self._family, GRACE_S)
        for news in ranks.news():
            if not (was_ended and news["say"] == "gone"):  # those went because we ended them
                self._tell(news)
        output = self._output.decode("utf-8", errors="replace")
        exits = rank_exits(output)
        nccl_logs = self._nccl_logs(place, status)
        self._tell_last_words(log_dir, nccl_logs, exits, was_ended=was_ended)
        has_failed = was_ended or process.returncode != 0
        if has_failed and nccl_logs[0].parent == status:  # which is about to be deleted
            _copy(nccl_logs, log_dir)
        if self._task.post_mortem and has_failed:
            self._look_at_gpus_again(was_ended=was_ended)
        self._say(
            "exit",
            code=process.returncode,
            ended=was_ended,
            exits=[[one.local_rank, one.exit_code, one.pid, one.is_root_cause] for one in exits[:_MOST_TOLD]],
            ended_pids=ended_pids(output)[:_MOST_TOLD],
            oom_kills=oom_kills() - self._oom_kills,
            survivors=len(members(self._family)),
        )
        return 0 if was_ended else int(process.returncode)

    def _look_at_gpus_again(self, *, was_ended: bool) -> None:
        """Say what they are after ranks failed, here or elsewhere, unless somebody only wants his terminal back."""
        if was_ended and not any(order["say"] == "stop" for order in self._orders):
            return  # nobody listens
        look = SurveyProcess(post_mortem_command(self._task.host), self._task.host, POST_MORTEM_LIMIT_S)
        with selectors.DefaultSelector() as selector:
            if self._is_input_open:
                selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            while not self._is_hurried:
                if (found := look.poll()) is not None:
                    self._tell_survey("post_mortem", found)
                    break
                for _ in selector.select(POLL_S):
                    self._read_orders(selector)
        look.stop()

    @property
    def _is_hurried(self) -> bool:
        """Whether the supervisor is gone, or has said stop though nothing had failed."""
        stops = [order for order in self._orders if order["say"] == "stop"]
        return not self._is_input_open or any(order.get("failed") is not True for order in stops)

    @property
    def _family(self) -> str:
        """By what torchrun and its ranks on this node are found."""
        return f"{self._task.gang_id}/{self._task.node}"

    def _start_torchrun(
        self, place: GangNode, status: Path, log_dir: Path, deadline_unix_s: float | None
    ) -> subprocess.Popen[bytes]:
        task = self._task
        deadline = [] if deadline_unix_s is None else ["--deadline-unix-s", f"{deadline_unix_s:.3f}"]
        environment = (
            interfaces(place, os.environ)
            | os.environ
            | {
                GANG_VARIABLE: self._family,
                STATUS_VARIABLE: str(status),
                "DDPSCALE_NODE_INDEX": str(place.index),
                "DDPSCALE_NODES": str(place.nodes),
                "DDPSCALE_HOST": place.host,
                "DDPSCALE_STORE": place.endpoint,
                # Else torchrun hosts a store beside its rendezvous, which listens on all interfaces.
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            }
        )
        worker_arguments = [*task.worker_arguments, *deadline]
        command = torchrun_command(task.gang_id, task.ranks_per_node, log_dir, status / "rendezvous", worker_arguments)
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    def _watch(self, process: subprocess.Popen[bytes], ranks: LocalRanks) -> bool:
        """Until torchrun ends, or has to be ended. Returns whether it has to."""
        assert process.stdout is not None
        next_beat = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(POLL_S):
                    if key.fileobj is process.stdout:
                        self._pass_on(process.stdout.fileno(), selector)
                    else:
                        self._read_orders(selector)
                for news in ranks.news():
                    self._tell(news)
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + self._task.beat_s
                    self._beat(ranks)
                if process.poll() is not None:
                    self._pass_on_rest(process.stdout.fileno())
                    return False
                if self._is_unwanted():
                    return True

    def _beat(self, ranks: LocalRanks) -> None:
        for beat in ranks.beats() or [{"say": "beat"}]:
            self._tell(beat)

    def _is_unwanted(self) -> bool:
        """Whether the supervisor has said so, or is gone, or cannot be heard any more."""
        if not self._is_input_open or any(order["say"] == "stop" for order in self._orders):
            return True
        return time.monotonic() - self._heard > SILENCE_S

    def _read_orders(self, selector: selectors.BaseSelector) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            self._is_input_open = False
            selector.unregister(sys.stdin.fileno())
            return
        self._heard = time.monotonic()
        *lines, self._half_line = (self._half_line + data).split(b"\n")
        for line in lines:
            order = decode(line.decode("utf-8", errors="replace"))
            if order is not None and order["say"] == "clock":
                self._say("clock", unix_s=time.time())
            elif order is not None and order["say"] == "meet":
                if self._task.node == 0:
                    self._tell_endpoint(str(order.get("peer")))
            elif order is not None and order["say"] != "stay":
                self._orders.append(order)

    def _pass_on(self, output: int, selector: selectors.BaseSelector) -> None:
        """torchrun's own output goes to the launcher's log; its end is remembered."""
        data = os.read(output, 65536)
        if not data:
            selector.unregister(output)
        self._remember(data)

    def _pass_on_rest(self, output: int) -> None:
        os.set_blocking(output, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(output, 65536):
                self._remember(data)

    def _remember(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), data)
        self._output = (self._output + data)[-_OUTPUT_BYTES:]

    def _nccl_logs(self, place: GangNode, status: Path) -> list[Path]:
        """What each rank's NCCL wrote: with the ranks' status, or where it stays, if the user asked for it himself."""
        first = place.index * self._task.ranks_per_node
        folder = self._task.log_dir.parent if "NCCL_DEBUG" in os.environ else status
        return [folder / f"nccl-rank-{first + local_rank}.log" for local_rank in range(self._task.ranks_per_node)]

    def _tell_last_words(
        self, log_dir: Path, nccl_logs: Sequence[Path], exits: Sequence[RankExit], *, was_ended: bool
    ) -> None:
        """Of the ranks that failed; of all, if they were ended from outside and nobody knows which one failed."""
        speaking = range(self._task.ranks_per_node) if was_ended else sorted({one.local_rank for one in exits})
        for local_rank in speaking:
            for text in last_words(rank_log(log_dir, local_rank)):
                self._say("words", local_rank=local_rank, text=text)
            for text in last_nccl_lines(nccl_logs[local_rank]):
                self._say("nccl", local_rank=local_rank, text=text)

    def _tell_survey(self, word: str, survey: dict[str, Any]) -> None:
        pieces = chunks_of(survey)
        for part, data in enumerate(pieces):
            self._say(word, part=part, parts=len(pieces), data=data)

    def _say(self, word: str, **fields: Any) -> None:
        self._tell({"say": word, **fields})

    def _tell(self, message: dict[str, Any]) -> None:
        line = encode({**message, "node": self._task.node, "host": self._task.host})
        try:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        except OSError:  # nobody reads any more
            self._is_input_open = False


def _appears(path: Path) -> bool:
    """Whether a file is there, and may be looked for: a network file system may take seconds to show it."""
    ends_s = time.monotonic() + APPEARS_S
    while not os.path.exists(path):  # noqa: PTH110 (Path.exists raises where it may not look)
        if time.monotonic() >= ends_s:
            return False
        time.sleep(POLL_S)
    return True


def host_of(environ: Mapping[str, str]) -> str:
    """This node's name as Slurm has it, which is what a drain command needs; else the host's."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def _copy(logs: Sequence[Path], folder: Path) -> None:
    for log in logs:
        with contextlib.suppress(OSError):  # without NCCL there are none
            shutil.copy(log, folder)


def _exit_on_signal(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
