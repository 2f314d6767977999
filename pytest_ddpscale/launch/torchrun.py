"""Ranks on this machine: the agent is started here, and starts torchrun."""

from __future__ import annotations

import os

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.launcher import AgentProcess, Cluster, Launch, Launcher, launcher
from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.settings import settings_from


@launcher("torchrun")
class TorchrunLauncher(Launcher):
    """One node, which is this one."""

    calls_itself = "this machine"

    def cluster(self, *, plans_only: bool) -> Cluster:
        """This machine. Raises OptionError if several are asked for."""
        nodes = self.settings.nodes or 1
        if nodes > 1:
            found = f"torchrun is asked for, beside --ddp-nodes={nodes}"
            raise OptionError("--ddp-launcher", found, "one for several nodes")
        return Cluster()

    def processes(self, launch: Launch) -> list[AgentProcess]:
        """The agent itself."""
        return [AgentProcess(launch.agent())]


def launch_here(device_type: DeviceType) -> Launch:
    """Gangs on this machine, with what ranks may have of this process's environment."""
    here = TorchrunLauncher(settings_from({}, {}, {}), os.environ)
    return Launch(here, worker_environment(os.environ, device_type), device_type=device_type)
