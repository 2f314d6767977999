"""Ranks on the nodes of a Slurm job: ``srun`` starts one agent a node, which starts torchrun there."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddpscale.launch.container import NO_CONTAINER, Container
from pytest_ddpscale.launch.launcher import GangSpec, agent_command

_SRUN = (
    "srun",
    "--job-name=ddpscale",
    "--ntasks-per-node=1",
    "--export=ALL",  # of what the supervisor passes; a site may have set SLURM_EXPORT_ENV to less
    "--cpu-bind=none",  # else the one task of a node, and all ranks under it, may be bound to one core
    "--overlap",  # a step that still ends on a broken node must not keep the next one waiting
    "--kill-on-bad-exit=0",  # when one node fails, the others say first where they were
    "--wait=0",
    "--no-kill",  # nor when Slurm gives a node up: the job needs that option too
)


@dataclass(frozen=True)
class SlurmLauncher:
    """Inside an allocation a step of it; elsewhere srun asks for an allocation.

    Attributes:
        arguments: further ones of srun, such as ``--partition=gpu``; they win over ours.
        container: what agents and ranks run in.
    """

    arguments: tuple[str, ...] = ()
    container: Container = NO_CONTAINER
    name = "slurm"

    def command(self, gang: GangSpec) -> list[str]:
        """``srun --nodes=N --ntasks=N … python -m pytest_ddpscale.node --slurm …``."""
        size = [f"--nodes={gang.nodes}", f"--ntasks={gang.nodes}"]
        where = [f"--nodelist={','.join(gang.hosts)}"] if gang.hosts else []
        srun = [*_SRUN, *size, *where, *self.container.srun_arguments, *self.arguments]
        return [*srun, *agent_command(gang, self.container, "--slurm")]
