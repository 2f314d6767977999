"""What a gang did not measure is settled: measured by the next gang, or recorded with the reason why not."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.records import StudyEnd, StudyStart
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ended, ends_of
from pytest_ddpscale.run.survey_record import Survey, surveys_of
from tests.builders.json_types import begin
from tests.builders.launches import AGENTS, scripted
from tests.builders.records import gang_on

STUDIES = tuple(
    Study("weak", Workload(name, ImageFamily("resnet18"), "fp32", 4), (Arm("alone", 1, 4),), 5, 1.0, 1.0)
    for name in ("r", "v")
)
IDS = [study.id for study in STUDIES]
PLAN = Plan("cpu", "cpu", STUDIES)


class Starting:
    """Starts these commands, one after the other; the last of them for ever."""

    def __init__(self, *commands: list[str]) -> None:
        self._commands = list(commands)
        self.started = 0
        self.launch = Launch(scripted(self._next), os.environ)

    def _next(self, launch: Launch) -> list[str]:
        self.started += 1
        return self._commands[min(self.started, len(self._commands)) - 1]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run")
    begin(run)
    run.write_json(run.plan_json, PLAN)
    return run


def program(path: Path, content: bytes, mode: int) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def measure(run: RunDirectory, launcher: Starting, *, isolate: bool = False) -> None:
    Supervisor(launcher.launch, run, Limits(inactivity_s=60.0), isolate=isolate).measure(PLAN)


def test_a_missing_launcher_is_the_error_of_every_study(run: RunDirectory, tmp_path: Path) -> None:
    missing = str(tmp_path / "no such venv" / "python")
    launcher = Starting([missing, "-m", "torch.distributed.run", "--nproc-per-node=1"])
    measure(run, launcher)
    errors = ended(run.read_records(), "error")
    assert list(errors) == IDS
    for message in map(say, errors.values()):
        assert message.startswith(f"{missing}: could not be started (No such file or directory); expected a program")
        assert "Check that it and its virtual environment still exist" in message
        assert message.endswith(f"The command was: '{missing}' -m torch.distributed.run --nproc-per-node=1")
        assert "Traceback" not in message
    assert launcher.started == 1, "it is not tried again for what it has failed for"


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"#!/bin/sh\nexit 0\n", 0o644, "Permission denied"),
        (b"#!/no/such/interpreter\n", 0o755, "No such file or directory"),
        (b"\x00 no program", 0o755, "Exec format error"),
    ],
)
def test_the_system_s_reason_is_told(run: RunDirectory, tmp_path: Path, content: bytes, mode: int, reason: str) -> None:
    path = program(tmp_path / "torchrun", content, mode)
    measure(run, Starting([str(path)]))
    assert all(
        f"{path}: could not be started ({reason})" in say(m) for m in ended(run.read_records(), "error").values()
    )


def test_each_study_has_its_own_try_when_isolated(run: RunDirectory) -> None:
    """The launcher of the first study cannot be started; that of the second can, and measures it."""
    end = to_builtins(StudyEnd(IDS[1], "rounds"))
    measures = f"{AGENTS}\nserve(); record(**{end!r})"
    measure(run, Starting(["/no/such/python"], [sys.executable, "-c", measures]), isolate=True)
    assert list(ended(run.read_records(), "error")) == [IDS[0]]
    assert [log.name for log in sorted(run.logs.glob("gang-*.log"))] == ["gang-0.log", "gang-1.log"]


@pytest.mark.parametrize(("log", "recorded"), [("gang-1.log", 0), ("gang-0.log", 1)])
def test_no_gang_writes_into_the_log_of_another_of_which_some_are_gone(
    run: RunDirectory, log: str, recorded: int
) -> None:
    (run.logs / log).write_text("said before")
    run.append_record(gang_on(["n"], 1, number=recorded))
    measure(run, Starting(["/no/such/python"]))
    assert sorted(one.name for one in run.logs.glob("*.log")) == [log, "gang-2.log"]


def test_a_gang_that_ends_early_and_says_nothing_is_an_error_with_words(run: RunDirectory) -> None:
    """As where the kernel ended a rank, and the launcher took that for an end."""
    start = to_builtins(StudyStart(study=IDS[0], unix_s=1.0))
    measures = f"{AGENTS}\nserve(); record(**{start!r})"
    end = to_builtins(StudyEnd(IDS[1], "rounds"))
    goes_on = f"{AGENTS}\nserve(); record(**{end!r})"
    measure(run, Starting([sys.executable, "-c", measures], [sys.executable, "-c", goes_on]))
    assert ended(run.read_records(), "error") == {IDS[0]: because("ended-early")}


class TestLaunches:
    PLAN = replace(PLAN, studies=tuple(replace(STUDIES[0], launch=launch) for launch in (1, 2, 3)), launches=3)

    def measures(self, launch: int) -> list[str]:
        end = to_builtins(StudyEnd(self.PLAN.studies[launch - 1].id, "rounds"))
        told = "order(); print('studies', TASK['assignment']['studies'], TASK['assignment'].get('gang', 0))"
        return [sys.executable, "-c", f"{AGENTS}\nup(); {told}; record(**{end!r})"]

    def test_have_a_gang_each(self, run: RunDirectory) -> None:
        launcher = Starting(*map(self.measures, (1, 2, 3)))
        Supervisor(launcher.launch, run, Limits(inactivity_s=60.0)).measure(self.PLAN)
        told = [log.read_text().splitlines()[-1] for log in sorted(run.logs.glob("gang-*.log"))]
        assert told == [
            f"studies ['{study.id}'] {number}" for number, study in enumerate(self.PLAN.studies)
        ]  # fmt: skip
        assert [end.reason for end in ends_of(run.read_records()).values()] == ["rounds"] * 3

    def test_have_a_secret_each(self, run: RunDirectory) -> None:
        """By which their ranks know each other's messages."""
        tells = [sys.executable, "-c", f"{AGENTS}\nup(); order(); print(TASK['assignment']['secret'])"]
        Supervisor(Starting(tells, tells, tells).launch, run, Limits(inactivity_s=60.0)).measure(self.PLAN)
        told = {log.read_text().splitlines()[-1] for log in run.logs.glob("gang-*.log")}
        assert len(told) == 3
        assert all(re.fullmatch("[0-9a-f]{64}", secret) for secret in told)

    def test_for_which_there_is_no_time_are_not_started(self, run: RunDirectory) -> None:
        launcher = Starting(*map(self.measures, (1, 2, 3)))
        Supervisor(launcher.launch, run, Limits(inactivity_s=60.0, budget_s=1e-9)).measure(self.PLAN)
        assert [end.reason for end in ends_of(run.read_records()).values()] == ["rounds", "budget", "budget"]
        assert launcher.started == 1

    def test_after_one_that_broke_are_measured(self, run: RunDirectory) -> None:
        launcher = Starting(self.measures(1), ["/no/such/python"], self.measures(3))
        Supervisor(launcher.launch, run, Limits(inactivity_s=60.0)).measure(self.PLAN)
        assert [end.reason for end in ends_of(run.read_records()).values()] == ["rounds", "error", "rounds"]


