"""A gang is watched from its start to its end, and ended when it has to be.

What is started is a small program that says what agents say.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_ddpscale import __version__
from pytest_ddpscale.launch import gang as gang_module
from pytest_ddpscale.launch.gang_state import GangEnd
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.rank_folder import WantedArms
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.record_lines import Queued
from tests.builders.launches import scripted
from tests.launch.watched_gang import Owner, Run, kind_of
from tests.tables import assert_approved, each_block

TABLE = Path(__file__).with_name("gangs.txt")


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "gang-0.log").read_text(encoding="utf-8")


@each_block(TABLE)
def test_a_gang_ends_as_its_agents_say(
    block: str, run: Run, owner: Owner, heard: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case of gangs.txt: options of the gang, its limits and constants; and what plays its agents."""

    def told(case: str) -> Iterator[str]:
        options, _, source = case.partition("| ")
        given: dict[str, Any] = {"nodes": 1}
        with monkeypatch.context() as patched:
            for option in options.split():
                name, _, value = option.partition("=")
                if name.isupper():
                    patched.setattr(gang_module, name, float(value))
                else:
                    given[name] = tuple(value.split(",")) if name == "hosts" else value
            limits = {name: float(value) for name, value in given.items() if name.endswith("_s")}
            owner.answers, heard[:] = [WantedArms("weak/r", 4, ("alone",))], []
            (tmp_path / "gang-0.log").unlink(missing_ok=True)
            end = run(source.replace("\\n", "\n"), **given | limits | {"nodes": int(given["nodes"])})
        yield f"ended with {end.exit_code}"
        yield from say(end.why).replace(__version__, "VERSION").splitlines()
        looked = [one.survey.host for one in end.post_mortems]
        peers = [one.peer for one in end.gpu_errors]
        ranks = [one.rank for one in end.failures]
        more = {
            "interrupted": say(end.interrupted),
            "lost": end.lost_hosts,
            "failed": ranks,
            "peers": peers,
            "looked": looked,
        }
        yield from (f"{name}: {value}" for name, value in more.items() if value)
        yield from dict.fromkeys(f"queued: {one.state}" for one in heard if isinstance(one, Queued))
        yield from (f"record {one}" for one in heard if isinstance(one, dict))
        yield from (line for line in log_of(tmp_path).splitlines() if line.startswith("was told"))

    assert_approved(TABLE, block, told)


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


def test_nobody_is_silent_while_the_supervisor_does_not_listen(run: Run, owner: Owner) -> None:
    """Judging what was recorded may take longer than a node may be silent."""
    beats = "for n in range(30): say('beat'); say('beat', 1); time.sleep(0.03)"

    def judge(record: Any) -> None:
        if kind_of(record) == "x":
            time.sleep(0.8)

    owner.take = judge
    assert run(f"serve(2); record('x')\n{beats}", nodes=2, silence_s=0.6) == GangEnd(0)


KILLED = "serve(); print('srun: a harmless last line', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"


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
    assert run(KILLED, name="slurm", hosts=("n1",), environ=job).left == because("step-left", step)
    squeue.unlink()
    end = run("serve(); say('exit', code=0, exits=[]); sys.exit(1)", name="slurm", hosts=("n1",), environ=job)
    assert (end.left, squeue.exists()) == ("", False), "its agent has said that nothing is left"


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
    why = say(end.why)
    assert end.exit_code is None
    assert why.startswith("/no such/srun: could not be started (No such file or directory)")
    assert why.endswith("The command was: '/no such/srun' -N2 '--comment=token=***'")
