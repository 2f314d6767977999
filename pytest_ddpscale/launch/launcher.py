"""Launchers: this machine, hosts by ssh or any command, and the interface of others; containers for ranks.

A launcher is one class. It starts an agent on each node, and reports which nodes there are, how long a scheduler's
queue lasts, which nodes are lost and why a gang ended. Agents communicate over standard input and output, so anything
that carries these two streams can be a launcher.
"""

from __future__ import annotations

import importlib
import platform
import re
import shlex
import shutil
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.launch.hosts import expanded, identity, read_hostfile
from pytest_ddpscale.node.addresses import loopback_problem
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.reason import Reason, Why, because
from pytest_ddpscale.settings import AUTO, LAUNCHERS, Settings
from pytest_ddpscale.util.masking import masked_text

THIS_MACHINES = "torchrun"
_NO_PACKAGE = re.compile(r"No module named '?pytest_ddpscale")
_HOST = "{host}"
_SSH = (
    "-T",  # a terminal would alter the agents' output
    "-x", "-a",
    "-o", "BatchMode=yes",  # a password prompt would hang for ever
    "-o", "ConnectTimeout=15",
    # Detects a lost host after 30 s, like the agents' own limit.
    "-o", "ServerAliveInterval=10",
    "-o", "ServerAliveCountMax=3",
    "-o", "ControlPath=none",  # an own connection that ends with this ssh
)  # fmt: skip
_SSH_FAILED = 255  # exit code if ssh itself fails; others are the remote command's
_NO_PROGRAM = (126, 127)  # exit codes of shells and compatible programs
_APPTAINER_SOURCES = ("docker://", "oras://", "library://", "shub://")
# This interpreter's path does not exist inside an image.
_PYTHON_INSIDE = "python3"


@dataclass(frozen=True)
class Cluster:
    """Where ranks will run.

    Attributes:
        nodes: number of nodes.
        hosts: their names, in rank order; empty if a scheduler will choose them, and on this machine.
        launcher: name of the launcher.
        is_elsewhere: whether this machine is not one of them, so its devices are irrelevant.
        slots: ranks per node, if a host file says so.
    """

    nodes: int = 1
    hosts: tuple[str, ...] = ()
    launcher: str = THIS_MACHINES
    is_elsewhere: bool = False
    slots: int | None = None

    def without(self, unfit: Collection[str]) -> Cluster | None:
        """The cluster without the unfit nodes; None if none are left, or if a scheduler chooses the nodes."""
        others = tuple(host for host in self.hosts if host not in unfit)
        return replace(self, nodes=len(others), hosts=others) if 0 < len(others) < len(self.hosts) else None


@dataclass(frozen=True)
class Container:
    """How to run a command in a container.

    Attributes:
        arguments: arguments for a launcher that starts images itself.
        command: command prefix that enters the container.
        python: the interpreter inside; empty for the one outside.
    """

    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    python: str = ""


NO_CONTAINER = Container()


@dataclass(frozen=True)
class Launch:
    """How to start gangs; with `gang_id` set, one gang.

    Attributes:
        launcher: starts the agents.
        environment: environment of the started processes.
        hosts: names of the nodes, in rank order; empty as in `Cluster`.
        device_type: device that ranks train on.
        container: container for agents and ranks.
        nodes: number of nodes of this gang.
        gang_id: the name by which its processes are found.
    """

    launcher: Launcher
    environment: Mapping[str, str]
    hosts: tuple[str, ...] = ()
    device_type: DeviceType = "cpu"
    container: Container = NO_CONTAINER
    nodes: int = 1
    gang_id: str = ""

    @property
    def name(self) -> str:
        """A unique job name for a scheduler."""
        return f"ddpscale-{self.gang_id[:8]}"

    def agent(self, *which: str, python: str = sys.executable) -> list[str]:
        """The command of an agent, in a container if there is one.

        Args:
            which: options that identify the node: ``--node=2``, ``--host=n3``, or ``--node-from=VARIABLE`` and
                ``--host-from=VARIABLE`` to read them from the environment there.
            python: the interpreter, unless there is a container.
        """
        return [*self.container.command, self.container.python or python, "-m", "pytest_ddpscale.node", *which]


@dataclass(frozen=True)
class AgentProcess:
    """A process of this machine that carries agents' standard input and output.

    Attributes:
        host: the node whose agent it carries; empty if it carries those of all nodes.
    """

    command: list[str]
    host: str = ""


