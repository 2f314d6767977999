"""Launcher for this machine: starts the agent here, which starts torchrun."""

from __future__ import annotations

import os

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.launcher import AgentProcess, Cluster, Launch, Launcher, launcher
from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.settings import settings_from


@launcher("torchrun")
class TorchrunLauncher(Launcher):
    """One node: this machine."""

    calls_itself = "this machine"

    def cluster(self, *, plans_only: bool) -> Cluster:
        """This machine. Raises OptionError if several nodes are requested."""
        nodes = self.settings.nodes or 1
        if nodes > 1:
            found = f"found torchrun together with --ddp-nodes={nodes}"
            raise OptionError("--ddp-launcher", found, "a launcher for several nodes")
        return Cluster()

    def processes(self, launch: Launch) -> list[AgentProcess]:
        """The agent's own process."""
        return [AgentProcess(launch.agent())]


def launch_here(device_type: DeviceType) -> Launch:
    """A launch on this machine, with the parts of this process's environment that ranks may have."""
    here = TorchrunLauncher(settings_from({}, {}, {}), os.environ)
    return Launch(here, worker_environment(os.environ, device_type), device_type=device_type)
