"""Gangs that agents only play."""

from __future__ import annotations

import pytest

from pytest_ddpscale.launch import gang as gang_module


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked at often, and nobody waits for more bad news."""
    for name, seconds in {"POLL_S": 0.02, "COLLECT_S": 0.1, "GRACE_S": 3.0, "FAREWELL_S": 5.0}.items():
        monkeypatch.setattr(gang_module, name, seconds)