_LAUNCHERS: dict[str, type[Launcher]] = {}


class Launcher(ABC):
    """Starts agents on nodes, and reports what is known of them from outside.

    Args:
        settings: the user's options.
        environ: this process's environment.

    Attributes:
        name: as in ``--ddp-launcher``.
        calls_itself: name, in messages, of the system that allocates nodes.
        program: name, in messages, of the process that carries agents.
        service: further service that a node needs, in messages, such as its sshd.
        voices: prefixes of the launcher's own lines, which are kept longer so that other output cannot push them out.
        shares_environment: whether agents inherit the environment of the started process.
        options: names of settings that only this launcher uses.
    """

    name: ClassVar[str]
    calls_itself: ClassVar[str]
    program: ClassVar[str] = "the node's agent"
    service: ClassVar[str] = ""
    voices: ClassVar[tuple[str, ...]] = ()
    shares_environment: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, called: str = "") -> None:  # Python 3.10 has a parameter `name` of its own
        if called:
            cls.name, _LAUNCHERS[called] = called, cls

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self.settings = settings
        self.environ = environ

    @classmethod
    def is_meant(cls, settings: Settings, environ: Mapping[str, str]) -> bool:
        """Whether ``--ddp-launcher=auto`` means this one."""
        return False

    @classmethod
    def passes(cls, variable: str) -> bool | None:
        """Whether ranks get an environment variable: False withholds it, None leaves the decision to others."""
        return None

    @abstractmethod
    def cluster(self, *, plans_only: bool) -> Cluster:
        """The nodes selected by settings and environment.

        Args:
            plans_only: nothing will be started, so a laptop may plan for many nodes.

        Raises:
            OptionError: settings contradict each other, or the program that starts agents is missing.
        """

    @abstractmethod
    def processes(self, launch: Launch) -> list[AgentProcess]:
        """The processes that start a gang's agents: one for all nodes, or one per node in order."""

    def image_arguments(self, image: str) -> tuple[str, ...] | None:
        """The launcher's own arguments to start agents in an image; None if it cannot."""
        return None

    def queue_state(self, lines: Sequence[str]) -> str:
        """State of the wait for an allocation, from the launcher's own lines; empty once nodes are allocated."""
        return ""

    def why_ended(self, lines: Sequence[str]) -> Why:
        """Why the launcher ended the agents without a fault of the nodes, from its own lines; empty if it did not."""
        return ""

    def why_signalled(self) -> Why:
        """Why a scheduler may be signalling this process now; empty if unknown."""
        return ""

    def given_up(self, lines: Sequence[str]) -> tuple[str, ...]:
        """Nodes that the launcher has given up, from its own lines."""
        return ()

    def why_not_up(self, host: str, exit_code: int, lines: Sequence[str]) -> Reason:
        """Why the agent of a node did not come up.

        Args:
            host: the node.
            exit_code: exit code of the process that was to carry the agent.
            lines: last lines of that process.
        """
        last_line = next((line for line in reversed(lines) if line.strip()), "nothing")
        return because("carrier-ended", host, self.program, exit_code, last_line)

    def left_behind(self, launch: Launch) -> Why:
        """Which processes may still run on nodes after the launcher was killed; empty if none do."""
        return ""


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


