"""Where and how gangs start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.launcher import Launcher
from pytest_ddpscale.launch.torchrun import TorchrunLauncher
from pytest_ddpscale.plan.study import DeviceType


@dataclass(frozen=True)
class GangSetup:
    """Where and how gangs start.

    Attributes:
        launcher: how.
        hosts: names of the nodes, in rank order; empty where Slurm is still to choose them, and on one machine.
        environment: of all that is started.
    """

    launcher: Launcher
    hosts: tuple[str, ...]
    environment: Mapping[str, str]


def setup_here(device_type: DeviceType) -> GangSetup:
    """This machine, with what ranks may have of this process's environment."""
    return GangSetup(TorchrunLauncher(), (), worker_environment(os.environ, device_type))
