"""A gang is watched from its start to its end, and ended when it has to be.

What is started is a small program that says what agents say.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec import to_builtins

from pytest_ddpscale import __version__
from pytest_ddpscale.launch import gang as gang_module
from pytest_ddpscale.launch.gang_owner import GangEnd
from pytest_ddpscale.run.rank_folder import WantedArms
from pytest_ddpscale.run.record_lines import Queued
from pytest_ddpscale.run.survey_record import PostMortem, Survey
from tests.builders.launches import scripted
from tests.launch.watched_gang import Owner, Run, kind_of


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "gang-0.log").read_text(encoding="utf-8")


def test_one_node_is_started_without_an_address(run: Run, tmp_path: Path) -> None:
    assert run("serve()") == GangEnd(0)
    assert log_of(tmp_path) == 'was told {"say": "start", "endpoint": null, "deadline_unix_s": null}\n'


def test_several_are_started_when_all_are_up_with_the_first_ones_address_toward_another(
    run: Run, tmp_path: Path
) -> None:
    assert run("serve(3)", nodes=3) == GangEnd(0)
    assert log_of(tmp_path) == 'was told {"say": "start", "endpoint": "10.0.0.1:20000", "deadline_unix_s": null}\n'


def test_nodes_that_do_not_know_each_other_are_not_started(run: Run, tmp_path: Path) -> None:
    end = run("ANSWER.update(endpoint='', problem='Name or service not known'); serve(2)", nodes=2)
    assert end.why.startswith(
        "n1 finds no route to n2 (Name or service not known), so ranks cannot connect: nodes must"
    )
    assert "start" not in log_of(tmp_path)


def test_a_first_node_that_does_not_answer_is_not_waited_for_for_ever(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_module, "MEET_S", 0.3)
    end = run("up(2); sys.stdin.readline(); sys.stdin.readline(); order()", nodes=2)
    assert end.why.startswith("n1 finds no route to n2 (no answer within 0.3 s)")


def test_whoever_ends_the_session_is_told_of_before_agents_have_ended(run: Run, owner: Owner, tmp_path: Path) -> None:
    """A job that is cancelled may be killed seconds later."""
    told: list[tuple[str, bool]] = []
    ended = tmp_path / "ended"

    def hear(record: Any) -> None:
        if kind_of(record) == "x":
            raise KeyboardInterrupt("SIGTERM")

    owner.take = hear
    owner.told = lambda interrupt: told.append((str(interrupt), ended.exists()))
    with pytest.raises(KeyboardInterrupt):
        run(f"serve(); record('x'); order(); record('y'); time.sleep(0.3); open({str(ended)!r}, 'w')")
    assert told == [("SIGTERM", False)]
    assert ended.exists()
    assert b'"y"' in owner.kept, "what was measured until then is not lost"


def test_no_limit_is_spent_in_the_queue(run: Run, owner: Owner) -> None:
    """Neither the total limit, nor the budget, whose end the agents are told when all are there."""
    queued = "time.sleep(0.4); up(); print(order()['deadline_unix_s'] - time.time(), file=sys.stderr)"
    deadlines: list[float] = []

    def deadline_unix_s() -> float:
        deadlines.append(time.time() + 100)
        return deadlines[-1]

    owner.deadline = deadline_unix_s
    end = run(queued, name="slurm", total_s=0.3)
    assert end == GangEnd(0)
    assert len(deadlines) == 1


def test_records_are_passed_on_as_they_arrive_and_to_the_last(run: Run, heard: list[Any]) -> None:
    assert run("serve()\nfor n in range(3): record('x', n=n)").exit_code == 0
    assert [record["n"] for record in heard if kind_of(record) == "x"] == [0, 1, 2]


def test_a_round_is_answered(run: Run, owner: Owner, tmp_path: Path) -> None:
    owner.answers = [WantedArms("weak/r", 4, ("alone",))]
    assert run("serve(); record('round_end'); order()").exit_code == 0
    told = 'was told {"say": "wanted", "study": "weak/r", "round": 4, "arms": ["alone"]}'
    assert log_of(tmp_path).splitlines()[-1] == told


def test_logs_of_ranks_are_kept_where_they_belong(run: Run, tmp_path: Path) -> None:
    names = (
        "gang/x/attempt_0/1/stderr.log", "run/nccl-rank-3.log", "profiles/a.json.gz", "gang/../../out", "/out", "out",
        "gang",
    )  # fmt: skip
    sent = "; ".join(f"send({name!r}, b'one ', 1); send({name!r}, b'two', 1)" for name in names)
    assert run(f"serve(2); {sent}", nodes=2).exit_code == 0
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"gang-0.log", "gang-0/n2/x/attempt_0/1/stderr.log", "nccl-rank-3.log"}
    assert (tmp_path / "nccl-rank-3.log").read_text() == "one two"
    assert (tmp_path.parent / "profiles" / "a.json.gz").read_bytes() == b"one two", "beside the folder of logs"
    assert not (tmp_path.parent / "out").exists()


def test_a_node_with_another_version_is_refused_before_anything_starts(run: Run, tmp_path: Path) -> None:
    end = run("up(1); say('up', 1, version='0.0.9', mood='good'); order()", nodes=2)
    expected = f"n2 runs pytest-ddpscale 0.0.9, but this session runs {__version__}: install the same version"
    assert end == GangEnd(None, expected)
    assert log_of(tmp_path) == 'was told {"say": "stop", "failed": false}\n'


def test_a_node_without_loopback_is_refused_before_anything_starts(run: Run, tmp_path: Path) -> None:
    down = "version=__version__, loopback_problem='Network is unreachable'"
    end = run(f"from pytest_ddpscale import __version__; up(1); say('up', 1, {down}); order()", nodes=2)
    why = "127.0.0.1 cannot be reached on n2 (Network is unreachable): bring up loopback with `ip link set lo up`"
    assert end == GangEnd(None, why)
    assert log_of(tmp_path) == 'was told {"say": "stop", "failed": false}\n'


def test_a_node_that_does_not_come_up_is_named(run: Run) -> None:
    end = run("up(1); order()", nodes=2, hosts=("n1", "n2"), name="slurm", startup_s=0.5)
    assert end == GangEnd(None, "1 of 2 nodes came up within 0.5 s: n2 did not")


def test_the_wait_for_slurms_nodes_is_told_and_has_no_limit(run: Run, heard: list[Any]) -> None:
    queued = "print('srun: job 4 queued and waiting for resources', file=sys.stderr, flush=True); time.sleep(2.0)"
    # The interpreter has to start and print within the limit, on a busy machine as well.
    assert run(f"{queued}; serve()", name="slurm", startup_s=1.5) == GangEnd(0)
    assert Queued("job 4 queued and waiting for resources") in heard


def test_nodes_that_slurm_has_allocated_come_up_within_the_time_limit(run: Run) -> None:
    """Otherwise a hanging file system would keep the job for ever."""
    says = "print('srun: job 4 {}', file=sys.stderr, flush=True); time.sleep(0.4)".format
    queued, allocated = says("queued and waiting for resources"), says("has been allocated resources")
    for agents in (f"{queued}; {allocated}; order()", "order()"):  # there are free nodes where srun says nothing
        end = run(agents, name="slurm", startup_s=0.3)
        assert end == GangEnd(None, "0 of 1 nodes came up within 0.3 s")


def test_a_launcher_that_ends_before_any_node_is_up_has_its_last_words_told(run: Run) -> None:
    end = run("print('srun: error: invalid partition specified: gpu', file=sys.stderr); sys.exit(1)", name="slurm")
    assert end.exit_code == 1
    assert end.why.endswith(
        "code 1 without a report from a rank: srun: error: invalid partition specified: gpu\n"
        "last output:\n  srun: error: invalid partition specified: gpu"
    )


def test_a_gang_that_records_nothing_and_moves_no_more_is_ended_and_who_is_behind_is_named(
    run: Run,
) -> None:
    end = run(
        "serve(); record('x'); rank(0, 4); rank(1, 3)\nbeat_until_stop(0)",
        startup_s=99.0,
        inactivity_s=0.7,
        total_s=20.0,
    )
    assert end.exit_code is None
    assert end.why == (
        "ranks recorded nothing for 0.7 s (--ddp-inactivity-limit), so the gang was ended. "
        "rank 1 on n1 is furthest behind of 2 ranks, in timed block (study weak/r, arm ddp@2, round 3)."
    )


def test_before_the_first_record_the_limit_for_the_start_counts(run: Run) -> None:
    end = run("serve(); beat_until_stop(0)", startup_s=0.5, inactivity_s=99.0, total_s=3.0)
    assert end == GangEnd(
        None,
        "ranks recorded nothing for 0.5 s, so the gang was ended. 2 of 2 ranks have not come up: local rank 0 on n1, "
        "local rank 1 on n1, still importing torch? Look at the file system that holds the environment.",
    )


def test_of_ranks_that_come_up_late_those_that_have_not_are_named(run: Run) -> None:
    end = run("serve(); rank(0, 0); beat_until_stop(0)", startup_s=0.5, inactivity_s=0.1, total_s=3.0)
    assert "1 of 2 ranks has not come up: local rank 1 on n1, still importing torch?" in end.why


def test_ranks_that_move_are_not_ended_although_they_record_nothing(run: Run) -> None:
    """A block may be longer than the limit."""
    source = "serve()\nfor steps in range(30): rank(0, steps); time.sleep(0.04)"
    assert run(source, startup_s=0.8) == GangEnd(0)


def test_a_gang_that_is_not_done_in_time_is_ended(run: Run) -> None:
    end = run("serve(); record('x'); beat_until_stop(0)", total_s=0.7)
    assert end == GangEnd(None, "the gang ran longer than 0.7 s, the limit for its plan, so it was ended.")


def test_records_that_were_lost_on_the_way_end_the_gang(run: Run, owner: Owner) -> None:
    end = run("serve(); record('x'); SENT['records'] += 1; record('y'); beat_until_stop(0)")
    assert end.why.startswith("records from n1 were lost: the connection to its agent drops or alters")
    assert b'"y"' in owner.kept, "what did arrive is kept"


def test_nobody_is_silent_while_the_supervisor_does_not_listen(run: Run, owner: Owner) -> None:
    """Judging what was recorded may take longer than a node may be silent."""
    beats = "for n in range(30): say('beat'); say('beat', 1); time.sleep(0.03)"

    def judge(record: Any) -> None:
        if kind_of(record) == "x":
            time.sleep(0.8)

    owner.take = judge
    assert run(f"serve(2); record('x')\n{beats}", nodes=2, silence_s=0.6) == GangEnd(0)


def test_a_failure_ends_the_gang_once_all_have_had_time_to_report(run: Run) -> None:
    source = """serve(2)
