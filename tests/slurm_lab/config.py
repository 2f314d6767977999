"""The lab's slurm.conf and the files beside it."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GPUS_PER_NODE = 2


@dataclass(frozen=True, slots=True)
class Paths:
    """Where the lab keeps its files.

    Attributes:
        directory: configuration, logs, device files and the jobs' output: kept, to be read after a failure.
        runtime: sockets and spools: short, as a socket's path may have no more than 107 characters.
    """

    directory: Path
    runtime: Path

    @property
    def slurm_conf(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def hosts(self) -> Path:
        return self.directory / "hosts"

    @property
    def munge_key(self) -> Path:
        return self.runtime / "munge.key"

    @property
    def munge_socket(self) -> Path:
        return self.runtime / "munge.socket"

    @property
    def jobs(self) -> Path:
        """Where jobs that were submitted as text leave their output."""
        return self.directory / "jobs"

    def log(self, name: str) -> Path:
        """A daemon's log."""
        return self.directory / f"{name}.log"


def write(paths: Paths, head: str, nodes: Mapping[str, str], extra: Sequence[str]) -> None:
    """Write all that the daemons read.

    Args:
        paths: where to.
        head: the head's address.
        nodes: node name → address.
        extra: further lines of slurm.conf.
    """
    for directory in (paths.jobs, paths.runtime / "state"):
        directory.mkdir(parents=True, exist_ok=True)
    paths.munge_key.write_bytes(secrets.token_bytes(128))
    paths.munge_key.chmod(0o600)
    gpus = [_stand_in(paths.directory / f"gpu{index}") for index in range(GPUS_PER_NODE)]
    (paths.directory / "gres.conf").write_text("".join(f"Name=gpu File={gpu}\n" for gpu in gpus), encoding="utf-8")
    # Slurm must look at the version the quotas are made with, whatever else is mounted.
    (paths.directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")
    paths.slurm_conf.write_text(_slurm_conf(paths, head, nodes, extra), encoding="utf-8")


def _stand_in(path: Path) -> Path:
    """A device file like /dev/null (character device 1:3), in place of a GPU's."""
    path.unlink(missing_ok=True)
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    return path


def _slurm_conf(paths: Paths, head: str, nodes: Mapping[str, str], extra: Sequence[str]) -> str:
    names = ",".join(nodes)
    common = f"CPUs=1 RealMemory=1000 Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
    node_lines = "\n".join(f"NodeName={name} NodeAddr={address} {common}" for name, address in nodes.items())
    return f"""\
ClusterName=lab
SlurmctldHost=head({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job may start again when its old credential has expired: by default after two minutes.
AuthInfo=socket={paths.munge_socket},cred_expire=10
StateSaveLocation={paths.runtime}/state
SlurmctldPidFile={paths.runtime}/slurmctld.pid
SlurmctldLogFile={paths.log("slurmctld")}
SlurmdSpoolDir={paths.runtime}/%n
SlurmdPidFile={paths.runtime}/slurmd.%n.pid
SlurmdLogFile={paths.directory}/slurmd.%n.log

# Processes are followed without cgroups: those are the lab's own, for the quotas.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
# A node may claim other CPUs and memory than it has.
SlurmdParameters=config_overrides

SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu

# Everything that a test waits for, soon.
SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=5
TCPTimeout=2
KillWait=15
CompleteWait=0
EpilogMsgTime=0
BatchStartTimeout=10
OverTimeLimit=0
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
ReturnToService=2

JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{os.linesep.join(extra)}

{node_lines}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE PriorityTier=1 State=UP
PartitionName=urgent Nodes={names} Default=NO MaxTime=INFINITE PriorityTier=10 State=UP
"""
