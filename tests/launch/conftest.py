"""What all tests of the launching side share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.launch import gang as gang_module
from pytest_ddpscale.launch.gang import Gang
from pytest_ddpscale.launch.gang_state import GangEnd, Limits
from pytest_ddpscale.launch.launcher import Launch, Launcher
from pytest_ddpscale.launch.slurm import SlurmLauncher
from tests.builders.launches import playing, task
from tests.launch.watched_gang import Owner, Run


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that agents only play is looked at often."""
    monkeypatch.setattr(gang_module, "POLL_S", 0.02)


@pytest.fixture(autouse=True)
def no_step_is_left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents here are no step of a real Slurm, which could be asked for it; but a test may have one of its own."""
    if "squeue" not in request.fixturenames:
        monkeypatch.setattr(SlurmLauncher, "left_behind", lambda self, launch: "")


@pytest.fixture
def heard() -> list[Any]:
    """What the gang's listener heard."""
    return []


@pytest.fixture
def owner(heard: list[Any]) -> Owner:
    return Owner(heard)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Owner) -> Run:
    """Run agents to their end, with little patience."""
    for name, seconds in {
        "GRACE_S": 3.0,
        "COLLECT_S": 0.1,
        "FAREWELL_S": 5.0,
        "STEP_END_S": 0.0,
        "MISSED_BEATS": 0,
    }.items():
        monkeypatch.setattr(gang_module, name, seconds)

    def start(
        source: str, nodes: int = 1, hosts: tuple[str, ...] = (), name: str = "torchrun",
        environ: dict[str, str] | None = None, launcher: Launcher | None = None, post_mortem: bool = False,
        **limits: float,
    ) -> GangEnd:  # fmt: skip
        launcher = launcher or playing(source, name, environ)
        launch = Launch(launcher, {}, hosts, nodes=nodes, gang_id=tmp_path.name)
        told = task(gang_id=tmp_path.name, nodes=nodes, post_mortem=post_mortem, beat_s=0.1)
        return Gang(told, launch, Limits(**limits), tmp_path / "gang-0.log", owner).run()

    return start
