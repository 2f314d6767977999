"""One gang, from its launcher's start to the end of its last process."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import GangError
from pytest_ddpscale.launch.blame import blames_nobody, describe, describe_killed, describe_standstill
from pytest_ddpscale.launch.channel import Channel
from pytest_ddpscale.launch.gang_state import GangState
from pytest_ddpscale.launch.launcher import GangSpec, Launcher
from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.new_records import NewRecords
from pytest_ddpscale.launch.slurm import step_name
from pytest_ddpscale.launch.slurm_job import failed_nodes, queue_state, step_is_gone, why_step_ended
from pytest_ddpscale.node.processes import GANG_VARIABLE, stop_gang
from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.util.masking import masked_arguments

POLL_S = 0.2
GRACE_S = 10.0
# After the first bad news: other ranks' reports of the same moment, which may be the cause.
COLLECT_S = 3.0
# Beats that an agent leaves out before its node is taken for lost, once ranks elsewhere miss their partners.
MISSED_BEATS = 3
# For agents to end their ranks, stacks written, and to say so …
FAREWELL_S = 15.0
# … and to look at their GPUs besides, if ranks have failed.
LOOK_S = 15.0
# For Slurm to end what a srun that was killed left on the nodes; agents let go after 30 s of silence.
STEP_END_S = 60.0
STEP_POLL_S = 1.0
# For agents, which only listen then, to say what their clocks show.
CLOCK_S = 10.0
# For the first node to look up another, whose name server may be slow.
MEET_S = 30.0
Admit = Callable[[list[dict[str, Any]]], str]


@dataclass(frozen=True)
class GangEnd:
    """How a gang ended.

    Attributes:
        exit_code: of the launcher; None if it was stopped.
        why: what went wrong, in words; empty if nothing did.
        interrupted: why Slurm ended it, if it did: no fault of what is measured.
        lost_hosts: nodes that fell silent.
        failures: reports that ranks left of themselves.
        was_started: whether any process of it ran.
        refused: why its nodes were not admitted, so that no rank was started; empty if they were.
        post_mortems: what GPUs were after ranks had failed, as records.
        left: the Slurm step of which processes may be left on nodes that another gang would use; empty if none are.
    """

    exit_code: int | None
    why: str = ""
    interrupted: str = ""
    lost_hosts: tuple[str, ...] = ()
    failures: tuple[dict[str, Any], ...] = ()
    was_started: bool = True
    refused: str = ""
    post_mortems: tuple[dict[str, Any], ...] = ()
    left: str = ""


class Gang:
    """Starts a gang, watches it, and ends it.

    Args:
        spec: what to start.
        launcher: how.
        environment: of the launcher and all it starts.
        limits: when to end it.
        log: for what is said beside messages.
        tail: of measurements.jsonl.
        hear: takes every record as it is written, and ``{}`` or a kind ``waiting`` meanwhile.
        deadline_unix_s: asked when all nodes are there: after which time no round may start; None for no limit.
        admit: given the surveys of all nodes, before any rank starts: says why none shall, or nothing.
        interrupted: told at once that somebody ends the session, while agents end their ranks.
    """

    def __init__(
        self,
        spec: GangSpec,
        launcher: Launcher,
        environment: Mapping[str, str],
        limits: Limits,
        log: Path,
        tail: NewRecords,
        hear: Callable[[dict[str, Any]], None],
        deadline_unix_s: Callable[[], float | None] = lambda: None,
        admit: Admit = lambda records: "",
        interrupted: Callable[[KeyboardInterrupt], None] = lambda interrupt: None,
    ) -> None:
        self._spec = spec
        self._command = launcher.command(spec)
        self._is_slurms = launcher.name == "slurm"
        self._may_queue = self._is_slurms and not spec.hosts
        self._environment = {**environment, GANG_VARIABLE: spec.gang_id}
        self._limits = limits
        self._log = log
        self._tail = tail
        self._hear = hear
        self._deadline_unix_s = deadline_unix_s
        self._admit = admit
        self._interrupted = interrupted
        self._refused = ""
        self._roll = GangState()
        self._silent: tuple[str, ...] = ()
        self._trouble_s: float | None = None
        self._ended_itself = False
        self._heard_s = self._began_s = time.monotonic()

    def run(self) -> GangEnd:
        """Start it, and return when nothing of it is left."""
        try:
            with self._started() as (process, channel):
                refusal = self._assemble(process, channel)
                why = refusal or self._watch(process, channel)
                interrupted = why_step_ended(channel.slurm_lines)
                if why is not None:
                    self._dismiss(process, channel, failed=not refusal)
                exit_code = process.wait() if why is None else None
                self._ended_itself = (code := process.poll()) is not None and code >= 0
        except _NotStarted as error:
            return GangEnd(None, str(error), was_started=False)
        self._pass_records_on()
        self._take_messages(channel)  # last: records are judged, which takes time, and then who is silent is asked
        if why is None:  # else Slurm would say that its step was cancelled, and that was us
            interrupted = why_step_ended(channel.slurm_lines)
        return self._end(exit_code, why, interrupted, channel)

    def _end(self, exit_code: int | None, why: str | None, interrupted: str, channel: Channel) -> GangEnd:
        roll = self._roll
        if self._refused:
            return GangEnd(None, refused=self._refused)
        given_up = failed_nodes(channel.slurm_lines)
        still_silent = roll.silent_hosts(time.monotonic(), self._limits.silence_s)
        lost = given_up or tuple(host for host in self._silent if host in still_silent)
        if lost or why == _LOST:
            unheard = f"not heard of for {self._limits.silence_s:g} s"
            why = _node_is_lost(lost or self._silent, "given up by Slurm" if given_up else unheard)
        elif why is None and exit_code is not None and exit_code < 0 and not roll.has_trouble:
            why = describe_killed("srun" if self._is_slurms else "the node's agent", exit_code)
        elif why == _TROUBLE or (why is None and exit_code != 0):
            lost = () if interrupted else self._vanished()
            how = "not heard of any more, and other nodes' ranks lost their partners"
            why = _node_is_lost(lost, how) if lost else describe(roll, exit_code, channel.other_lines)
        elif why is not None and roll.ranks:
            why = f"{why} {describe_standstill(roll)}."
        looked = roll.post_mortems.post_mortems()
        left = self._await_step_end(lost) if why and not interrupted else ""
        return GangEnd(exit_code, why or "", interrupted, lost, tuple(roll.failures), post_mortems=looked, left=left)

    def _vanished(self) -> tuple[str, ...]:
        """Nodes that explain what ranks of others say: their agents said no last word, nor any since the trouble began.

        An agent that is only slow to end its ranks was heard of since, and its launcher has not ended.
        """
        nodes = self._roll.nodes.values()
        mute = [node for node in nodes if node.exit is None]
        if len(mute) == len(nodes) or not blames_nobody(self._roll):
            return ()
        silence_s = max(min(self._limits.silence_s, FAREWELL_S), MISSED_BEATS * self._spec.beat_s)
        latest_s = min(self._trouble_s or 0.0, time.monotonic() - silence_s)
        return tuple(node.host for node in mute if self._ended_itself or node.heard_s <= latest_s)

    def _await_step_end(self, lost: tuple[str, ...]) -> str:
        """Wait for nodes whose agents did not say that they end. Returns the step's name if processes may be left.

        What agents say ends with srun, and when that was killed their ranks take seconds to end.
        """
        silent = [node.host for node in self._roll.nodes.values() if node.exit is None and node.host not in lost]
        if not (self._is_slurms and silent):
            return ""
        name, job = step_name(self._spec.gang_id), os.environ.get("SLURM_JOB_ID") if self._spec.hosts else None
        ends_s = time.monotonic() + STEP_END_S
        while not step_is_gone(name, within_job=job):
            if time.monotonic() >= ends_s:
                return name
            self._hear({})
            time.sleep(STEP_POLL_S)
        return ""

    @contextmanager
    def _started(self) -> Iterator[tuple[subprocess.Popen[bytes], Channel]]:
        self._log.open("ab").close()  # a folder that cannot be written is no fault of the launcher's
        if self._spec.proof is not None:
            self._spec.proof.touch()
        try:
            process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C reaches us, and we end the gang in order
            )
        except OSError as error:
            raise _NotStarted(self._command, error) from None
        channel = Channel(process, self._log)
        try:
            yield process, channel
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):  # Slurm may kill us in seconds
                channel.say("stop")
                self._interrupted(error)
            self._dismiss(process, channel)
            raise
        finally:
            stop_gang(process, self._spec.gang_id, GRACE_S)
            channel.close()
            if self._spec.proof is not None:
                self._spec.proof.unlink(missing_ok=True)

    def _assemble(self, process: subprocess.Popen[bytes], channel: Channel) -> str | None:
        """Wait for the agents of all nodes, and let them start. Returns why not, or None to go on."""
        why = self._await_nodes(process, channel) or self._odd_version() or self._blind_nodes()
        if not why and self._spec.survey and process.poll() is None:
            why = self._survey(process, channel)
        if not why and self._spec.nodes > 1 and process.poll() is None:
            why = self._meet(process, channel)
        if why or process.poll() is not None:
            return why or None
        self._start(channel)
        return None

    def _await_nodes(self, process: subprocess.Popen[bytes], channel: Channel) -> str:
        """Until all agents are there, or the launcher has ended. Returns why they are waited for no longer."""
        while (there := len(self._roll.nodes)) < self._spec.nodes and process.poll() is None:
            self._take_messages(channel)
            if self._roll.nodes and not there:
                self._heard_s = time.monotonic()  # from now on the others are due
            if why := self._late_nodes():
                return why
            state = "" if there else queue_state(channel.slurm_lines)
            self._hear({"kind": "waiting", "for": state} if state else {})
            time.sleep(POLL_S)
        return ""

    def _odd_version(self) -> str:
        """Why agents of another version are no use; empty if there are none."""
        others = {version: hosts for version, hosts in self._roll.versions.items() if version != __version__}
        if not others:
            return ""
        version, hosts = next(iter(others.items()))
        who = ", ".join(hosts[:5])
        return f"{who} runs pytest-ddpscale {version}, its supervisor {__version__}: install the same version"

    def _blind_nodes(self) -> str:
        """Which nodes do not see the run directory, where rank 0 writes and ranks leave logs; empty if all do."""
        blind, proof = self._roll.blind, self._spec.proof
        if not blind or proof is None:
            return ""
        who = first_few(blind, 5)
        see = "does not see" if len(blind) == 1 else "do not see"
        return (
            f"{who} {see} the run directory {proof.parent.parent}, so nothing was launched; expected one that all "
            "nodes have at the same path: name it with --ddp-run-dir"
        )

    def _survey(self, process: subprocess.Popen[bytes], channel: Channel) -> str:
        """Have it recorded what the nodes are. Returns why they are not admitted; empty if they are."""
        surveys = self._roll.surveys
        self._await(process, channel, lambda: self._all_answered(surveys.found), self._limits.survey_s)
        asked_unix_s = time.time()
        channel.say("clock")
        patience_s = min(CLOCK_S, self._limits.survey_s)
        self._await(process, channel, lambda: self._all_answered(surveys.clocks), patience_s)
        if process.poll() is not None:
            return ""  # whatever it was that ended it
        hosts = {index: node.host for index, node in self._roll.nodes.items()}
        self._refused = self._admit(surveys.records(hosts, asked_unix_s))
        self._pass_records_on()
        return self._refused

    def _meet(self, process: subprocess.Popen[bytes], channel: Channel) -> str:
        """Have the first node say where ranks meet. Returns why they cannot; empty if they can."""
        roll, first, second = self._roll, self._roll.nodes[0], self._roll.nodes[1]
        channel.say("meet", peer=second.host)
        said = lambda: bool(roll.endpoint or roll.endpoint_problem) or first.exit is not None  # noqa: E731
        self._await(process, channel, said, MEET_S)
        if roll.endpoint or process.poll() is not None:
            return ""
        problem = roll.endpoint_problem or f"no answer within {MEET_S:g} s"
        return (
            f"{first.host} finds no way to {second.host} ({problem}), so that ranks cannot meet: nodes have to know "
            "each other by the names that Slurm has for them"
        )

    def _all_answered(self, answers: Mapping[int, Any]) -> bool:
        """Whether all nodes have answered, or cannot any more."""
        return all(i in answers or node.exit is not None for i, node in self._roll.nodes.items())

    def _await(
        self, process: subprocess.Popen[bytes], channel: Channel, is_answered: Callable[[], bool], limit_s: float
    ) -> None:
        """Until agents have answered, or the launcher has ended, or the time is over."""
        ends_s = time.monotonic() + limit_s
        while True:
            # Asked before messages are taken: what was said in time counts, however long listeners were busy.
            is_over = process.poll() is not None or time.monotonic() >= ends_s
            self._take_messages(channel)
            if is_over or is_answered():
                return
            self._hear({})
            time.sleep(POLL_S)

    def _start(self, channel: Channel) -> None:
        nodes = self._spec.nodes
        endpoint = self._roll.endpoint if nodes > 1 else None  # one node's agent needs nobody to agree with
        deadline_unix_s = self._deadline_unix_s()
        deadline = {} if deadline_unix_s is None else {"deadline_unix_s": deadline_unix_s}
        channel.say("start", nodes=nodes, endpoint=endpoint, **deadline)
        # Neither limit nor budget is spent in Slurm's queue.
        self._heard_s = self._began_s = time.monotonic()
        self._roll.expect_beats(self._heard_s)

    def _late_nodes(self) -> str:
        """Why nodes that have not come up are waited for no longer; empty while they are."""
        there = [node.host for node in self._roll.nodes.values()]
        is_queueing = self._may_queue and not there
        limit_s = self._limits.queue_s if is_queueing else self._limits.startup_s
        if len(there) >= self._spec.nodes or time.monotonic() - self._heard_s < limit_s:
            return ""
        if is_queueing:
            return f"Slurm gave no nodes within {limit_s:g} s (--ddp-queue-limit)"
        missing = [host for host in self._spec.hosts if host not in there]
        who = f": {', '.join(missing[:5])} did not" if missing else ""
        return f"{len(there)} of {self._spec.nodes} nodes came up within {limit_s:g} s{who}"

    def _watch(self, process: subprocess.Popen[bytes], channel: Channel) -> str | None:
        """Pass records on until the gang ends. Returns None if it did so by itself, else why it has to be ended."""
        while True:
            running = process.poll() is None
            self._take_messages(channel)
            if not self._pass_records_on():
                self._hear({})
            if not running:
                return None
            # Records are judged as they are passed on, which may take longer than a node may be silent.
            self._take_messages(channel)
            now_s = time.monotonic()
            if self._roll.has_trouble:
                self._trouble_s = self._trouble_s or now_s
                if now_s - self._trouble_s > COLLECT_S:
                    return _TROUBLE
            elif why := self._why_ended(now_s, channel.slurm_lines):
                return why
            time.sleep(POLL_S)

    def _why_ended(self, now_s: float, slurm_lines: list[str]) -> str:
        limits = self._limits
        # Some may say a last word yet, as when this process had been stopped.
        self._silent = tuple(self._roll.silent_hosts(now_s, limits.silence_s))
        if self._silent or failed_nodes(slurm_lines):
            return _LOST
        limit_s = limits.inactivity_s if self._has_recorded else limits.startup_s
        if now_s - max(self._heard_s, self._roll.moved_s or 0.0) > limit_s:
            return f"nothing was recorded for {limit_s:g} s, so the gang was ended."
        if limits.total_s is not None and now_s - self._began_s > limits.total_s:
            return f"the gang was not done after {limits.total_s:g} s (--ddp-total-limit), so it was ended."
        return ""

    def _dismiss(self, process: subprocess.Popen[bytes], channel: Channel, *, failed: bool = False) -> None:
        """Have the agents end their ranks, and wait for their last words; after a failure also on their GPUs."""
        channel.say("stop", **({"failed": True} if failed else {}))
        # While srun waits for nodes there is nobody to hear it.
        patience_s = FAREWELL_S + (LOOK_S if failed and self._spec.post_mortem else 0.0)
        patience_ends = time.monotonic() + (patience_s if self._roll.nodes else 0.0)
        while process.poll() is None and time.monotonic() < patience_ends:
            self._take_messages(channel)
            time.sleep(POLL_S / 2)

    def _take_messages(self, channel: Channel) -> None:
        for message in channel.messages():
            self._roll.hear(message, time.monotonic())

    @property
    def _has_recorded(self) -> bool:
        """Whether a rank has recorded anything; surveys are records of the supervisor's."""
        return any(record["kind"] != "survey" for record in self._tail.records)

    def _pass_records_on(self) -> bool:
        """Returns whether there were any."""
        fresh = self._tail.read()
        for record in fresh:
            self._hear(record)
        if fresh:
            self._heard_s = time.monotonic()
        return bool(fresh)


_TROUBLE = "trouble"
_LOST = "lost"


def _node_is_lost(hosts: tuple[str, ...], how: str) -> str:
    names, were = ", ".join(hosts), "was" if len(hosts) == 1 else "were"
    return f"{names} {were} {how}: the node, its link, its slurmd or its agent is down"


class _NotStarted(GangError):
    """The launcher could not be started, so that no rank ran."""

    def __init__(self, command: list[str], error: OSError) -> None:
        super().__init__(
            command[0],
            f"could not be started ({error.strerror or error})",
            "a program that this user may run",
            "Check that it is still there, with its virtual environment, and that processes can be started here; "
            # Last, because it is long, and a terminal shows the beginning.
            f"then measure again. The command was: {shlex.join(masked_arguments(command))}",
        )
