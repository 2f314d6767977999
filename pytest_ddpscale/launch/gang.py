"""One gang, from the start of its agents to the end of its last process."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TypeVar

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import GangError, WritingError
from pytest_ddpscale.launch.channel import Channel, EndedProcess
from pytest_ddpscale.launch.gang_failure import (
    blames_nobody,
    describe,
    describe_killed,
    describe_standstill,
    gpu_errors,
    lost_connections,
    rank_ends,
)
from pytest_ddpscale.launch.gang_state import GangEnd, GangOwner, GangState, Limits
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.node.processes import GANG_VARIABLE, stop_gang
from pytest_ddpscale.node.protocol import RECORDS, FileBytes, ResolveAddress, Start, Stop, Task
from pytest_ddpscale.run.rank_folder import TRACES
from pytest_ddpscale.run.reason import Why, because
from pytest_ddpscale.run.record_lines import AnyRecord, Idle, Notice, Queued
from pytest_ddpscale.run.survey_record import PostMortem
from pytest_ddpscale.util.masking import masked_arguments

POLL_S = 0.2
GRACE_S = 10.0
# Wait this long after the first failure for other ranks' reports, one of which may be the cause.
COLLECT_S = 3.0
# Missed beats after which a node is considered lost, once ranks elsewhere have lost their partners.
MISSED_BEATS = 3
# Time for agents to end their ranks, whose stacks are written, and to report …
FAREWELL_S = 15.0
# … and to survey their GPUs too, if ranks have failed.
LOOK_S = 23.0
# Time for a scheduler to end leftover processes after its client was killed; silent agents end after 30 s.
STEP_END_S = 60.0
STEP_POLL_S = 1.0
# Time for the first node to look up another, since name servers may be slow.
MEET_S = 30.0


T = TypeVar("T")


class Gang:
    """Starts a gang, watches it, and ends it.

    Args:
        log: file for output other than messages; ranks' logs go to a folder of that name without suffix.

    Attributes:
        records_arrived_unix_s: when its latest records arrived, which may be before they were read; 0 before the first.
    """

    records_arrived_unix_s = 0.0
    _refused = ""
    _silent: tuple[str, ...] = ()
    _unheard: tuple[str, ...] = ()  # nodes that missed beats, but not for so long that they are lost
    _cut_off: tuple[EndedProcess, ...] = ()  # processes that ended before their agent sent `Exit`
    _missing_since_s: float | None = None
    _records_heard = 0  # bytes
    _hole: Why = ""
    _trouble_s: float | None = None
    _ended_itself = False

    def __init__(self, task: Task, launch: Launch, limits: Limits, log: Path, owner: GangOwner) -> None:
        self._task = task
        self._launch = launch
        self._launcher = launch.launcher
        self._limits = limits
        self._log = log
        self._owner = owner
        self._arrived: list[bytes] = []
        self._has_started = self._has_recorded = False
        self._roll = GangState()
        self._heard_s = self._began_s = time.monotonic()

    def run(self) -> GangEnd:
        """Start the gang, and return once all of its processes have ended."""
        try:
            with self._started() as channel:
                refusal = self._assemble(channel)
                why = refusal or self._until(channel, lambda: self._why_ended(channel))
                interrupted = self._launcher.why_ended(channel.own_lines)
                if why is not None:
                    self._dismiss(channel, failed=not refusal)
                exit_code = channel.wait() if why is None else None
                self._ended_itself = (code := channel.poll()) is not None and code >= 0
        except GangError as error:
            return GangEnd(None, str(error))
        self._take_messages(channel)
        self._pass_records_on(channel)  # before `_end` asks for silent nodes, because judging records takes time
        if why is None:  # otherwise we ended it, and the scheduler would only report our own cancellation
            interrupted = self._launcher.why_ended(channel.own_lines)
        return self._end(exit_code, why, interrupted, channel)

    def _end(self, exit_code: int | None, why: Why | None, interrupted: Why, channel: Channel) -> GangEnd:
        roll = self._roll
        if self._refused:
            return GangEnd(None, refused=self._refused)
        given_up = self._launcher.given_up(channel.own_lines)
        cut_off = [node for node in self._cut_off if node.host in roll.live_agents]
        still_silent = roll.silent_hosts(time.monotonic(), self._limits.silence_s)
        lost = given_up or tuple(host for host in self._silent if host in still_silent)
        lost = lost or tuple(node.host for node in cut_off)
        if not given_up and len(lost) > 1 and set(lost) >= roll.live_agents.keys():
            lost, why = (), because("all-silent", lost)
        elif lost or why == _LOST:
            cause = because("silent-for", self._limits.silence_s)
            if given_up:
                cause = because("given-up", self._launcher.calls_itself)
            elif cut_off:
                message = next((line for line in reversed(cut_off[0].lines) if line.strip()), "")
                cause = because("cut-off", message or because("exit-code", cut_off[0].exit_code))
            why = because("nodes-lost", lost or self._silent, cause, self._launcher.service)
        elif why is None and exit_code is not None and exit_code < 0 and not roll.has_trouble:
            why = describe_killed(self._launcher.program, exit_code)
        elif why == _TROUBLE or (why is None and exit_code != 0):
            lost = () if interrupted else self._vanished()
            why = describe(roll, exit_code, channel.other_lines)
            if lost:
                why = because("nodes-lost", lost, because("silent-to-partners"), self._launcher.service)
        elif why is not None and self._has_started and (roll.ranks or not self._has_recorded):
            expected = 0 if self._has_recorded else self._task.ranks_per_node  # who has recorded has come up
            why = because("both", why, describe_standstill(roll, self._unheard, expected), ".")
        looked = tuple(PostMortem(survey=node.post_mortem) for node in roll.in_order if node.post_mortem)
        left = self._await_step_end(lost) if why and not interrupted else ""
        return GangEnd(
            exit_code, why or "", interrupted, lost, tuple(roll.failures), post_mortems=looked, left=left,
            rank_ends=rank_ends(roll), oom_kills=sum(report.oom_kills for report in roll.final_reports),
            gpu_errors=gpu_errors(roll) or (() if lost or not blames_nobody(roll) else lost_connections(roll)),
        )  # fmt: skip

    def _vanished(self) -> tuple[str, ...]:
        """Nodes that explain other nodes' failures: their agents sent no `Exit`, nor anything since the failure began.

        An agent that is only slow to end its ranks has sent messages since, and its launcher is still running.
        """
        mute, heard_s = self._roll.live_agents, self._roll.heard_s
        if len(mute) == len(self._roll.nodes) or not blames_nobody(self._roll):
            return ()
        silence_s = max(min(self._limits.silence_s, FAREWELL_S), MISSED_BEATS * self._task.beat_s)
        latest_s = min(self._trouble_s or 0.0, time.monotonic() - silence_s)
        return tuple(host for host, node in mute.items() if self._ended_itself or heard_s[node] <= latest_s)

    def _await_step_end(self, lost: tuple[str, ...]) -> Why:
        """Wait for nodes whose agents did not send `Exit`. Returns which processes may be left there.

        After the process that carries agents was killed, they cannot report, and their ranks take seconds to end.
        """
        silent = self._roll.live_agents.keys() - set(lost)
        ends_s = time.monotonic() + STEP_END_S
        while silent and (left := self._launcher.left_behind(self._launch)):
            if time.monotonic() >= ends_s:
                return left
            self._owner.hear(Idle())
            time.sleep(STEP_POLL_S)
        return ""

    @contextmanager
    def _started(self) -> Iterator[Channel]:
        self._log.open("ab").close()  # raises here if the folder is not writable, which is not the launcher's fault
        processes = self._launcher.processes(self._launch)
        # A local client such as ssh runs with our own environment, not the ranks'.
        given = self._launch.environment if self._launcher.shares_environment else self._launcher.environ
        environment = {**given, GANG_VARIABLE: self._task.gang_id}
        try:
            channel = Channel(processes, environment, self._log, self._launcher.voices)
        except OSError as error:
            command = processes[0].command
            raise GangError(
                command[0], f"could not be started ({error.strerror or error})", "a program that this user may run",
                "Check that it and its virtual environment still exist and that processes can be started here; "
                # Last, because it is long and a terminal may cut it.
                f"then measure again. The command was: {shlex.join(masked_arguments(command))}",
            ) from None  # fmt: skip
        is_cut_short = False
        try:
            yield channel
        except BaseException as error:
            is_cut_short = True
            if isinstance(error, KeyboardInterrupt):  # first, as a scheduler may kill us within seconds
                channel.say(Stop())
                self._owner.interrupted(error)
            self._dismiss(channel)
            raise
        finally:
            stop_gang(channel.processes, self._task.gang_id, GRACE_S)
            channel.close()
            if is_cut_short:
                self._take_messages(channel)
                with suppress(WritingError):  # a full disk was already reported by `error`
                    self._keep_arrived()

    def _assemble(self, channel: Channel) -> Why | None:
        """Wait for the agents of all nodes, and start the ranks. Returns why not, or None to continue."""
        why = self._await_nodes(channel) or self._odd_version() or self._no_loopback()
        if not why and channel.poll() is None:
            channel.say(self._task)
            why = self._survey(channel) if self._task.survey else ""
        if not why and self._task.nodes > 1 and channel.poll() is None:
            why = self._resolve(channel)
        if why or channel.poll() is not None:
            return why or None
        # A single node chooses its own endpoint.
        channel.say(
            Start(self._roll.nodes[0].endpoint if self._task.nodes > 1 else None, self._owner.deadline_unix_s())
        )
        # Limits and budget start only now, after any time in a scheduler's queue.
        self._heard_s = self._began_s = time.monotonic()
        self._has_started = True
        self._roll.expect_beats(self._heard_s)
        return None

    def _await_nodes(self, channel: Channel) -> Why:
        """Wait until all agents are up, or the processes that carry them have ended. Returns why the wait failed."""

        def notice() -> Notice:
            state = "" if self._roll.nodes else self._launcher.queue_state(channel.own_lines)
            if state and not self._launch.hosts:
                self._heard_s = time.monotonic()  # a scheduler's queue has no limit of ours
            return Queued(state) if state else Idle()

        def why_not() -> Why:
            return self._not_up(channel) or self._late_nodes()

        self._until(channel, lambda: len(self._roll.nodes) >= self._task.nodes or why_not(), notice=notice)
        return why_not()

    def _not_up(self, channel: Channel) -> Why:
        """Why agents of some nodes did not come up, once others have had time to fail too; empty while all may."""
        ended = channel.ended  # read first, so that messages sent before the end are still taken
        self._take_messages(channel)
        arrived = {node.host for node in self._roll.nodes.values()}
        failed = [process for process in ended if process.host not in arrived]
        if not failed:
            return ""
        now_s = time.monotonic()
        self._trouble_s = self._trouble_s or now_s
        if now_s - self._trouble_s < COLLECT_S and channel.poll() is None:
            return ""
        why = {
            process.host: self._launcher.why_not_up(process.host, process.exit_code, process.lines)
            for process in failed
        }
        return because("not-up", [*why.items()])

    def _odd_version(self) -> Why:
        """An error if agents have another version; empty if none has."""
        nodes = self._roll.nodes.values()
        odd = next((node.version for node in nodes if node.version != __version__), None)
        hosts = [node.host for node in nodes if node.version == odd]
        return because("other-version", hosts, odd, __version__) if hosts else ""

    def _no_loopback(self) -> Why:
        """An error if ranks could not connect within a node; empty if they could."""
        whys = [(node.host, node.loopback_problem) for node in self._roll.nodes.values() if node.loopback_problem]
        return because("no-loopback", whys) if whys else ""

    def _survey(self, channel: Channel) -> Why:
        """Collect and record the nodes' surveys. Returns why the nodes are not admitted; empty if they are."""
        roll = self._roll

        def all_answered() -> bool:
            return all(node.survey or node.is_last for node in roll.nodes.values())

        self._until(channel, all_answered, self._limits.survey_s)
        if channel.poll() is not None:
            return ""  # `_end` finds the reason
        self._refused = self._owner.preflight(roll.surveyed())
        return self._refused

    def _resolve(self, channel: Channel) -> Why:
        """Ask the first node for the ranks' rendezvous. Returns why there is none; empty if there is one."""
        nodes, second = self._roll.nodes, self._roll.nodes[1]
        channel.say(ResolveAddress(second.host, second.addresses))

        def is_answered() -> bool:
            self._cut_off = tuple(process for process in channel.ended if process.host in self._roll.live_agents)
            first = nodes[0]
            return bool(first.endpoint or first.endpoint_problem or first.is_last or self._cut_off)

        self._until(channel, is_answered, MEET_S)
        if nodes[0].endpoint or channel.poll() is not None:
            return ""
        if self._cut_off:
            return _LOST
        problem = nodes[0].endpoint_problem or because("no-answer-within", MEET_S)
        return because("no-route", nodes[0].host, second.host, problem, self._launcher.calls_itself)

    def _until(
        self,
        channel: Channel,
        is_over: Callable[[], T],
        limit_s: float = math.inf,
        notice: Callable[[], Notice] | None = Idle,
    ) -> T | None:
        """Take messages until something is true, and return it; None once time is over, or the processes have ended.

        Args:
            notice: what the owner hears meanwhile.
        """
        ends_s = time.monotonic() + limit_s
        while True:
            # Checked before messages are taken, so that those sent in time count even if listeners were busy.
            has_ended = channel.poll() is not None or time.monotonic() >= ends_s
            self._take_messages(channel)
            if (result := is_over()) or has_ended:
                return None if has_ended else result
            if notice is not None:
                self._owner.hear(notice())
            time.sleep(POLL_S)

    def _late_nodes(self) -> Why:
        """Why the wait for missing nodes is over; empty while it goes on."""
        arrived = [node.host for node in self._roll.nodes.values()]
        limit_s = self._limits.startup_s
        since_s = min(self._roll.heard_s.values(), default=self._heard_s)  # from the first node that is up
        if len(arrived) >= self._task.nodes or time.monotonic() - since_s < limit_s:
            return ""
        missing = [host for host in self._launch.hosts if host not in arrived]
        return because("nodes-late", len(arrived), self._task.nodes, limit_s, missing)

    def _why_ended(self, channel: Channel) -> Why:
        """Pass records on. Returns why the gang has to be ended; empty while it goes on."""
        limits, ended = self._limits, channel.ended
        self._pass_records_on(channel)
        # Take messages again, because judging the records may take longer than the silence limit.
        self._take_messages(channel)
        self._cut_off = tuple(process for process in ended if process.host in self._roll.live_agents)
        now_s = time.monotonic()
        if self._roll.has_trouble:
            self._trouble_s = self._trouble_s or now_s
            return _TROUBLE if now_s - self._trouble_s > COLLECT_S else ""
        # Silent nodes may still send messages, for example if this process had been stopped.
        self._silent = tuple(self._roll.silent_hosts(now_s, limits.silence_s))
        if self._launcher.given_up(channel.own_lines):
            return _LOST
        if self._silent or self._cut_off:
            # Wait for the next beat: if other nodes are silent too, no single node is at fault.
            self._missing_since_s = self._missing_since_s or now_s
            return _LOST if now_s - self._missing_since_s > COLLECT_S + self._task.beat_s else ""
        self._missing_since_s = None
        if self._hole:
            return self._hole
        limit_s = limits.inactivity_s if self._has_recorded else limits.startup_s
        # Half of the limit, because an agent is stopped some time after its ranks' last record.
        self._unheard = tuple(self._roll.silent_hosts(now_s, max(MISSED_BEATS * self._task.beat_s, limit_s / 2)))
        if now_s - max(self._heard_s, self._roll.moved_s or 0.0) > limit_s:
            return because("nothing-recorded", limit_s, self._has_recorded)
        if limits.total_s is not None and now_s - self._began_s > limits.total_s:
            return because("too-long", limits.total_s)
        return ""

    def _dismiss(self, channel: Channel, *, failed: bool = False) -> None:
        """Tell the agents to end their ranks, and wait for their reports, after a failure also on their GPUs."""
        channel.say(Stop(failed))
        # In a scheduler's queue there are no agents to wait for.
        patience_s = FAREWELL_S + (LOOK_S if failed and self._task.post_mortem else 0.0)
        self._until(channel, lambda: not self._roll.nodes, patience_s, notice=None)

    def _take_messages(self, channel: Channel) -> None:
        for news, arrived_unix_s in channel.messages():
            if not isinstance(news, FileBytes):
                self._roll.hear(news, time.monotonic())
            elif news.file == RECORDS:
                self._arrived.append(news.data)
                self.records_arrived_unix_s = arrived_unix_s
                if news.offset != self._records_heard:
                    self._hole = because("records-lost", news.host)
                self._records_heard = news.offset + len(news.data)
            else:
                self._keep_log(news)

    def _keep_arrived(self) -> list[AnyRecord]:
        """Write the records that have arrived."""
        data, self._arrived = b"".join(self._arrived), []
        if not data:
            return []
        self._has_recorded, self._heard_s = True, time.monotonic()
        return self._owner.keep(data)

    def _pass_records_on(self, channel: Channel) -> None:
        """Write the records that have arrived and answer them."""
        for record in self._keep_arrived():
            if wanted := self._owner.hear(record):
                channel.say(wanted)

    def _keep_log(self, news: FileBytes) -> None:
        """Append to a log of one node or of the run, or to a trace beside the logs."""
        logs = self._log.parent
        folders = {"gang": self._log.with_suffix(""), "run": logs, TRACES: logs.parent / TRACES}
        whose, *parts = PurePosixPath(news.file).parts
        if whose not in folders or not parts or ".." in parts:
            return
        folder = folders[whose]
        if whose == "gang" and self._task.nodes > 1:
            folder /= news.host.replace("/", "_")
        path = folder.joinpath(*parts)
        with suppress(OSError):  # on a full disk only the log is lost
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(news.data)


_TROUBLE = "trouble"
_LOST = "lost"
