"""Ranks on hosts that ssh reaches: a new cluster needs no more than that."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.hosts import PerHostLauncher
from pytest_ddpscale.launch.launcher import Cluster, launcher
from pytest_ddpscale.settings import Settings

_OPTIONS = (
    "-T",  # a terminal would change what agents say
    "-x", "-a",
    "-o", "BatchMode=yes",  # who is asked for a password here would wait for ever
    "-o", "ConnectTimeout=15",
    # A host that is gone is known after 30 s, as agents have it too.
    "-o", "ServerAliveInterval=10",
    "-o", "ServerAliveCountMax=3",
    "-o", "ControlPath=none",  # a connection of its own, which ends with it
)  # fmt: skip
_FAILED = 255  # exit code of ssh itself; else it is the remote command's


@launcher("ssh")
class SshLauncher(PerHostLauncher):
    """Users, ports, keys and jump hosts are ssh's own business: ``~/.ssh/config``."""

    calls_itself = "ssh"
    program = "ssh"
    service = "its sshd"

    @classmethod
    def is_meant(cls, settings: Settings, environ: Mapping[str, str]) -> bool:
        """Hosts are named, and nothing else that reaches them."""
        return bool(settings.hosts or settings.hostfile) and not settings.exec

    def cluster(self, *, plans_only: bool) -> Cluster:
        """As for all hosts that are named. Raises OptionError too if there is no ssh here."""
        found = super().cluster(plans_only=plans_only)
        if not plans_only and shutil.which("ssh") is None:
            raise OptionError("--ddp-launcher", "ssh is not on PATH", "OpenSSH's client")
        return found

    def command(self, host: str, agent: Sequence[str]) -> list[str]:
        """One word for the remote shell, so that nothing of it is taken for shell syntax."""
        return ["ssh", *_OPTIONS, "--", host, shlex.join(["exec", *agent])]

    def why_not_up(self, host: str, exit_code: int, lines: Sequence[str]) -> str:
        """Why ssh did not reach a host, in its own words."""
        if exit_code != _FAILED:
            return super().why_not_up(host, exit_code, lines)
        said = next((line.strip() for line in reversed(lines) if line.strip()), "ssh gave no reason")
        return f"{host} cannot be reached by ssh: {said.removeprefix('ssh: ').rstrip('.')} (try `ssh {host} true`)"
