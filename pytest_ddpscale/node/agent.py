"""The agent of one node: runs torchrun, watches its ranks, and talks to the supervisor over stdin and stdout."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_ddpscale import __version__
from pytest_ddpscale.node.addresses import address_toward_any, loopback_problem, outward_addresses, reserved_port
from pytest_ddpscale.node.processes import GANG_VARIABLE, IN_MEMORY, Command, remove_left_folders, stop_gang
from pytest_ddpscale.node.protocol import (
    RECORDS,
    SILENCE_S,
    FileBytes,
    Gone,
    Heard,
    Heartbeat,
    LastWords,
    Order,
    Report,
    ResolveAddress,
    Start,
    Stop,
    Task,
    decode_order,
    encode_news,
)
from pytest_ddpscale.node.ranks import (
    LocalRanks,
    LogRelay,
    ended_pids,
    interfaces,
    last_nccl_lines,
    log_tail,
    oom_kills,
    rank_exits,
    rank_log,
    torchrun_command,
)
from pytest_ddpscale.node.survey import survey_command, survey_from
from pytest_ddpscale.run.rank_folder import (
    LOGS,
    STATUS_VARIABLE,
    WantedArms,
    open_records,
    write_message,
)
from pytest_ddpscale.util.orphans import die_with_parent
from pytest_ddpscale.util.owned_folder import owned_folder

SURVEY_LIMIT_S = 60.0  # allows for a shared disk from which many nodes read torch at once
# Short, because the supervisor waits for agents to exit, but a driver without persistence mode takes up to ten seconds,
# and who does not answer is asked again 5 s later.
POST_MORTEM_LIMIT_S = 20.0
_NO_INPUT = "nothing came on the agent's standard input: pass it on, as `kubectl exec -i` and `docker exec -i` do"
POLL_S = 0.3
GRACE_S = 5.0  # between asking ranks to end and killing them; ranks write their stacks in this time
LOGS_EVERY_S = 2.0
_OUTPUT_BYTES = 100_000  # kept of torchrun's own output, whose end tells how ranks ended
_MOST_SENT_LINES = 16  # ranks in one message
_READ_BYTES = 2**20
OrderType = TypeVar("OrderType", Task, Start)


class NodeAgent:
    """Starts, watches and ends the ranks of one node."""

    _output = b""
    _half_line = b""
    _is_input_open = True
    _port: socket.socket | None = None
    _folder: Path | None = None  # the ranks' folder, once they have started
    _records = b""  # rank 0's incomplete last line
    _records_sent = 0  # bytes of rank 0's records sent so far

    def __init__(self, node: int, host: str) -> None:
        self._node = node
        self._host = host
        self._heard = self._began = time.monotonic()
        self._orders: dict[type[Order], Order] = {}  # the latest of each kind
        # Descriptors, each with its read function as data. epoll, the default, refuses /dev/null.
        self._selector = selectors.PollSelector()
        self._oom_kills = oom_kills()

    def run(self) -> int:
        """Serve until the ranks are done or the supervisor ends the gang. Returns the exit code."""
        # On a signal end ourselves and then torchrun in an orderly way; a scheduler signals all processes at once.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._read_orders)
        self._say(version=__version__, addresses=outward_addresses(), loopback_problem=loopback_problem())
        task = self._await_order(Task)
        if task is None:
            return self._leave()
        survey = None
        if task.survey:
            options = () if task.has_gpus else ("--no-gpu",)
            survey = Command(survey_command(self._host, *options), SURVEY_LIMIT_S, os.environ | task.environment)
        try:
            start = self._await_order(Start, survey)
        finally:
            if survey is not None:
                survey.stop()
        if start is None:
            return self._leave()
        endpoint = start.endpoint or self._endpoint(task.gang_id, "127.0.0.1")
        with _own_folders() as self._folder:
            assignment = msgspec.structs.replace(task.assignment, deadline_unix_s=start.deadline_unix_s)
            write_message(self._folder, assignment)
            return self._serve(task, endpoint, self._folder)

    def _leave(self) -> int:
        was_ordered = self._heard > self._began
        self._say(is_last=True, code=int(not was_ordered))
        return 0 if was_ordered else sys.exit(_NO_INPUT)

    def _endpoint(self, gang_id: str, address: str) -> str:
        """The address and reserved port where rank 0 will host the store."""
        self._port = reserved_port(gang_id)
        return f"{address}:{self._port.getsockname()[1]}"

    def _await_order(self, kind: type[OrderType], survey: Command | None = None) -> OrderType | None:
        """Wait for an order of a kind, passing on the survey meanwhile; None if the supervisor said stop or is gone."""
        while not self._is_unwanted():
            order = self._orders.get(kind)
            if isinstance(order, kind):
                return order
            self._listen()
            if survey is not None and survey.is_done():
                self._say(survey=survey_from(survey, self._host))
                survey = None
        return None

    def _listen(self) -> None:
        """Read all available input, waiting for at most `POLL_S`."""
        for key, _ in self._selector.select(POLL_S):
            key.data()

    def _serve(self, task: Task, endpoint: str, folder: Path) -> int:
        logs = LogRelay(folder / LOGS)
        ranks = LocalRanks(folder, task.ranks_per_node, self._node, self._host)
        records = open_records(folder)
        given = os.environ | task.environment
        family = f"{task.gang_id}/{self._node}"  # by which torchrun and its ranks on this node are found
        environment = (
            interfaces(task.nodes, endpoint, given)
            | given
            | {
                GANG_VARIABLE: family,
                STATUS_VARIABLE: str(folder),
                "DDPSCALE_NODE_INDEX": str(self._node),
                "DDPSCALE_NODES": str(task.nodes),
                "DDPSCALE_HOST": self._host,
                "DDPSCALE_STORE": endpoint,
                # Otherwise torchrun also hosts a store that listens on all interfaces.
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            }
        )
        process = subprocess.Popen(
            torchrun_command(task.gang_id, task.ranks_per_node, folder / LOGS / "gang", folder / "rendezvous"),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            was_ended = self._watch(task, process, ranks, records, logs)
        finally:
            stop_gang([process], family, GRACE_S)
        self._pass_records_on(records)
        os.close(records)
        for news in ranks.news():
            if not (was_ended and isinstance(news, Gone)):  # these are gone because we ended them
                self._tell(news)
        output = self._output.decode("utf-8", errors="replace")
        exits = rank_exits(output)
        has_failed = was_ended or process.returncode != 0
        # NCCL's logs are in the agent's folder, or among the run's logs if the user set NCCL_DEBUG.
        is_asked = "NCCL_DEBUG" in given
        local_ranks, first = range(task.ranks_per_node), self._node * task.ranks_per_node
        nccl_folder = folder / LOGS / "run" if is_asked else folder
        nccl_logs = [nccl_folder / f"nccl-rank-{first + local_rank}.log" for local_rank in local_ranks]
        # Last lines of the ranks that failed; of all ranks if they were ended from outside.
        for local_rank in local_ranks if was_ended else sorted({exit_.local_rank for exit_ in exits}):
            lines = log_tail(rank_log(folder / LOGS / "gang", local_rank))
            self._say(words=LastWords(local_rank, tuple(lines), tuple(last_nccl_lines(nccl_logs[local_rank]))))
        if has_failed and not is_asked:  # else they are sent anyway
            for log in nccl_logs:
                with contextlib.suppress(OSError):  # without NCCL there are no logs
                    shutil.copy(log, folder / LOGS / "gang")
        self._pass_logs_on(logs, is_last=True)
        if task.post_mortem and has_failed:
            self._look_at_gpus_again(was_ended=was_ended)
        self._say(
            is_last=True,
            code=process.returncode,
            was_ended=was_ended,
            exits=tuple(exits[:_MOST_SENT_LINES]),
            ended_pids=tuple(ended_pids(output)[:_MOST_SENT_LINES]),
            oom_kills=oom_kills() - self._oom_kills,
        )
        return 0 if was_ended else int(process.returncode)

    def _look_at_gpus_again(self, *, was_ended: bool) -> None:
        """Survey the GPUs again after ranks failed, here or elsewhere, unless the user interrupted the session."""
        if was_ended and Stop not in self._orders:
            return  # the supervisor is gone
        look = Command(survey_command(self._host, "--post-mortem"), POST_MORTEM_LIMIT_S)
        while not self._is_hurried:
            if look.is_done():
                self._say(post_mortem=survey_from(look, self._host))
                break
            self._listen()
        look.stop()

    @property
    def _is_hurried(self) -> bool:
        """Whether the supervisor is gone, or said stop without a failure."""
        return not self._is_input_open or self._orders.get(Stop) == Stop()

    def _watch(
        self, task: Task, process: subprocess.Popen[bytes], ranks: LocalRanks, records: int, logs: LogRelay
    ) -> bool:
        """Watch torchrun until it ends or has to be ended. Returns whether it has to be ended."""
        assert process.stdout is not None
        output = process.stdout.fileno()
        os.set_blocking(output, False)
        self._selector.register(output, selectors.EVENT_READ, lambda: self._pass_on(output))
        self._selector.register(records, selectors.EVENT_READ, lambda: self._pass_records_on(records))
        next_beat = next_logs = time.monotonic()
        try:
            while True:
                self._listen()
                for news in ranks.news():
                    self._tell(news)
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + task.beat_s
                    beats = ranks.beats()
                    for beat in beats:
                        self._tell(beat)
                    if not beats:
                        self._say()
                if time.monotonic() >= next_logs:
                    next_logs = time.monotonic() + max(LOGS_EVERY_S, task.beat_s)
                    self._pass_logs_on(logs)
                if process.poll() is not None:
                    self._pass_on(output)
                    return False
                if self._is_unwanted():
                    return True
        finally:
            self._forget(output)
            self._forget(records)

    def _forget(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _pass_records_on(self, records: int) -> None:
        """Pass on complete lines only; a line cut off by the end of rank 0 is dropped."""
        whole, newline, self._records = (self._records + _available(records)).rpartition(b"\n")
        if newline:
            self._send(RECORDS, whole + newline, self._records_sent)
            self._records_sent += len(whole) + 1

    def _pass_logs_on(self, logs: LogRelay, *, is_last: bool = False) -> None:
        for name, data in logs.fresh(is_last=is_last):
            self._send(name, data)

    def _is_unwanted(self) -> bool:
        """Whether the supervisor said stop, is gone, or has been silent for too long."""
        is_over = not self._is_input_open or Stop in self._orders
        return is_over or time.monotonic() - self._heard > SILENCE_S

    def _read_orders(self) -> None:
        data = os.read(sys.stdin.fileno(), _READ_BYTES)
        if not data:
            self._is_input_open = False
            self._forget(sys.stdin.fileno())
            return
        self._heard = time.monotonic()
        *lines, self._half_line = (self._half_line + data).split(b"\n")
        for line in lines:
            order = decode_order(line)
            if isinstance(order, ResolveAddress):
                task = self._orders[Task]
                if self._node == 0 and isinstance(task, Task):
                    # The ranks' rendezvous is only on the interface that leads to another node.
                    try:
                        address = address_toward_any((order.peer, *order.addresses))
                        self._say(endpoint=self._endpoint(task.gang_id, address))
                    except OSError as error:
                        self._say(endpoint_problem=error.strerror or str(error))
            elif isinstance(order, WantedArms):
                if self._folder is not None:
                    with contextlib.suppress(OSError):  # if /dev/shm is full, measure without this hint
                        write_message(self._folder, order)
            elif order is not None and not isinstance(order, Heartbeat):
                self._orders[type(order)] = order

    def _pass_on(self, output: int) -> None:
        """Copy torchrun's own output to the launcher's log, and keep its end."""
        data = _available(output)
        if not data:
            self._forget(output)
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), data)
        self._output = (self._output + data)[-_OUTPUT_BYTES:]

    def _say(self, **fields: Any) -> None:
        self._tell(Report(node=self._node, host=self._host, **fields))

    def _send(self, file: str, data: bytes, offset: int = 0) -> None:
        self._tell(FileBytes(node=self._node, host=self._host, file=file, data=data, offset=offset))

    def _tell(self, news: Heard) -> None:
        try:
            for line in encode_news(news):
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        except OSError:  # the supervisor no longer reads
            self._is_input_open = False


def _available(descriptor: int) -> bytes:
    """All data that a non-blocking descriptor has now."""
    data = []
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(descriptor, _READ_BYTES):
            data.append(piece)
    return b"".join(data)


@contextlib.contextmanager
def _own_folders() -> Iterator[Path]:
    """A folder in memory for data exchanged by ranks and agent, with a link to one on disk for logs."""
    remove_left_folders()
    with owned_folder("ranks", IN_MEMORY) as folder, owned_folder("logs") as owned:
        logs = owned / LOGS  # without the file that tells the owner, which is no log
        for whose in ("gang", "run"):
            (logs / whose).mkdir(parents=True)
        (folder / LOGS).symlink_to(logs)
        yield folder
