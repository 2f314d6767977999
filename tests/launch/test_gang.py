"""A gang is watched from its start to its end, and ended when it has to be.

The launcher is a small program that says what agents say.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_ddpscale import __version__
from pytest_ddpscale.launch import gang as gang_module
from pytest_ddpscale.launch.gang import Gang, GangEnd
from pytest_ddpscale.launch.launcher import GangSpec
from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.new_records import NewRecords
from pytest_ddpscale.launch.slurm_job import step_is_gone
from pytest_ddpscale.node.chunks import chunks_of
from pytest_ddpscale.results.survey_record import Survey
from tests.launch.sample import gang as spec_of

AGENTS = f"""
import json, os, signal, sys, threading, time
VERSION = {__version__!r}
ANSWER = {{}}
RANK = {{"pid": 1, "phase": "timed block", "study": "weak/r", "arm": "ddp@2", "round": 3, "entered": 12, "state": "S"}}
def say(word, node=0, **fields):
    print("@ddpscale " + json.dumps({{"say": word, "node": node, "host": f"n{{node + 1}}", **fields}}), flush=True)
def up(nodes=1, **fields):
    for node in range(nodes):
        say("up", node, **{{"version": VERSION, "pid": 1, **fields}})
def rank(rank, steps=3, **fields):
    say("rank", rank // 2, rank=rank, local_rank=rank % 2, steps=steps, **RANK, **fields)
def order():
    for line in sys.stdin:
        found = json.loads(line.partition("@ddpscale ")[2])
        if found["say"] == "meet":
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
Run = Callable[..., GangEnd]


class ScriptedLauncher:
    """Runs Python source."""

    needs_shared_directory = False

    def __init__(self, source: str, name: str) -> None:
        self._source = source
        self.name = name

    def command(self, gang: GangSpec) -> list[str]:
        return [sys.executable, "-S", "-c", f"{AGENTS}\n{self._source}"]


@pytest.fixture
def heard() -> list[dict[str, Any]]:
    """What the gang's listener heard."""
    return []


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: list[dict[str, Any]]) -> Run:
    """Run agents to their end, with little patience."""
    for name, seconds in {
        "POLL_S": 0.02,
        "GRACE_S": 3.0,
        "COLLECT_S": 0.1,
        "FAREWELL_S": 5.0,
        "STEP_END_S": 0.0,
        "MISSED_BEATS": 0,
    }.items():
        monkeypatch.setattr(gang_module, name, seconds)

    def start(
        source: str, nodes: int = 1, hosts: tuple[str, ...] = (), name: str = "torchrun",
        hear: Callable[[dict[str, Any]], None] = heard.append,
        deadline_unix_s: Callable[[], float | None] = lambda: None, **limits: float,
    ) -> GangEnd:  # fmt: skip
        spec = spec_of(gang_id=tmp_path.name, nodes=nodes, ranks_per_node=2, hosts=hosts)
        tail = NewRecords(tmp_path / "measurements.jsonl")
        log = tmp_path / "gang-0.log"
        return Gang(spec, ScriptedLauncher(source, name), {}, Limits(**limits), log, tail, hear, deadline_unix_s).run()

    return start


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "gang-0.log").read_text(encoding="utf-8")


def test_one_node_is_started_without_an_address(run: Run, tmp_path: Path) -> None:
    assert run("serve()") == GangEnd(0)
    assert log_of(tmp_path) == 'was told {"say": "start", "nodes": 1, "endpoint": null}\n'


def test_several_are_started_when_all_are_up_with_the_first_ones_address_toward_another(
    run: Run, tmp_path: Path
) -> None:
    assert run("serve(3)", nodes=3) == GangEnd(0)
    assert log_of(tmp_path) == 'was told {"say": "start", "nodes": 3, "endpoint": "10.0.0.1:20000"}\n'


def test_nodes_that_do_not_know_each_other_are_not_started(run: Run, tmp_path: Path) -> None:
    end = run("ANSWER.update(endpoint='', problem='Name or service not known'); serve(2)", nodes=2)
    assert end.why.startswith(
        "n1 finds no way to n2 (Name or service not known), so that ranks cannot meet: nodes have"
    )
    assert "start" not in log_of(tmp_path)


