"""This machine as a place for gangs."""

from __future__ import annotations

import pytest

from pytest_ddpscale.launch.gang_setup import setup_here
from pytest_ddpscale.launch.torchrun import TorchrunLauncher


def test_here_torchrun_starts_ranks_with_what_they_may_have_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    place = setup_here("cuda")
    assert place.launcher == TorchrunLauncher()
    assert place.hosts == ()
    assert "RANK" not in place.environment
    assert (place.environment["NCCL_DEBUG"], place.environment["CUDA_DEVICE_ORDER"]) == ("INFO", "PCI_BUS_ID")
