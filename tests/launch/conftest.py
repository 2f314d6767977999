"""What all tests of the launching side share."""

from __future__ import annotations

import pytest

from pytest_ddpscale.launch import gang as gang_module


@pytest.fixture(autouse=True)
def no_step_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents here are no step of a real Slurm, which could be asked for it."""
    monkeypatch.setattr(gang_module, "step_is_gone", lambda name, *, within_job: True)
