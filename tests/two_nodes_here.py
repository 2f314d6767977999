"""Two nodes on this machine, each with an agent of its own: 127.0.0.1 and 127.0.0.2, so that they find each other."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.launcher import AgentProcess, Launch
from pytest_ddpscale.launch.torchrun import TorchrunLauncher
from pytest_ddpscale.settings import settings_from

HOSTS = ("127.0.0.1", "127.0.0.2")


class TwoNodesHere(TorchrunLauncher):
    """As ssh would, without it."""

    def processes(self, launch: Launch) -> list[AgentProcess]:
        """An agent for each."""
        return [
            AgentProcess(launch.agent(f"--node={index}", f"--host={host}"), host)
            for index, host in enumerate(launch.hosts)
        ]


def two_nodes_here(further: Mapping[str, str] | None = None) -> Launch:
    """Gangs on both of them.

    Args:
        further: variables for what is started.
    """
    launcher = TwoNodesHere(settings_from({}, {}, {}), os.environ)
    return Launch(launcher, {**worker_environment(os.environ, "cpu"), **(further or {})}, HOSTS)
