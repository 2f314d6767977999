"""A launcher of gangs on this machine whose agent and ranks are forks.

A session uses it where the variable of `start.forking` and its PYTHONPATH are set: `plugin` registers it there.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pytest_ddpscale.launch import launcher as known
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.launcher import AgentProcess, Cluster, Launch, Launcher
from pytest_ddpscale.plan.planner import PACES
from pytest_ddpscale.settings import LAUNCHERS, Settings, settings_from
from tests.forks.start import VARIABLE, address, command_at, forking


class ForkingLauncher(Launcher, called="forks"):
    """One node: this machine."""

    calls_itself = "this machine"

    @classmethod
    def is_meant(cls, settings: Settings, environ: Mapping[str, str]) -> bool:
        """Whether a server is there, and no other machine is asked for."""
        return VARIABLE in environ and (settings.nodes or 1) == 1 and not settings.hosts

    def cluster(self, *, plans_only: bool) -> Cluster:
        """This machine."""
        return Cluster(launcher=self.name)

    def processes(self, launch: Launch) -> list[AgentProcess]:
        """The agent's."""
        return [AgentProcess(self.agent())]

    def agent(self, *which: str) -> list[str]:
        """The command of an agent. For `which` see `Launch.agent`."""
        server = self.environ[VARIABLE]
        return command_at(server, "tests.forks.agent", server, *which)


def forked_here(kind: type[ForkingLauncher] = ForkingLauncher) -> Launch:
    """As `launch_here`, of forks."""
    here = kind(settings_from({}, {}, {}), {**os.environ, VARIABLE: address()})
    return Launch(here, worker_environment(os.environ, "cpu"))


def register(patch: pytest.MonkeyPatch) -> None:
    """Have it be one of the package's launchers, and the first that is asked."""
    patch.setattr(known, "LAUNCHERS", {"forks": "launcher", **LAUNCHERS})


@contextmanager
def forking_here() -> Iterator[None]:
    """Have this process fork its gangs on this machine, as long as it lasts, and ranks hardly warm up.

    It knows the model that all forks know.
    """
    importlib.import_module("tests.builders.trained")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in forking().items():
            patch.setenv(name, value)
        register(patch)
        patch.setattr("pytest_ddpscale.find_batch.find_max_batch.launch_here", lambda device_type: forked_here())
        patch.setitem(PACES, "cpu", replace(PACES["cpu"], warmup_s=0.1))
        yield