def test_a_first_node_that_does_not_answer_is_not_waited_for_for_ever(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_module, "MEET_S", 0.3)
    end = run("up(2); sys.stdin.readline(); order()", nodes=2)
    assert end.why.startswith("n1 finds no way to n2 (no answer within 0.3 s)")


def test_whoever_ends_the_session_is_told_of_before_agents_have_ended(tmp_path: Path) -> None:
    """A job that is cancelled may be killed seconds later."""
    told: list[tuple[str, bool]] = []
    ended = tmp_path / "ended"

    def hear(record: dict[str, Any]) -> None:
        if record.get("kind") == "x":
            raise KeyboardInterrupt("SIGTERM")

    def interrupted(interrupt: KeyboardInterrupt) -> None:
        told.append((str(interrupt), ended.exists()))

    record = f"print(json.dumps({{'kind': 'x'}}), file=open({str(tmp_path / 'measurements.jsonl')!r}, 'a'))"
    source = f"serve(); {record}\norder(); time.sleep(0.5); open({str(ended)!r}, 'w')"
    launcher = ScriptedLauncher(source, "torchrun")
    gang = Gang(
        spec_of(gang_id=tmp_path.name), launcher, {}, Limits(), tmp_path / "gang-0.log",
        NewRecords(tmp_path / "measurements.jsonl"), hear, interrupted=interrupted,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        gang.run()
    assert told == [("SIGTERM", False)]
    assert ended.exists()


def test_no_limit_is_spent_in_the_queue(run: Run) -> None:
    """Neither the total limit, nor the budget, whose end the agents are told when all are there."""
    queued = "time.sleep(0.6); up(); print(order()['deadline_unix_s'] - time.time(), file=sys.stderr)"
    deadlines: list[float] = []

    def deadline_unix_s() -> float:
        deadlines.append(time.time() + 100)
        return deadlines[-1]

    end = run(queued, name="slurm", total_s=0.5, deadline_unix_s=deadline_unix_s)
    assert end == GangEnd(0)
    assert len(deadlines) == 1


def test_records_are_passed_on_as_they_are_written_and_to_the_last(
    run: Run, tmp_path: Path, heard: list[dict[str, Any]]
) -> None:
    path = str(tmp_path / "measurements.jsonl")
    write = f"print(json.dumps({{'kind': 'x', 'n': n}}), file=open({path!r}, 'a'))"
    assert run(f"serve()\nfor n in range(3): {write}").exit_code == 0
    assert [record["n"] for record in heard if record.get("kind") == "x"] == [0, 1, 2]


def test_a_node_with_another_version_is_refused_before_anything_starts(run: Run, tmp_path: Path) -> None:
    end = run("up(1); say('up', 1, version='0.0.9', pid=1); order()", nodes=2)
    expected = f"n2 runs pytest-ddpscale 0.0.9, its supervisor {__version__}: install the same version"
    assert end == GangEnd(None, expected)
    assert log_of(tmp_path) == 'was told {"say": "stop"}\n'


def test_a_node_that_does_not_come_up_is_named(run: Run) -> None:
    end = run("up(1); order()", nodes=2, hosts=("n1", "n2"), name="slurm", startup_s=0.5)
    assert end == GangEnd(None, "1 of 2 nodes came up within 0.5 s: n2 did not")


def test_the_wait_for_slurms_nodes_is_told_and_has_its_own_limit(run: Run, heard: list[dict[str, Any]]) -> None:
    said = "srun: job 4 queued and waiting for resources"
    end = run(f"print({said!r}, file=sys.stderr, flush=True); order()", name="slurm", startup_s=0.01, queue_s=1.5)
    assert end == GangEnd(None, "Slurm gave no nodes within 1.5 s (--ddp-queue-limit)")
    assert {"kind": "waiting", "for": "job 4 queued and waiting for resources"} in heard


def test_a_launcher_that_ends_before_any_node_is_up_has_its_last_words_told(run: Run) -> None:
    end = run("print('srun: error: invalid partition specified: gpu', file=sys.stderr); sys.exit(1)", name="slurm")
    assert end.exit_code == 1
    assert end.why.endswith(
        "code 1 without a report from a rank; last output:\n  srun: error: invalid partition specified: gpu"
    )


def test_a_gang_that_records_nothing_and_moves_no_more_is_ended_and_who_is_behind_is_named(
    run: Run, tmp_path: Path
) -> None:
    record = f"print(json.dumps({{'kind': 'x'}}), file=open({str(tmp_path / 'measurements.jsonl')!r}, 'a'))"
    end = run(f"serve(); {record}; rank(0, 4); rank(1, 3)\nbeat_until_stop(0)", startup_s=99.0, inactivity_s=0.7)
    assert end.exit_code is None
    assert end.why == (
        "nothing was recorded for 0.7 s, so the gang was ended. "
        "rank 1 on n1 is furthest behind of 2 ranks, in timed block (study weak/r, arm ddp@2, round 3)."
    )


def test_before_the_first_record_the_limit_for_the_start_counts(run: Run) -> None:
    end = run("serve(); beat_until_stop(0)", startup_s=0.5, inactivity_s=99.0)
    assert end == GangEnd(None, "nothing was recorded for 0.5 s, so the gang was ended.")


def test_ranks_that_move_are_not_ended_although_they_record_nothing(run: Run) -> None:
    """A block may be longer than the limit."""
    source = "serve()\nfor steps in range(40): rank(0, steps); time.sleep(0.05)"
    assert run(source, startup_s=1.0) == GangEnd(0)


def test_a_gang_that_is_not_done_in_time_is_ended(run: Run) -> None:
    end = run("serve(); beat_until_stop(0)", total_s=0.7)
    assert end == GangEnd(None, "the gang was not done after 0.7 s (--ddp-total-limit), so it was ended.")


def test_a_node_that_is_not_heard_of_is_lost_and_the_others_are_not(run: Run) -> None:
    end = run("serve(2); beat_until_stop(0)", nodes=2, silence_s=1.0)
    assert end.lost_hosts == ("n2",)
    assert end.why == "n2 was not heard of for 1 s: the node, its link, its slurmd or its agent is down"
    assert end.interrupted == ""


def test_nobody_is_silent_while_the_supervisor_does_not_listen(run: Run, tmp_path: Path) -> None:
    """Judging what was recorded may take longer than a node may be silent."""
    record = f"print(json.dumps({{'kind': 'x'}}), file=open({str(tmp_path / 'measurements.jsonl')!r}, 'a'))"
    beats = "for n in range(30): say('beat'); say('beat', 1); time.sleep(0.05)"

    def judge(record: dict[str, Any]) -> None:
        if record.get("kind") == "x":
            time.sleep(1.0)

    assert run(f"serve(2); {record}\n{beats}", nodes=2, hear=judge, silence_s=0.6) == GangEnd(0)


def test_a_node_that_slurm_gives_up_is_lost_at_once(run: Run) -> None:
    end = run("serve(2); print('srun: error: Node failure on n2', file=sys.stderr); beat_until_stop(0, 1)", nodes=2)
    assert end.lost_hosts == ("n2",)
    assert end.why == "n2 was given up by Slurm: the node, its link, its slurmd or its agent is down"


def test_nodes_that_say_a_last_word_are_not_lost(run: Run) -> None:
    """As all do when it was the supervisor that had been stopped."""
    end = run("serve(); order(); say('exit', code=0, exits=[])", silence_s=0.5)
    assert end.lost_hosts == ()
    assert end.why.startswith("n1 was not heard of for 0.5 s")


def test_a_failure_ends_the_gang_once_all_have_had_time_to_report(run: Run) -> None:
    source = """serve(2)
say("failed", 0, local_rank=0, rank=0, phase="timed block", type="RuntimeError", message="Connection closed by peer")
time.sleep(0.05)
say("failed", 1, local_rank=1, rank=3, phase="timed block", type="ValueError", message="odd")
beat_until_stop(0, 1)"""
    end = run(source, nodes=2)
    assert end.exit_code is None
    assert end.why == "rank 3 on n2 failed in timed block: ValueError: odd; 1 more rank failed after it"
    assert [report["rank"] for report in end.failures] == [0, 3]


PARTNER_LOST = """serve(2); say("beat", 1)
say("failed", 0, local_rank=0, rank=0, phase="timed block", type="RuntimeError", message="Connection reset by peer")
"""
VANISHED = (
    "n2 was not heard of any more, and other nodes' ranks lost their partners: the node, its link, its slurmd or "
)
ENDS_LATE = "import atexit; atexit.register(time.sleep, 60)\n"


def test_a_node_that_vanishes_is_lost_although_ranks_elsewhere_report_first(run: Run) -> None:
    end = run(PARTNER_LOST + "beat_until_stop(0)", nodes=2)
    assert end.lost_hosts == ("n2",)
    assert end.why.startswith(VANISHED)
    end = run(PARTNER_LOST + "say('exit', code=1, exits=[[0, 1, 1, True]]); sys.exit(137)", nodes=2)
    assert (end.exit_code, end.lost_hosts) == (137, ("n2",)), "the launcher ended before the supervisor had"


@pytest.mark.parametrize(("missed_beats", "lost"), [(0, ("n2",)), (1000, ())])
def test_also_while_its_launcher_waits_for_it_once_beats_were_missed(
    run: Run, monkeypatch: pytest.MonkeyPatch, missed_beats: int, lost: tuple[str, ...]
) -> None:
    """As srun does where a node has lost its power."""
    monkeypatch.setattr(gang_module, "FAREWELL_S", 0.5)
    monkeypatch.setattr(gang_module, "MISSED_BEATS", missed_beats)
    end = run(ENDS_LATE + PARTNER_LOST + "beat_until_stop(0)", nodes=2)
    assert end.lost_hosts == lost
    assert end.why.startswith(
        VANISHED if lost else "rank 0 on n1 failed in timed block: RuntimeError: Connection reset"
    )


def test_a_node_that_is_slow_to_end_its_ranks_is_not_lost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_module, "FAREWELL_S", 0.5)
    source = ENDS_LATE + PARTNER_LOST + "beat_until_stop(0, 1, last_words_of=(0,))"
    end = run(source, nodes=2)
    assert end.lost_hosts == ()
    assert end.why.startswith("rank 0 on n1 failed in timed block: RuntimeError: Connection reset by peer")


