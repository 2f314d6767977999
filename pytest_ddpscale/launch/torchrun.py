"""Ranks on this machine: the agent starts torchrun here."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddpscale.launch.container import NO_CONTAINER, Container
from pytest_ddpscale.launch.launcher import GangSpec, agent_command


@dataclass(frozen=True)
class TorchrunLauncher:
    """One node. A container, if any, is Apptainer's: Pyxis needs srun."""

    container: Container = NO_CONTAINER
    name = "torchrun"
    needs_shared_directory = False

    def command(self, gang: GangSpec) -> list[str]:
        """The agent's command line."""
        return agent_command(gang, self.container)