class PerHostLauncher(Launcher):
    """Starts one local process per node, which carries the standard input and output of its agent."""

    shares_environment = False
    options: ClassVar[tuple[str, ...]] = ("hosts", "remote_python")
    calls_itself = "this machine"

    @abstractmethod
    def command(self, target: str, agent: Sequence[str]) -> list[str]:
        """The local command that runs an agent's command on a host, or as a user of it, ``user@host``."""

    def cluster(self, *, plans_only: bool) -> Cluster:
        """The named hosts, or the first ones of them.

        Raises:
            OptionError: they are invalid, or the program that reaches them is not installed here.
        """
        settings, (named, slots) = self.settings, self.named_hosts
        hosts = tuple(named)
        nodes = settings.nodes or len(hosts)
        if nodes > len(hosts):
            found = f"found {nodes}, but {len(hosts)} hosts are named"
            raise OptionError("--ddp-nodes", found, f"at most {len(hosts)}")
        if slots is not None and (settings.gpus_per_node or 0) > slots:
            found = f"found {settings.gpus_per_node}, but the host file has {slots} slots for each host"
            raise OptionError("--ddp-gpus-per-node", found, f"at most {slots}")
        started = self.command("", ())[0]
        if not plans_only and shutil.which(started) is None:
            found = f"{started} is not on PATH"
            raise OptionError(f"--ddp-launcher={self.name}", found, "a program that this user may run")
        return Cluster(nodes, hosts[:nodes], self.name, not is_among(hosts, socket.gethostname()), slots)

    def processes(self, launch: Launch) -> list[AgentProcess]:
        """One process per host."""
        started, targets = [], self.named_hosts[0]
        for index, host in enumerate(launch.hosts):
            agent = launch.agent(f"--node={index}", f"--host={host}", python=self._python)
            started.append(AgentProcess(self.command(targets.get(host, host), agent), host))
        return started

    def why_not_up(self, host: str, exit_code: int, lines: Sequence[str]) -> Reason:
        """Whether Python or this package is missing on the host."""
        if any(map(_NO_PACKAGE.search, lines)):
            return because("no-package", host, self._python, __version__)
        if exit_code in _NO_PROGRAM:
            return because("no-python", host, self._python)
        return super().why_not_up(host, exit_code, lines)

    @property
    def _python(self) -> str:
        return self.settings.remote_python or sys.executable

    @cached_property
    def named_hosts(self) -> tuple[dict[str, str], int | None]:
        """Each requested host as it is to be reached, and the ranks per host, None if not given. Raises OptionError."""
        option, slots = self.settings.hosts, None
        if isinstance(option, Path):
            hosts, slots = read_hostfile(option)
        else:
            hosts, first = expanded("--ddp-hosts", option or ""), dict[str, str]()
            for host in hosts:
                if other := first.get(identity(host)):
                    raise OptionError("--ddp-hosts", f"found {other} and {host}, one host twice", "each host once")
                first[identity(host)] = host
        if not hosts:
            raise OptionError("--ddp-hosts", f"found no host for --ddp-launcher={self.name}", "such as n1,n2 or n[1-8]")
        return {host.rpartition("@")[2]: host for host in hosts}, slots


class SshLauncher(PerHostLauncher, called="ssh"):
    """Starts agents by ssh. Ports, keys and jump hosts are configured in ``~/.ssh/config``."""

    calls_itself = "ssh"
    program = "ssh"
    service = "its sshd"

    @classmethod
    def is_meant(cls, settings: Settings, environ: Mapping[str, str]) -> bool:
        """Whether hosts are named without --ddp-exec."""
        return bool(settings.hosts) and not settings.exec

    def command(self, target: str, agent: Sequence[str]) -> list[str]:
        """The ssh command; the agent's command is quoted as one word for the remote shell."""
        return ["ssh", *_SSH, "--", target, shlex.join(["exec", *agent])]

    def why_not_up(self, host: str, exit_code: int, lines: Sequence[str]) -> Reason:
        """Why ssh did not reach a host, with ssh's message."""
        if exit_code != _SSH_FAILED:
            return super().why_not_up(host, exit_code, lines)
        message = next((line.strip() for line in reversed(lines) if line.strip()), "ssh gave no reason")
        message, target = message.removeprefix("ssh: ").rstrip("."), self.named_hosts[0][host]
        return because("no-ssh", host, message, target)


class ExecLauncher(PerHostLauncher, called="exec"):
    """Any command that carries standard input and output to a host: ``kubectl exec -i {host} --``."""

    calls_itself = "--ddp-exec"
    program = "the command of --ddp-exec"
    options: ClassVar[tuple[str, ...]] = (*PerHostLauncher.options, "exec")

    @classmethod
    def is_meant(cls, settings: Settings, environ: Mapping[str, str]) -> bool:
        """Whether --ddp-exec is given."""
        return bool(settings.exec)

    def cluster(self, *, plans_only: bool) -> Cluster:
        """As in `PerHostLauncher`. Also raises OptionError if the command lacks ``{host}`` or a host has a user."""
        words = self.settings.exec
        if not any(_HOST in word for word in words):
            found = f"found no {_HOST} in it" if words else "found nothing"
            raise OptionError("--ddp-exec", found, f'a command such as "kubectl exec -i {_HOST} --"')
        if user := next((host for host in self.named_hosts[0].values() if "@" in host), None):
            raise OptionError("--ddp-hosts", f"found {user!r}", "hosts alone", "Name the user in --ddp-exec.")
        return super().cluster(plans_only=plans_only)

    def command(self, target: str, agent: Sequence[str]) -> list[str]:
        """The user's command with the host's name inserted, followed by the agent's command."""
        return [*(word.replace(_HOST, target) for word in self.settings.exec), *agent]