def test_an_error_of_a_ranks_own_is_not_the_mute_nodes(run: Run) -> None:
    source = PARTNER_LOST.replace("Connection reset by peer", "no such model") + "beat_until_stop(0)"
    end = run(source, nodes=2)
    assert end.lost_hosts == ()
    assert end.why.startswith("rank 0 on n1 failed in timed block: RuntimeError: no such model")


KILLED = "serve(); print('srun: a harmless last line', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(("name", "who"), [("slurm", "srun"), ("torchrun", "the node's agent")])
def test_a_launcher_that_was_killed_is_said_to_be_that(run: Run, name: str, who: str) -> None:
    end = run(KILLED, name=name)
    assert end.exit_code == -9
    assert end.why.startswith(f"{who} was killed by SIGKILL, by somebody else than this run: look for limits")
    assert "harmless" not in end.why


def test_the_step_of_a_srun_that_was_killed_is_waited_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks need seconds to end, and another gang would share the GPUs with them."""
    asked = tmp_path / "asked"
    step = f"ddpscale-{tmp_path.name[:8]}"
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\necho "$*" >>{asked}\n[ $(wc -l <{asked}) -lt 3 ] && echo {step}\necho batch\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setattr(gang_module, "step_is_gone", step_is_gone)
    monkeypatch.setattr(gang_module, "STEP_POLL_S", 0.05)
    monkeypatch.setattr(gang_module, "STEP_END_S", 30.0)
    assert run(KILLED, name="slurm", hosts=("n1",)).left == ""
    assert asked.read_text().splitlines() == ["--noheader --format=%j --steps --jobs=17"] * 3
    assert run(KILLED, name="slurm").left == ""
    assert asked.read_text().splitlines()[3:] == [f"--noheader --format=%j --name={step}"]
    asked.unlink()
    monkeypatch.setattr(gang_module, "STEP_END_S", 0.0)
    assert run(KILLED, name="slurm", hosts=("n1",)).left == step
    asked.unlink()
    end = run("serve(); say('exit', code=0, exits=[]); sys.exit(1)", name="slurm", hosts=("n1",))
    assert (end.left, asked.exists()) == ("", False), "its agent has said that nothing is left"


def test_last_words_that_come_after_the_end_was_decided_count(run: Run) -> None:
    source = """serve()
