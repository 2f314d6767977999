"""What all tests of the launching side share."""

from __future__ import annotations

import pytest

from pytest_ddpscale.launch import gang
from pytest_ddpscale.launch.slurm import SlurmLauncher


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that agents only play is looked at often."""
    monkeypatch.setattr(gang, "POLL_S", 0.02)


@pytest.fixture(autouse=True)
def no_step_is_left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents here are no step of a real Slurm, which could be asked for it; but a test may have one of its own."""
    if "squeue" not in request.fixturenames:
        monkeypatch.setattr(SlurmLauncher, "left_behind", lambda self, launch: "")
