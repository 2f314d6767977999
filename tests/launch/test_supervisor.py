"""What a gang did not measure is settled: measured by the next gang, or recorded with the reason why not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale import __version__
from pytest_ddpscale.evidence.evidence import read_evidence
from pytest_ddpscale.launch.gang_setup import GangSetup
from pytest_ddpscale.launch.launcher import GangSpec
from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.records import StudyEnd, strict_json
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import errors_of, start_run

STUDIES = tuple(
    Study("weak", Workload(name, "resnet18", "fp32", 4), (Arm("alone", 1, 4),), 5, 1.0, 1.0) for name in ("r", "v")
)
IDS = [study.id for study in STUDIES]
PLAN = Plan("cpu", "cpu", STUDIES)


class ScriptedLauncher:
    """Starts these commands, one after the other; the last of them for ever."""

    name = "scripted"
    needs_shared_directory = False

    def __init__(self, *commands: list[str]) -> None:
        self._commands = list(commands)
        self.started = 0
        self.worker_arguments: Sequence[str] = ()

    def command(self, gang: GangSpec) -> list[str]:
        """The next command."""
        self.started += 1
        self.worker_arguments = gang.worker_arguments
        return self._commands[min(self.started, len(self._commands)) - 1]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run")
    start_run(run, "cpu", (), tmp_path, "ab" * 32)
    run.write_json(run.plan_json, PLAN.as_json())
    return run


def program(path: Path, content: bytes, mode: int) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def place(launcher: ScriptedLauncher) -> GangSetup:
    return GangSetup(launcher, (), os.environ)


def measure(run: RunDirectory, launcher: ScriptedLauncher, *, isolate: bool = False) -> Supervisor:
    supervisor = Supervisor(place(launcher), run, Limits(inactivity_s=60.0), isolate=isolate)
    supervisor.measure(PLAN)
    return supervisor


def test_a_missing_launcher_is_the_error_of_every_study(run: RunDirectory, tmp_path: Path) -> None:
    missing = str(tmp_path / "no such venv" / "python")
    launcher = ScriptedLauncher([missing, "-m", "torch.distributed.run", "--nproc-per-node=1"])
    supervisor = measure(run, launcher)
    errors = errors_of(run.read_records())
    assert list(errors) == IDS
    for message in errors.values():
        assert message.startswith(f"{missing}: could not be started (No such file or directory); expected a program")
        assert "Check that it is still there" in message
        assert message.endswith(f"The command was: '{missing}' -m torch.distributed.run --nproc-per-node=1")
        assert "Traceback" not in message
    assert supervisor.gangs_started == 0
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
    measure(run, ScriptedLauncher([str(path)]))
    assert all(f"{path}: could not be started ({reason})" in m for m in errors_of(run.read_records()).values())


def test_each_study_has_its_own_try_when_isolated(run: RunDirectory) -> None:
    """The launcher of the first study cannot be started; that of the second can, and measures it."""
    end = StudyEnd(IDS[1], "rounds").as_json()
    writes = f"open({str(run.measurements_jsonl)!r}, 'a').write({strict_json(end) + chr(10)!r})"
    supervisor = measure(run, ScriptedLauncher(["/no/such/python"], [sys.executable, "-c", writes]), isolate=True)
    assert list(errors_of(run.read_records())) == [IDS[0]]
    assert supervisor.gangs_started == 1
    assert [log.name for log in sorted(run.logs.glob("gang-*.log"))] == ["gang-0.log", "gang-1.log"]


def test_the_listener_hears_of_it(run: RunDirectory) -> None:
    heard: list[dict[str, Any]] = []
    Supervisor(place(ScriptedLauncher(["/no/such/python"])), run, Limits(), heard.append).measure(PLAN)
    assert [(record["kind"], record["study"], record["reason"]) for record in heard] == [
        ("study_end", study, "error") for study in IDS
    ]


def test_the_run_can_be_judged_and_has_an_error_for_each_study(run: RunDirectory) -> None:
    measure(run, ScriptedLauncher(["/no/such/python"]))
    evidence = read_evidence(run)
    assert set(evidence.errors) == set(IDS)
    assert all("/no/such/python: could not be started" in message for message in evidence.errors.values())


@pytest.mark.parametrize("needs_shared_directory", [True, False])
def test_a_node_that_does_not_see_the_run_directory_is_named_and_nothing_is_launched(
    run: RunDirectory, needs_shared_directory: bool
) -> None:
    """Unless the launcher carries the records itself: then nobody has to see it."""
    heard: list[GangSpec] = []

    class Launcher(ScriptedLauncher):
        def command(self, gang: GangSpec) -> list[str]:
            heard.append(gang)
            return super().command(gang)

    up = {"say": "up", "node": 0, "host": "n1", "version": __version__, "port": 20_000, "sees_run_directory": False}
    says = (
        f"print('@ddpscale ' + {json.dumps(json.dumps(up))}, flush=True); print(input().partition(' ')[2], flush=True)"
    )
    launcher = Launcher([sys.executable, "-c", says])
    launcher.needs_shared_directory = needs_shared_directory
    measure(run, launcher)
    [log] = run.logs.glob("gang-*.log")
    assert ('"start"' in log.read_text()) == (not needs_shared_directory)
    errors = errors_of(run.read_records())
    expected = (
        f"n1 does not see the run directory {run.path.resolve()}, so nothing was launched; expected one that all nodes "
        "have at the same path: name it with --ddp-run-dir"
    )
    assert (set(errors.values()) == {expected}) == needs_shared_directory
    assert (heard[0].proof is not None) == needs_shared_directory
    assert not list(run.logs.glob("seen-*")), "nothing of it stays"


def test_other_errors_of_the_system_are_not_taken_for_it(run: RunDirectory) -> None:
    """The log cannot be written: that is no fault of the launcher."""
    run.logs.rmdir()
    with pytest.raises(FileNotFoundError, match=r"gang-0\.log"):
        measure(run, ScriptedLauncher(["/no/such/python"]))


def test_ranks_wait_for_each_other_longer_than_the_supervisor_does(run: RunDirectory) -> None:
    """Else those that wait fail first, and one of them is blamed."""
    launcher = ScriptedLauncher(["/no/such/python"])
    Supervisor(place(launcher), run, Limits(inactivity_s=900.0, startup_s=900.0)).measure(PLAN)
    timeout_s = launcher.worker_arguments[list(launcher.worker_arguments).index("--timeout-s") + 1]
    assert float(timeout_s) > 900.0