rank(1); say("gone", local_rank=1, rank=1, steps=3, **{**RANK, "state": ""}, reported=False)
assert order()["say"] == "stop"
say("words", local_rank=1, text="Killed by nobody knows whom")
say("exit", code=1, exits=[[1, -9, 1, True]], oom_kills=1)"""
    assert run(source).why == (
        "rank 1 on n1 was killed by SIGKILL in timed block (study weak/r, arm ddp@2, round 3): the kernel ended it for "
        "lack of memory (oom_kill in /proc/vmstat); its last lines:\n  Killed by nobody knows whom"
    )


def test_after_a_failure_agents_are_asked_for_their_gpus(run: Run, tmp_path: Path) -> None:
    found = [Survey(host, 1.0, has_driver=True, cores=2) for host in ("n1", "n2")]
    source = f"""PIECES = {[chunks_of(one.as_json()) for one in found]!r}
serve(2)
say("failed", 1, local_rank=0, rank=2, phase="timed block", type="RuntimeError", message="CUDA error")
order()
for node, pieces in enumerate(PIECES):
    for part, data in enumerate(pieces):
        say("post_mortem", node, part=part, parts=len(pieces), data=data)
for node in range(2):
    say("exit", node, code=1, exits=[])"""
    end = run(source, nodes=2)
    assert end.post_mortems == tuple(one.as_post_mortem() for one in found)
    assert log_of(tmp_path).splitlines()[-1] == 'was told {"say": "stop", "failed": true}'


SLURM_SAYS = "slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-21T19:37:39{} ***"


@pytest.mark.parametrize(
    ("why", "told"), [(" DUE TO TIME LIMIT", "the job reached its time limit"), ("", "the job was cancelled")]
)
def test_a_step_that_slurm_ended_was_interrupted(run: Run, why: str, told: str) -> None:
    end = run(f"serve(); print({SLURM_SAYS.format(why)!r}, file=sys.stderr); sys.exit(143)", name="slurm")
    assert (end.exit_code, end.interrupted) == (143, told)


def test_a_step_that_we_ended_was_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of SIGTERM to srun, as a lost node makes necessary, Slurm says that the step was cancelled."""
    monkeypatch.setattr(gang_module, "FAREWELL_S", 0.1)
    source = f"""def end(*_):
    print({SLURM_SAYS.format("")!r}, file=sys.stderr, flush=True)
    os._exit(137)
signal.signal(signal.SIGTERM, end)
serve(); time.sleep(60)"""
    end = run(source, name="slurm", silence_s=0.5)
    assert (end.lost_hosts, end.interrupted) == (("n1",), "")


def test_an_interrupt_ends_the_gang_in_order(run: Run, tmp_path: Path) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        if "was told" in log_of(tmp_path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("print(os.getpid()); serve(); order()", hear=interrupt)
    pid, *orders = log_of(tmp_path).splitlines()
    assert not psutil.pid_exists(int(pid))
    assert [order.partition('"say": ')[2][:7] for order in orders] == ['"start"', '"stop"}']


def test_a_launcher_that_cannot_be_started_ran_no_rank(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["/no such/srun", "-N2", "--comment=token=hunter2"]
    monkeypatch.setattr(ScriptedLauncher, "command", lambda self, gang: command)
    end = run("")
    assert not end.was_started
    assert end.why.startswith("/no such/srun: could not be started (No such file or directory)")
    assert end.why.endswith("The command was: '/no such/srun' -N2 '--comment=token=***'")