def test_the_listener_hears_of_it(run: RunDirectory) -> None:
    heard: list[Any] = []
    Supervisor(Starting(["/no/such/python"]).launch, run, Limits(), heard.append).measure(PLAN)
    assert [(type(record), record.study, record.reason) for record in heard] == [
        (StudyEnd, study, "error") for study in IDS
    ]


def test_the_run_can_be_judged_and_has_an_error_for_each_study(run: RunDirectory) -> None:
    measure(run, Starting(["/no/such/python"]))
    evidence = read_evidence(run)
    assert set(evidence.errors) == set(IDS)
    assert all("/no/such/python: could not be started" in say(message) for message in evidence.errors.values())


def test_other_errors_of_the_system_are_not_taken_for_it(run: RunDirectory) -> None:
    """The log cannot be written: that is no fault of the launcher."""
    run.logs.rmdir()
    with pytest.raises(FileNotFoundError, match=r"gang-0\.log"):
        measure(run, Starting(["/no/such/python"]))


def test_ranks_wait_for_each_other_longer_than_the_supervisor_does(run: RunDirectory) -> None:
    """Else those that wait fail first, and one of them is blamed."""
    tells = f"{AGENTS}\nserve(); print('timeout', TASK['assignment']['timeout_s'])"
    launch = Starting([sys.executable, "-c", tells]).launch
    Supervisor(launch, run, Limits(inactivity_s=900.0, startup_s=900.0)).measure(PLAN)
    told = (run.logs / "gang-0.log").read_text().splitlines()[-1]
    assert float(told.removeprefix("timeout ")) > 900.0


def test_what_is_free_where_the_run_is_written_is_known_of_every_node(run: RunDirectory) -> None:
    source = f"""{AGENTS}
up(); say("survey", survey={to_builtins(Survey("n1", 1.0, free_bytes={"temporary": 7}))!r}); order()"""
    Supervisor(Starting([sys.executable, "-c", source]).launch, run, Limits()).measure(replace(PLAN, survey=True))
    free = surveys_of(run.read_records())["n1"].free_bytes
    assert free["temporary"] == 7
    assert free["run_directory"] > 0
