"""Launch ranks on the nodes of a PBS job, by ssh; PBS lists the nodes in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_ddpscale.launch.hosts import read_hostfile
from pytest_ddpscale.launch.launcher import launcher
from pytest_ddpscale.launch.ssh import SshLauncher
from pytest_ddpscale.settings import Settings


@launcher("pbs")
class PbsLauncher(SshLauncher):
    """`qsub -l select=16:ngpus=8:mpiprocs=8 …`: the file has each node's name `mpiprocs` times."""

    calls_itself = "PBS"
    options = ("remote_python",)

    @classmethod
    def is_meant(cls, settings: Settings, environ: Mapping[str, str]) -> bool:
        """True within a job, unless hosts are named."""
        return "PBS_NODEFILE" in environ and not settings.hosts

    def named_hosts(self) -> tuple[tuple[str, ...], int | None]:
        """The nodes of the job, and the number of ranks on each."""
        return read_hostfile(Path(self.environ["PBS_NODEFILE"]))
