"""Gangs and news of them, as tests of the launching side need them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pytest_ddpscale import __version__
from pytest_ddpscale.launch.gang_state import GangState
from pytest_ddpscale.launch.launcher import AgentProcess, Launch, Launcher, TorchrunLauncher
from pytest_ddpscale.launch.slurm import SlurmLauncher
from pytest_ddpscale.node.protocol import News as Message
from pytest_ddpscale.node.protocol import Task
from pytest_ddpscale.run.rank_folder import Assignment
from pytest_ddpscale.settings import Settings, settings_from

NOTHING = Assignment(plan=msgspec.Raw(b"{}"), studies=())
# What scripts that play agents have at hand.
AGENTS = f"""
import base64, json, os, signal, sys, threading, time, zlib
VERSION = {__version__!r}
ANSWER = {{}}
TASK = {{}}
RANK = {{"pid": 1, "phase": "timed block", "study": "weak/r", "arm": "ddp@2", "round": 3, "entered": 12, "state": "S"}}
def say(word, node=0, **fields):
    fields |= {{"is_last": True}} if word == "exit" else {{}}
    word = word if word in ("rank", "gone", "failed", "piece") else "up"
    print("@ddpscale " + json.dumps({{"say": word, "node": node, "host": f"n{{node + 1}}", **fields}}), flush=True)
SENT = {{}}
def send(file, data, node=0):
    told = base64.b64encode(zlib.compress(data)).decode()
    say("piece", node, file=file, part=0, parts=1, data=told, offset=SENT.get(file, 0))
    SENT[file] = SENT.get(file, 0) + len(data)
def record(kind, **fields):
    send("records", json.dumps({{"kind": kind, **fields}}).encode() + b"\\n")
def up(nodes=1, **fields):
    for node in range(nodes):
        say("up", node, **{{"version": VERSION, **fields}})
def rank(rank, steps=3, **fields):
    say("rank", rank // 2, rank=rank, local_rank=rank % 2, steps=steps, **RANK, **fields)
def order():
    for line in sys.stdin:
        found = json.loads(line.partition("@ddpscale ")[2])
        if found["say"] == "task":
            TASK.update(found)
        elif found["say"] == "meet":
            say("endpoint", **{{"endpoint": "10.0.0.1:20000", **ANSWER}} if found["peer"] == "n2" else {{}})
        elif found["say"] != "stay":
            print("was told", json.dumps(found), flush=True)
            return found
def serve(nodes=1, **fields):
    up(nodes, **fields)
    order()
def beat_until_stop(*nodes, last_words_of=None):
    ended = threading.Event()
    def beat():
        while not ended.wait(0.02):
            for node in nodes:
                say("beat", node)
    thread = threading.Thread(target=beat)
    thread.start()
    order()
    ended.set()
    thread.join()
    for node in last_words_of or nodes:
        say("exit", node, code=-15, exits=[])
"""


def task(**changes: Any) -> Task:
    """One node of two ranks that are to do nothing."""
    fields: dict[str, Any] = {"gang_id": "g1", "nodes": 1, "ranks_per_node": 2, "assignment": NOTHING}
    return Task(**fields | changes)


def settings(**options: str) -> Settings:
    """As options give them, without their prefix."""
    return settings_from({f"ddp_{name}": value for name, value in options.items()}, {}, {})


def slurm(environ: Mapping[str, str] | None = None, **options: str) -> SlurmLauncher:
    """The launcher, with these options."""
    return SlurmLauncher(settings(**options), environ or {})


def scripted(
    commands: Callable[[Launch], list[str]], name: str = "torchrun", environ: Mapping[str, str] | None = None
) -> Launcher:
    """A launcher that starts something else than agents, and is like a real one in all else.

    Args:
        commands: what it starts.
        name: which one it is like.
        environ: that it was started with.
    """
    like: Any = {"torchrun": TorchrunLauncher, "slurm": SlurmLauncher}[name]

    class ScriptedLauncher(like):  # type: ignore[misc]
        def processes(self, launch: Launch) -> list[AgentProcess]:
            return [AgentProcess(commands(launch))]

    found: Launcher = ScriptedLauncher(settings(), environ or {})
    return found


def playing(source: str, name: str = "torchrun", environ: Mapping[str, str] | None = None) -> Launcher:
    """One whose agents are played by Python source."""
    return scripted(lambda launch: [sys.executable, "-S", "-c", f"{AGENTS}\n{source}"], name, environ)


class News:
    """A roll that hears what agents of some nodes say."""

    def __init__(self, *hosts: str, ranks_per_node: int = 2) -> None:
        self.roll = GangState()
        self._hosts = hosts
        self._ranks_per_node = ranks_per_node
        for node in range(len(hosts)):
            self.say("up", node, version="1")

    def say(self, word: str, node: int, now_s: float = 0.0, /, **fields: Any) -> None:
        """A message of a node's agent."""
        fields |= {"is_last": True} if word == "exit" else {}
        word = word if word in ("rank", "gone", "failed") else "up"
        message = {"say": word, "node": node, "host": self._hosts[node], **fields}
        self.roll.hear(msgspec.convert(message, Message), now_s)

    def status(self, rank: int, **changes: Any) -> dict[str, Any]:
        """What an agent says of a rank: its third step of a timed block."""
        return {
            "local_rank": rank % self._ranks_per_node, "rank": rank, "pid": 100 + rank, "phase": "timed block",
            "study": "weak/r", "arm": "ddp@2", "round": 3, "entered": 12, "steps": 3, "state": "S",
        } | changes  # fmt: skip

    def rank(self, rank: int, **changes: Any) -> None:
        """A rank lives."""
        self.say("rank", rank // self._ranks_per_node, **self.status(rank, **changes))

    def gone(self, rank: int, **changes: Any) -> None:
        """A rank's process has ended before its work did."""
        self.say("gone", rank // self._ranks_per_node, **self.status(rank, state="", **changes))

    def failed(self, rank: int, type_: str, message: str, **gpu: Any) -> None:
        """A rank reports an error."""
        node, local_rank = divmod(rank, self._ranks_per_node)
        report: dict[str, Any] = {"study": "weak/r", "arm": "ddp@2", "round": 3, "phase": "timed block"}
        fields: dict[str, Any] = {"local_rank": local_rank, "rank": rank, "type": type_, "message": message, **gpu}
        self.say("failed", node, **fields, **report, unix_s=1.0)

    def exit(self, node: int, *exits: list[Any], code: int = 1, **fields: Any) -> None:
        """An agent's last word: how ranks ended, each as local rank, exit code, pid, and whether it was the first."""
        self.say("exit", node, code=code, exits=list(exits), **{"oom_kills": 0, "ended_pids": [], **fields})
