"""What a launcher is, and which there are.

A launcher is one file. It says how an agent is started on each node, and what of that is seen from outside: which nodes
there are, what a scheduler says of a wait, which nodes are lost, why all of it ended. Agents speak over their standard
input and output; whatever carries these two is a launcher. A site's own is registered by an entry point of the group
`ENTRY_POINTS`; see docs/how-to/launcher.md.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import ClassVar, TypeVar

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.container import NO_CONTAINER, Container
from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.settings import AUTO, LAUNCHERS, Settings

ENTRY_POINTS = "pytest_ddpscale.launchers"
THIS_MACHINES = "torchrun"


@dataclass(frozen=True)
class Cluster:
    """Where ranks will run.

    Attributes:
        nodes: how many.
        hosts: their names, in rank order; empty where a scheduler is still to choose them, and on this machine.
        launcher: name of what starts agents there.
        is_elsewhere: whether this machine is none of them, so that the devices here say nothing.
        slots: ranks of each node, where a host file says so.
    """

    nodes: int = 1
    hosts: tuple[str, ...] = ()
    launcher: str = THIS_MACHINES
    is_elsewhere: bool = False
    slots: int | None = None

    def without(self, unfit: Collection[str]) -> Cluster | None:
        """The other nodes; None if there are none, or if a scheduler and not we choose which nodes there are."""
        others = tuple(host for host in self.hosts if host not in unfit)
        return replace(self, nodes=len(others), hosts=others) if 0 < len(others) < len(self.hosts) else None


@dataclass(frozen=True)
class Launch:
    """Gangs to be started, and one of them once it has an id.

    Attributes:
        launcher: what starts their agents.
        environment: of what is started.
        hosts: names of the nodes, in rank order; empty as in `Cluster`.
        device_type: what ranks train on.
        container: what agents and ranks run in.
        nodes: how many this gang has.
        gang_id: by what its processes are found.
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
        """What a scheduler may call it: no other gang has the name."""
        return f"ddpscale-{self.gang_id[:8]}"

    def agent(self, *which: str, python: str = sys.executable) -> list[str]:
        """The command of an agent, in a container if there is one.

        Args:
            which: options that say which node it is on: ``--node=2``, ``--host=n3``, or ``--node-from=VARIABLE`` and
                ``--host-from=VARIABLE`` for what its environment says there.
            python: the interpreter, if there is no container.
        """
        inside = self.container.python or python
        return [*self.container.command, inside, "-m", "pytest_ddpscale.node", *which]


@dataclass(frozen=True)
class AgentProcess:
    """A process of this machine that carries agents' standard input and output.

    Attributes:
        host: the node whose agent it carries; empty if it carries those of all nodes.
    """

    command: list[str]
    host: str = ""


