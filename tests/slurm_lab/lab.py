"""A real Slurm cluster on one machine: slurmctld, munged and one slurmd a node, each node in namespaces of its own.

    with SlurmLab(directory, nodes=3) as lab:
        print(lab.run(["srun", "--nodes=3", "hostname"]).stdout)
        lab.node("n2").slow_link("200mbit")
        job = lab.submit("srun hostname", "--nodes=3")
        assert lab.wait_for_job(job) == "COMPLETED"

The machine's own Slurm, if it has one, is neither needed nor touched: configuration, munge key, sockets and state are
the lab's own, the network is in a namespace but for one cable to this machine. Several labs can be up at once.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import psutil

from tests.slurm_lab import config
from tests.slurm_lab.cgroup import CpuQuota, machine_cores, remove_stale
from tests.slurm_lab.machine import Machine
from tests.slurm_lab.network import Network
from tests.slurm_lab.node import Node
from tests.slurm_lab.polling import LabTimeoutError, wait_until
from tests.slurm_lab.slurm import Slurm

UP_DEADLINE_S = 120
HEAL_DEADLINE_S = 120
USABLE_CORES = 0.9  # of the machine's, for the nodes: the rest is for Slurm's daemons and the tests themselves


class SlurmLab(Slurm):
    """Slurm on ``head`` and ``n1`` … ``nN``; partitions ``main`` (default) and ``urgent``, which preempts it.

    Every node has one CPU to Slurm, and two GPUs (``--gres=gpu:2``) that are stand-ins.

    Args:
        directory: for the configuration, the logs (``slurmctld.log``, ``slurmd.n1.log`` …) and the jobs' output; kept.
        nodes: how many.
        cpu_quota: cores for each node; None: no limit, until a test sets one (``share_cores``, ``Node.cpu_quota``).
        slurm_conf: further lines of slurm.conf.
    """

    def __init__(
        self, directory: Path, nodes: int = 6, cpu_quota: float | None = None, slurm_conf: Sequence[str] = ()
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        paths = config.Paths(directory, Path(tempfile.gettempdir()) / f"slurm-lab-{secrets.token_hex(4)}")
        super().__init__(Machine("head", paths.hosts, own_proc=False), paths)
        self.directory = directory
        self.nodes: list[Node] = []
        self._names = [f"n{index}" for index in range(1, nodes + 1)]
        self._cpu_quota = cpu_quota
        self._extra = slurm_conf
        self._cleanup = ExitStack()

    def __enter__(self) -> SlurmLab:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> None:
        """Bring the cluster up: on return every node is idle. What was begun is taken down when that fails."""
        with ExitStack() as begun:
            self._up(begun)
            self._cleanup = begun.pop_all()

    def down(self) -> None:
        """End every process of the lab and remove its namespaces, cables, mounts and cgroups. Harmless when down."""
        self._cleanup.close()
        self.nodes = []

    def node(self, name: str) -> Node:
        """A node by its name, ``n1`` …"""
        return next(node for node in self.nodes if node.name == name)

    def processes(self) -> list[psutil.Process]:
        """Every living process of jobs, on any node: empty when nothing survived."""
        return [process for node in self.nodes for process in node.processes()]

    def share_cores(self, *names: str) -> None:
        """Give these nodes (default: all) equal quotas out of 90 % of the machine's cores, every other node 0.1.

        For tests that compare nodes: without a quota, healthy nodes fight for the cores and look slow.
        """
        chosen = names or tuple(self._names)
        others = [node for node in self.nodes if node.name not in chosen]
        for node in self.nodes:
            node.cpu_quota(None)
        each = (machine_cores() * USABLE_CORES - 0.1 * len(others)) / len(chosen)
        for node in self.nodes:
            node.cpu_quota(0.1 if node in others else each)

    def heal(self) -> None:
        """Back to how ``up`` left it: no job, no fault, no quota but the lab's own, every node idle."""
        for node in self.nodes:
            if node.cores != self._cpu_quota:
                node.cpu_quota(self._cpu_quota)
            node.heal()
        self.cancel_all()
        wait_until(self._idle_again, HEAL_DEADLINE_S, "every node to be idle", seen=lambda: f"{self.node_states()}")
        for node in self.nodes:
            node.kill_leftovers()

    def _idle_again(self) -> bool:
        unfit = [name for name, state in self.node_states().items() if state.startswith(("down", "drain", "fail"))]
        if unfit:
            self.resume(*unfit)
        return self.is_idle()

    def _up(self, begun: ExitStack) -> None:
        remove_stale()
        paths = self.paths
        begun.callback(shutil.rmtree, paths.runtime, ignore_errors=True)
        paths.runtime.mkdir(mode=0o700)
        network = self.network = Network(self._names)
        network.write_hosts(paths.hosts)
        config.write(paths, network.head, network.nodes, self._extra)

        self._make_nodes(begun, network)
        for machine in (self.head, *self.nodes):
            begun.callback(machine.down)
            machine.up()
        begun.callback(network.disconnect)
        network.connect(self.head, self.nodes)
        self._start_daemons(paths)

    def _make_nodes(self, begun: ExitStack, network: Network) -> None:
        self.nodes = []
        quotas: list[CpuQuota] = []
        for name, address in network.nodes.items():
            quota = CpuQuota(f"{network.outside}-{name}", quotas)
            quotas.append(quota)
            begun.callback(quota.remove)
            quota.limit(self._cpu_quota)
            self.nodes.append(Node(name, address, self.paths, self.head, quota))

    def _start_daemons(self, paths: config.Paths) -> None:
        files = [f"--{name}-file={paths.runtime}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        # By force: it wants directories that other users can reach, and the lab has none.
        munged = ["munged", "--foreground", "--force", f"--socket={paths.munge_socket}", *files]
        self.head.start_daemon(munged, paths.log("munged"))
        wait_until(paths.munge_socket.is_socket, UP_DEADLINE_S, "munged", seen=paths.log("munged").read_text)
        self.head.start_daemon(["slurmctld", "-D", "-f", str(paths.slurm_conf)], paths.log("slurmctld"))
        for node in self.nodes:
            node.start_slurmd()
        try:
            wait_until(self._answers, UP_DEADLINE_S, "slurmctld to answer")
            self.wait_idle(UP_DEADLINE_S)
        except LabTimeoutError as error:
            logs = [paths.log(name) for name in ("munged", "slurmctld", *(f"slurmd.{name}" for name in self._names))]
            tails = (f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs if log.exists())
            raise LabTimeoutError("\n".join([str(error), *tails])) from error

    def _answers(self) -> bool:
        return " is UP" in self.run(["scontrol", "ping"], check=False).stdout
