"""The launcher interface and registry, and containers for ranks.

A launcher is one class. It starts an agent on each node, and reports which nodes there are, how long a scheduler's
queue lasts, which nodes are lost and why a gang ended. Agents communicate over standard input and output, so anything
that carries these two streams can be a launcher.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.settings import AUTO, LAUNCHERS, Settings
from pytest_ddpscale.util.masking import masked_text

THIS_MACHINES = "torchrun"
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

    def why_ended(self, lines: Sequence[str]) -> str:
        """Why the launcher ended the agents without a fault of the nodes, from its own lines; empty if it did not."""
        return ""

    def why_signalled(self) -> str:
        """Why a scheduler may be signalling this process now; empty if unknown."""
        return ""

    def given_up(self, lines: Sequence[str]) -> tuple[str, ...]:
        """Nodes that the launcher has given up, from its own lines."""
        return ()

    def why_not_up(self, host: str, exit_code: int, lines: Sequence[str]) -> str:
        """Why the agent of a node did not come up, as a sentence without a full stop.

        Args:
            host: the node.
            exit_code: exit code of the process that was to carry the agent.
            lines: last lines of that process.
        """
        said = next((line for line in reversed(lines) if line.strip()), "nothing")
        return f"{host}: {self.program} ended with exit code {exit_code}; its last message: {said}"

    def left_behind(self, launch: Launch) -> str:
        """A sentence about processes that may still run on nodes after the launcher was killed; empty if none do."""
        return ""


def is_among(hosts: Collection[str], here: str) -> bool:
    """Whether the machine of this name is one of the hosts, comparing short names."""
    return here.partition(".")[0] in {host.partition(".")[0] for host in hosts}


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
    found = launchers()
    if settings.launcher == AUTO:
        chosen = next((one for one in found.values() if one.is_meant(settings, environ)), found[THIS_MACHINES])
    elif settings.launcher in found:
        chosen = found[settings.launcher]
    else:
        raise OptionError("--ddp-launcher", f"found {settings.launcher!r}", f"one of {', '.join((AUTO, *found))}")
    for other in found.values():
        given = [name for name in other.options if getattr(settings, name) and name not in chosen.options]
        if given:
            flag = f"--ddp-{given[0].replace('_', '-')}"
            raise OptionError("--ddp-launcher", f"found {chosen.name} together with {flag}", f"{other.name} with it")
    return chosen(settings, environ)


def why_signalled(settings: Settings, environ: Mapping[str, str]) -> str:
    """Why a scheduler may be signalling this process now, whichever launcher is in use; empty if unknown.

    Args:
        settings: the user's options.
        environ: this process's environment.
    """
    return next(filter(None, (one(settings, environ).why_signalled() for one in launchers().values())), "")


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
        if (found := shutil.which("apptainer") or shutil.which("singularity")) is None:
            raise OptionError(
                "--ddp-container", "neither apptainer nor singularity is on PATH", "one of them",
                "Load its module, or use an image for Pyxis: pyxis:IMAGE.",
            )  # fmt: skip
        return Container((), (Path(found).name, "exec", *gpus, image), _PYTHON_INSIDE)
    arguments = image_arguments(image)
    if arguments is None:
        raise OptionError(
            "--ddp-container", f"{masked_text(image)} is an image for Pyxis, which this launcher does not support",
            "an image for Apptainer", "Use Apptainer: a .sif file, or apptainer:IMAGE.",
        )  # fmt: skip
    return Container(arguments, (), _PYTHON_INSIDE)
