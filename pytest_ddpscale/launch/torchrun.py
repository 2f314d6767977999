"""Launcher for this machine: starts the agent here, which starts torchrun."""

from __future__ import annotations

import os
import platform

from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.launcher import AgentProcess, Cluster, Launch, Launcher
from pytest_ddpscale.node.addresses import loopback_problem
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.settings import settings_from


class TorchrunLauncher(Launcher, called="torchrun"):
    """One node: this machine."""

    calls_itself = "this machine"

    def cluster(self, *, plans_only: bool) -> Cluster:
        """This machine.

        Raises:
            OptionError: several nodes are requested.
            SkuError: ranks could not connect to each other.
        """
        nodes = self.settings.nodes or 1
        if nodes > 1:
            found = f"found torchrun together with --ddp-nodes={nodes}"
            raise OptionError("--ddp-launcher", found, "a launcher for several nodes")
        if not plans_only and (problem := loopback_problem()):
            raise SkuError(
                f"loopback on {platform.node()}", f"127.0.0.1 cannot be reached ({problem})", "interface lo up",
                "Bring it up with `ip link set lo up`; if it is up, a firewall or a sandbox blocks connections.",
            )  # fmt: skip
        return Cluster()

    def processes(self, launch: Launch) -> list[AgentProcess]:
        """The agent's own process."""
        return [AgentProcess(launch.agent())]


def launch_here(device_type: DeviceType) -> Launch:
    """A launch on this machine, with the parts of this process's environment that ranks may have."""
    here = TorchrunLauncher(settings_from({}, {}, {}), os.environ)
    return Launch(here, worker_environment(os.environ, device_type), device_type=device_type)
