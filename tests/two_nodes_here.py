"""Two nodes on this machine, each with an agent of its own: 127.0.0.1 and 127.0.0.2, so that they find each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pytest_ddpscale.launch.launcher import AgentProcess, Launch
from tests.forks.launcher import ForkingLauncher, forked_here

HOSTS = ("127.0.0.1", "127.0.0.2")


class TwoNodesHere(ForkingLauncher):
    """As ssh would, without it."""

    def processes(self, launch: Launch) -> list[AgentProcess]:
        """An agent for each."""
        return [
            AgentProcess(self.agent(f"--node={index}", f"--host={host}"), host)
            for index, host in enumerate(launch.hosts)
        ]


def two_nodes_here(further: Mapping[str, str] | None = None) -> Launch:
    """Gangs on both of them.

    Args:
        further: variables for what is started.
    """
    here = forked_here(TwoNodesHere)
    return replace(here, environment={**here.environment, **(further or {})}, hosts=HOSTS)
