"""This machine as a place for gangs."""

from __future__ import annotations

import sys

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.environment import launch_here
from pytest_ddpscale.launch.launcher import AgentProcess, Cluster, Container, Launch, TorchrunLauncher
from tests.builders.launches import settings

AGENT = ["-m", "pytest_ddpscale.node"]


def test_the_agent_is_started_with_the_running_interpreter() -> None:
    launcher = TorchrunLauncher(settings(), {})
    assert (launcher.name, launcher.cluster(plans_only=False)) == ("torchrun", Cluster())
    assert launcher.processes(Launch(launcher, {})) == [AgentProcess([sys.executable, *AGENT])]


def test_in_a_container_with_its_own_interpreter() -> None:
    container = Container(command=("apptainer", "exec", "--nv", "image.sif"), python="python3")
    launch = Launch(TorchrunLauncher(settings(), {}), {}, container=container)
    [process] = launch.launcher.processes(launch)
    assert process.command == ["apptainer", "exec", "--nv", "image.sif", "python3", *AGENT]


def test_several_nodes_are_refused() -> None:
    with pytest.raises(OptionError, match=r"^--ddp-launcher: found torchrun together with --ddp-nodes=2;"):
        TorchrunLauncher(settings(nodes="2"), {}).cluster(plans_only=False)


def test_here_ranks_start_with_what_they_may_have_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    launch = launch_here("cuda")
    assert isinstance(launch.launcher, TorchrunLauncher)
    assert (launch.hosts, launch.device_type) == ((), "cuda")
    assert "RANK" not in launch.environment
    assert (launch.environment["NCCL_DEBUG"], launch.environment["CUDA_DEVICE_ORDER"]) == ("INFO", "PCI_BUS_ID")