class Launcher(ABC):
    """How agents start on nodes, and what is known of them from outside.

    Args:
        settings: what the user asked for.
        environ: this process's environment.

    Attributes:
        name: as in ``--ddp-launcher``.
        calls_itself: what messages call whoever gives nodes and takes them.
        program: what messages call the process that carries agents.
        service: what has to work on a node besides the node, its link and its agent, in messages.
        voices: how lines of its own begin; they are kept for longer, as others may bury them.
        may_queue: whether agents may have to wait for nodes that somebody else gives.
        shares_environment: whether agents are started with the environment that it is started with.
        options: names of settings that no other launcher has a use for.
    """

    name: ClassVar[str]
    calls_itself: ClassVar[str]
    program: ClassVar[str] = "the node's agent"
    service: ClassVar[str] = ""
    voices: ClassVar[tuple[str, ...]] = ()
    may_queue: ClassVar[bool] = False
    shares_environment: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self.settings = settings
        self.environ = environ

    @classmethod
    def is_meant(cls, settings: Settings, environ: Mapping[str, str]) -> bool:
        """Whether ``--ddp-launcher=auto`` means this one."""
        return False

    @classmethod
    def passes(cls, variable: str) -> bool | None:
        """Whether ranks get a variable of the environment: False withholds it, None leaves that to others."""
        return None

    @abstractmethod
    def cluster(self, *, plans_only: bool) -> Cluster:
        """The nodes that settings and environment mean.

        Args:
            plans_only: nothing will be started, so that a laptop may plan for many nodes.

        Raises:
            OptionError: they contradict each other, or what starts agents is not there.
        """

    @abstractmethod
    def processes(self, launch: Launch) -> list[AgentProcess]:
        """What starts the agents of a gang: one process for all nodes, or one for each in their order."""

    def refuse_wrong_arguments(self, launch: Launch) -> None:
        """Find out before anything is begun whether `processes` would be refused. Raises OptionError."""
        return

    def image_arguments(self, image: str) -> tuple[str, ...] | None:
        """By which arguments of its own it starts agents in an image; None if it cannot."""
        return None

    def queue_state(self, lines: Sequence[str]) -> str:
        """What it says of a wait for nodes, from lines of its own; empty if nothing."""
        return ""

    def why_ended(self, lines: Sequence[str]) -> str:
        """Why it ended the agents, from lines of its own, if that is no fault of the nodes; empty if it did not."""
        return ""

    def why_signalled(self) -> str:
        """Why this process would be sent a signal now; empty if nobody says."""
        return ""

    def given_up(self, lines: Sequence[str]) -> tuple[str, ...]:
        """Nodes that it has given up, from lines of its own."""
        return ()

    def why_not_up(self, host: str, exit_code: int, lines: Sequence[str]) -> str:
        """In a sentence without a full stop, why the agent of a node did not come up.

        Args:
            host: the node.
            exit_code: of the process that was to carry it.
            lines: the last ones it wrote.
        """
        said = next((line for line in reversed(lines) if line.strip()), "nothing")
        return f"{host}: {self.program} ended with exit code {exit_code}; its last message: {said}"

    def left_behind(self, launch: Launch) -> str:
        """In a sentence, which processes may still run on nodes after it was killed; empty once there are none."""
        return ""


LauncherType = TypeVar("LauncherType", bound=type[Launcher])
_LAUNCHERS: dict[str, type[Launcher]] = {}


def launcher(name: str) -> Callable[[LauncherType], LauncherType]:
    """Register a launcher under a name."""

    def register(found: LauncherType) -> LauncherType:
        found.name = name
        _LAUNCHERS[name] = found
        return found

    return register


def launchers() -> dict[str, type[Launcher]]:
    """All there are, by name: a site's own first.

    Raises:
        OptionError: one of a site's own cannot be imported.
    """
    sites = [_loaded(entry.name, entry.load) for entry in entry_points(group=ENTRY_POINTS)]
    for name in LAUNCHERS:
        importlib.import_module(f"pytest_ddpscale.launch.{name}")
    return {name: _LAUNCHERS[name] for name in (*sites, *LAUNCHERS)}


def launcher_for(settings: Settings, environ: Mapping[str, str]) -> Launcher:
    """The one that is asked for, or that options and environment mean; else that of this machine.

    Raises:
        OptionError: there is none of that name, or options of another one are given.
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
            raise OptionError("--ddp-launcher", f"{chosen.name} is asked for, beside {flag}", f"{other.name} with it")
    return chosen(settings, environ)


def why_signalled(settings: Settings, environ: Mapping[str, str]) -> str:
    """Why this process would be sent a signal now: a scheduler may do so whatever starts the agents. Empty if unknown.

    Args:
        settings: what the user asked for.
        environ: this process's environment.
    """
    return next(filter(None, (one(settings, environ).why_signalled() for one in launchers().values())), "")


def _loaded(name: str, load: Callable[[], object]) -> str:
    try:
        load()
    except Exception as error:  # whatever a module of somebody else's raises while it is imported
        raise OptionError(
            f"entry point {name} of {ENTRY_POINTS}", f"cannot be loaded ({type(error).__name__}: {error})",
            "a class decorated with @launcher", "Fix or uninstall the package that provides it.",
        ) from error  # fmt: skip
    if name not in _LAUNCHERS:
        raise OptionError(
            f"entry point {name} of {ENTRY_POINTS}", "registers no launcher of that name", f'@launcher("{name}")'
        )
    return name