def is_among(hosts: Collection[str], own_name: str) -> bool:
    """Whether the machine of this name is one of the hosts, comparing short names."""
    return own_name.partition(".")[0] in {host.partition(".")[0] for host in hosts}


def launchers() -> dict[str, type[Launcher]]:
    """All launchers by name."""
    for module in LAUNCHERS.values():
        importlib.import_module(f"pytest_ddpscale.launch.{module}")
    return {name: _LAUNCHERS[name] for name in LAUNCHERS}


def launcher_for(settings: Settings, environ: Mapping[str, str]) -> Launcher:
    """The launcher chosen by --ddp-launcher, or implied by options and environment, else that of this machine.

    Raises:
        OptionError: no launcher has that name, or options of another launcher are given.
    """
    by_name = launchers()
    if settings.launcher == AUTO:
        chosen = next(
            (launcher for launcher in by_name.values() if launcher.is_meant(settings, environ)), by_name[THIS_MACHINES]
        )
    elif settings.launcher in by_name:
        chosen = by_name[settings.launcher]
    else:
        raise OptionError("--ddp-launcher", f"found {settings.launcher!r}", f"one of {', '.join((AUTO, *by_name))}")
    for other in by_name.values():
        given = [name for name in other.options if getattr(settings, name) and name not in chosen.options]
        if given:
            flag = f"--ddp-{given[0].replace('_', '-')}"
            raise OptionError("--ddp-launcher", f"found {chosen.name} together with {flag}", f"{other.name} with it")
    return chosen(settings, environ)


def why_signalled(settings: Settings, environ: Mapping[str, str]) -> Why:
    """Why a scheduler may be signalling this process now, whichever launcher is in use; empty if unknown.

    Args:
        settings: the user's options.
        environ: this process's environment.
    """
    whys = (launcher(settings, environ).why_signalled() for launcher in launchers().values())
    return next((why for why in whys if why), "")


def container_of(
    image: str | None, device_type: DeviceType, image_arguments: Callable[[str], tuple[str, ...] | None]
) -> Container:
    """The container of an image.

    ``IMAGE.sif``, a directory and ``docker://…`` go to Apptainer (or Singularity), anything else to Pyxis (Enroot),
    such as ``nvcr.io#nvidia/pytorch:25.01-py3`` or ``image.sqsh``. ``apptainer:IMAGE`` and ``pyxis:IMAGE`` choose
    explicitly.

    Args:
        image_arguments: the launcher's arguments for a Pyxis image; returns None if it has none.

    Raises:
        OptionError: no image is named, neither apptainer nor singularity is on PATH, or the launcher does not support
            Pyxis.
    """
    if image is None:
        return NO_CONTAINER
    runtime, colon, rest = image.partition(":")
    if colon and runtime in ("apptainer", "pyxis"):
        if not rest:
            raise OptionError("--ddp-container", f"found no image in {image!r}", f"{runtime}:IMAGE")
        image, is_apptainer = rest, runtime == "apptainer"
    else:
        is_apptainer = image.endswith(".sif") or image.startswith(_APPTAINER_SOURCES) or Path(image).is_dir()
    if is_apptainer:
        gpus = ("--nv",) if device_type == "cuda" else ()
        if (program := shutil.which("apptainer") or shutil.which("singularity")) is None:
            raise OptionError(
                "--ddp-container", "neither apptainer nor singularity is on PATH", "one of them",
                "Load its module, or use an image for Pyxis: pyxis:IMAGE.",
            )  # fmt: skip
        return Container((), (Path(program).name, "exec", *gpus, image), _PYTHON_INSIDE)
    arguments = image_arguments(image)
    if arguments is None:
        raise OptionError(
            "--ddp-container", f"{masked_text(image)} is an image for Pyxis, which this launcher does not support",
            "an image for Apptainer", "Use Apptainer: a .sif file, or apptainer:IMAGE.",
        )  # fmt: skip
    return Container(arguments, (), _PYTHON_INSIDE)
