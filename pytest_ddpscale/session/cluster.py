"""On which nodes ranks will run, and who starts them: this machine, the Slurm job around us, or one to be made."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.container import container_of
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.gang_setup import GangSetup
from pytest_ddpscale.launch.slurm import SlurmLauncher
from pytest_ddpscale.launch.slurm_job import Allocation, allocation_of
from pytest_ddpscale.launch.torchrun import TorchrunLauncher
from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.settings import AUTO, Settings
from pytest_ddpscale.util.masking import masked_arguments


@dataclass(frozen=True)
class Cluster:
    """Where ranks will run.

    Attributes:
        nodes: how many.
        hosts: their names, in rank order; empty where Slurm is still to choose them, and on this machine.
        uses_slurm: whether srun starts the ranks.
        is_elsewhere: whether this machine is none of them, so that the devices here say nothing.
    """

    nodes: int = 1
    hosts: tuple[str, ...] = ()
    uses_slurm: bool = False
    is_elsewhere: bool = False

    def without(self, unfit: Collection[str]) -> Cluster | None:
        """The other nodes; None if there are none, or if Slurm and not we choose which nodes there are."""
        others = tuple(host for host in self.hosts if host not in unfit)
        return replace(self, nodes=len(others), hosts=others) if 0 < len(others) < len(self.hosts) else None


THIS_MACHINE = Cluster()
# Arguments of srun by which a user says which GPUs, so that we need not.
_ASKS_FOR_GPUS = re.compile(r"(--gpus(-per-(node|task|socket))?|--gres|--tres-per-(node|task|socket))(=|$)|-G")


def find_cluster(settings: Settings, environ: Mapping[str, str], *, plans_only: bool = False) -> Cluster:
    """The nodes that the settings and the environment mean.

    With ``--ddp-launcher=auto``: several nodes of the allocation around us by srun, one node by torchrun
    alone, and outside of an allocation srun only if nodes or arguments of srun are asked for.

    Args:
        settings: what the user asked for.
        environ: this process's.
        plans_only: nothing will be started, so that a laptop without Slurm may plan for many nodes.

    Raises:
        OptionError: options contradict each other or the allocation, srun is not there, or Slurm does not say which
            nodes the job has.
    """
    if settings.launcher == "torchrun":
        return _this_machine(settings)
    allocation = _allocation(environ, needed=not plans_only)
    if plans_only:
        nodes = settings.nodes or (len(allocation.hosts) if allocation else 1)
        return Cluster(nodes, is_elsewhere=nodes > 1)
    wants_slurm = settings.launcher == "slurm" or bool(settings.slurm_args) or (settings.nodes or 1) > 1
    if allocation is None:
        return _asked_for(settings) if wants_slurm else THIS_MACHINE
    nodes = settings.nodes or len(allocation.hosts)
    if nodes > len(allocation.hosts):
        raise OptionError(
            "--ddp-nodes", f"found {nodes}, but Slurm job {allocation.job_id} has {len(allocation.hosts)}",
            f"at most {len(allocation.hosts)}", "Ask sbatch or salloc for more nodes.",
        )  # fmt: skip
    is_elsewhere = not _is_one_of(allocation.hosts, environ)  # a shell of salloc may be on the login node
    if not (wants_slurm or nodes > 1 or is_elsewhere):
        return THIS_MACHINE
    _require_srun()
    return Cluster(nodes, allocation.hosts[:nodes], uses_slurm=True, is_elsewhere=is_elsewhere)


def place_of(
    cluster: Cluster,
    settings: Settings,
    device_type: DeviceType,
    run_path: Path,
    environ: Mapping[str, str],
) -> GangSetup:
    """How gangs start on these nodes.

    Args:
        cluster: the nodes.
        settings: container, arguments of srun and environment.
        device_type: what ranks train on.
        run_path: the run directory, which a container has to see.
        environ: this process's.

    Raises:
        OptionError: the container cannot be started here.
    """
    environment = worker_environment(environ, device_type, pass_env=settings.pass_env)
    container = container_of(settings.container, run_path, device_type, has_srun=cluster.uses_slurm)
    if not cluster.uses_slurm:
        return GangSetup(TorchrunLauncher(container), (), environment)
    arguments = settings.slurm_args
    has_gpus = bool(cluster.hosts) or any(_ASKS_FOR_GPUS.match(argument) for argument in arguments)
    if device_type == "cuda" and not has_gpus:
        arguments = (f"--gpus-per-node={settings.gpus_per_node}", *arguments)
    return GangSetup(SlurmLauncher(arguments, container), cluster.hosts, environment)


def refuse_wrong_arguments(place: GangSetup, nodes: int) -> None:
    """Have srun look at its arguments before anything is begun.

    Raises:
        OptionError: srun, or Slurm, never accepts them.
    """
    launcher = place.launcher
    if not isinstance(launcher, SlurmLauncher):
        return
    complaint = launcher.complaint(nodes, place.hosts, place.environment)
    if not complaint:
        return
    asked = [*launcher.container.srun_arguments, *launcher.arguments]
    where = "--ddp-slurm-args" if launcher.arguments else "--ddp-container" if asked else "srun"
    command = shlex.join(masked_arguments(["srun", *asked, "--test-only", "true"]))
    raise OptionError(where, f"srun refuses: {complaint}", "arguments that srun takes here", f"Try `{command}`.")


def _this_machine(settings: Settings) -> Cluster:
    if (settings.nodes or 1) > 1 or settings.slurm_args:
        found = f"--ddp-nodes={settings.nodes}" if (settings.nodes or 1) > 1 else "--ddp-slurm-args"
        raise OptionError("--ddp-launcher", f"torchrun is asked for, beside {found}", "slurm for several nodes")
    return THIS_MACHINE


def _asked_for(settings: Settings) -> Cluster:
    """From a login node: each launch is a job of its own."""
    _require_srun()
    if settings.isolate:
        raise OptionError(
            "--ddp-isolate", "each study would be a Slurm job of its own, maybe on other nodes", "one allocation",
            "Start pytest by sbatch or within salloc.",
        )  # fmt: skip
    return Cluster(settings.nodes or 1, (), uses_slurm=True, is_elsewhere=True)


def _allocation(environ: Mapping[str, str], *, needed: bool) -> Allocation | None:
    """The allocation around us; for a plan only, none if nobody can tell which nodes it has."""
    try:
        return allocation_of(environ)
    except OptionError:
        if needed:
            raise
        return None


def _is_one_of(hosts: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """Whether this machine is one of Slurm's nodes, which may be known by a short name."""
    here = environ.get("SLURMD_NODENAME") or socket.gethostname()
    return here in hosts or here.partition(".")[0] in {host.partition(".")[0] for host in hosts}


def _require_srun() -> None:
    if shutil.which("srun") is None:
        raise OptionError(
            "--ddp-launcher", "srun is not on PATH", "Slurm's commands",
            f"On one machine leave --ddp-nodes and --ddp-slurm-args out ({AUTO} is torchrun there).",
        )  # fmt: skip
