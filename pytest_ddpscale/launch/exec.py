"""Launcher for hosts reached by a user's command: containers of Kubernetes or docker, or another remote shell."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.hosts import PerHostLauncher
from pytest_ddpscale.launch.launcher import Cluster, launcher
from pytest_ddpscale.settings import Settings

_HOST = "{host}"


@launcher("exec")
class ExecLauncher(PerHostLauncher):
    """Any command that carries standard input and output to a host: ``kubectl exec -i {host} --``."""

    calls_itself = "--ddp-exec"
    program = "the command of --ddp-exec"
    options: ClassVar[tuple[str, ...]] = (*PerHostLauncher.options, "exec")

    @classmethod
    def is_meant(cls, settings: Settings, environ: Mapping[str, str]) -> bool:
        """Whether --ddp-exec is given."""
        return bool(settings.exec)

    def cluster(self, *, plans_only: bool) -> Cluster:
        """As in `PerHostLauncher`. Also raises OptionError if the command lacks ``{host}`` or is not installed here."""
        words = self.settings.exec
        if not any(_HOST in word for word in words):
            found = f"found no {_HOST} in it" if words else "found nothing"
            raise OptionError("--ddp-exec", found, f'a command such as "kubectl exec -i {_HOST} --"')
        cluster = super().cluster(plans_only=plans_only)
        if not plans_only and shutil.which(words[0]) is None:
            raise OptionError("--ddp-exec", f"{words[0]} is not on PATH", "a program that this user may run")
        return cluster

    def command(self, host: str, agent: Sequence[str]) -> list[str]:
        """The user's command with the host's name inserted, followed by the agent's command."""
        return [*(word.replace(_HOST, host) for word in self.settings.exec), *agent]