say("failed", 0, local_rank=0, rank=0, phase="timed block", type="RuntimeError", message="Connection closed by peer")
time.sleep(0.05)
say("failed", 1, local_rank=1, rank=3, phase="timed block", type="ValueError", message="odd")
beat_until_stop(0, 1)"""
    end = run(source, nodes=2)
    assert end.exit_code is None
    assert end.why == "rank 3 on n2 failed in timed block: ValueError: odd; 1 more rank failed after it"
    assert [report.rank for report in end.failures] == [0, 3]


KILLED = "serve(); print('srun: a harmless last line', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(("name", "who"), [("slurm", "srun"), ("torchrun", "the node's agent")])
def test_a_launcher_that_was_killed_is_said_to_be_that(run: Run, name: str, who: str) -> None:
    end = run(KILLED, name=name)
    assert end.exit_code == -9
    assert end.why.startswith(f"{who} was killed by SIGKILL from outside this run: check this machine's limits")
    assert "harmless" not in end.why


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What was asked of a squeue that knows the step for a while."""
    asked, program = tmp_path / "asked", tmp_path / "squeue"
    step = f"ddpscale-{tmp_path.name[:8]}"
    program.write_text(f'#!/bin/sh\necho "$*" >>{asked}\n[ $(wc -l <{asked}) -lt 3 ] && echo {step}\necho batch\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gang_module, "STEP_POLL_S", 0.05)
    monkeypatch.setattr(gang_module, "STEP_END_S", 30.0)
    return asked


def test_the_step_of_a_srun_that_was_killed_is_waited_for(
    run: Run, tmp_path: Path, squeue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks need seconds to end, and another gang would share the GPUs with them."""
    step, job = f"ddpscale-{tmp_path.name[:8]}", {"SLURM_JOB_ID": "17"}
    assert run(KILLED, name="slurm", hosts=("n1",), environ=job).left == ""
    assert squeue.read_text().splitlines() == ["--noheader --format=%j --steps --jobs=17"] * 3
    assert run(KILLED, name="slurm", environ=job).left == ""
    assert squeue.read_text().splitlines()[3:] == [f"--noheader --format=%j --name={step}"]
    squeue.unlink()
    monkeypatch.setattr(gang_module, "STEP_END_S", 0.0)
    assert run(KILLED, name="slurm", hosts=("n1",), environ=job).left == (
        f"Processes of its Slurm step {step} are left on the nodes, so no other gang is started; see `squeue --steps`"
    )
    squeue.unlink()
    end = run("serve(); say('exit', code=0, exits=[]); sys.exit(1)", name="slurm", hosts=("n1",), environ=job)
    assert (end.left, squeue.exists()) == ("", False), "its agent has said that nothing is left"


def test_last_words_that_come_after_the_end_was_decided_count(run: Run) -> None:
    source = """serve()
rank(1); say("gone", local_rank=1, rank=1, steps=3, **{**RANK, "state": ""})
assert order()["say"] == "stop"
say("words", local_rank=1, lines=["Killed by nobody knows whom"])
say("exit", code=1, exits=[[1, -9, 1, True]], oom_kills=1)"""
    assert run(source).why == (
        "rank 1 on n1 was killed by SIGKILL in timed block (study weak/r, arm ddp@2, round 3): the kernel's OOM "
        "killer ended it (oom_kill in /proc/vmstat)\nits last output:\n  Killed by nobody knows whom"
    )


def test_after_a_failure_agents_are_asked_for_their_gpus(run: Run, tmp_path: Path) -> None:
    found = [Survey(host, 1.0, has_driver=True, cores=2) for host in ("n1", "n2")]
    source = f"""FOUND = {[to_builtins(one) for one in found]!r}
serve(2)
say("failed", 1, local_rank=0, rank=2, phase="timed block", type="RuntimeError", message="CUDA error")
order()
for node, survey in enumerate(FOUND):
    say("post_mortem", node, survey=survey)
for node in range(2):
    say("exit", node, code=1, exits=[])"""
    end = run(source, nodes=2)
    assert end.post_mortems == tuple(PostMortem(one) for one in found)
    assert log_of(tmp_path).splitlines()[-1] == 'was told {"say": "stop", "failed": true}'


@pytest.mark.parametrize(
    ("also", "peers"),
    [
        ("", ["10.0.0.2"]),
        ('say("gone", local_rank=1, rank=1, steps=3, **{**RANK, "state": ""})', []),  # left early
    ],
)
def test_a_link_without_answer_is_noted_where_nothing_else_ended_the_gang(
    run: Run, also: str, peers: list[str]
) -> None:
    last = "Got completion from peer 10.0.0.2<5> with status=IBV_WC_RETRY_EXC_ERR(12) hca mlx5_3"
    source = f"""serve(2)
rank(1)
say("failed", 0, local_rank=0, rank=0, phase="timed block", type="DistBackendError", message="NCCL error: {last}")
{also}
order()
for node in range(2):
    say("exit", node, code=1, exits=[])"""
    assert [one.peer for one in run(source, nodes=2).gpu_errors] == peers


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


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError], ids=["an interrupt", "a disk that is full"])
def test_what_ends_measuring_ends_the_gang_in_order(
    run: Run, owner: Owner, tmp_path: Path, error: type[BaseException]
) -> None:
    def interrupt(record: Any) -> None:
        if "was told" in log_of(tmp_path):
            raise error

    owner.take = interrupt
    with pytest.raises(error):
        run("print(os.getpid()); serve(); order()")
    pid, *orders = log_of(tmp_path).splitlines()
    assert not psutil.pid_exists(int(pid))
    assert [order.partition('"say": ')[2][:7] for order in orders] == ['"start"', '"stop",']


def test_a_launcher_that_cannot_be_started_ran_no_rank(run: Run) -> None:
    command = ["/no such/srun", "-N2", "--comment=token=hunter2"]
    end = run("", launcher=scripted(lambda launch: command))
    assert end.exit_code is None
    assert end.why.startswith("/no such/srun: could not be started (No such file or directory)")
    assert end.why.endswith("The command was: '/no such/srun' -N2 '--comment=token=***'")
