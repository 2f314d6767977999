"""Launcher for hosts reached by ssh, which is all that a new cluster needs."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.hosts import PerHostLauncher
from pytest_ddpscale.launch.launcher import Cluster, launcher
from pytest_ddpscale.settings import Settings

_OPTIONS = (
    "-T",  # a terminal would alter the agents' output
    "-x", "-a",
    "-o", "BatchMode=yes",  # a password prompt would hang for ever
    "-o", "ConnectTimeout=15",
    # Detects a lost host after 30 s, like the agents' own limit.
    "-o", "ServerAliveInterval=10",
    "-o", "ServerAliveCountMax=3",
    "-o", "ControlPath=none",  # an own connection that ends with this ssh
)  # fmt: skip
_FAILED = 255  # exit code if ssh itself fails; others are the remote command's


@launcher("ssh")
class SshLauncher(PerHostLauncher):
    """Starts agents by ssh. Users, ports, keys and jump hosts are configured in ``~/.ssh/config``."""

    calls_itself = "ssh"
    program = "ssh"
    service = "its sshd"

    @classmethod
    def is_meant(cls, settings: Settings, environ: Mapping[str, str]) -> bool:
        """Whether hosts are named without --ddp-exec."""
        return bool(settings.hosts) and not settings.exec

    def cluster(self, *, plans_only: bool) -> Cluster:
        """As in `PerHostLauncher`. Also raises OptionError if ssh is not installed here."""
        found = super().cluster(plans_only=plans_only)
        if not plans_only and shutil.which("ssh") is None:
            raise OptionError("--ddp-launcher", "ssh is not on PATH", "OpenSSH's client")
        return found

    def command(self, host: str, agent: Sequence[str]) -> list[str]:
        """The ssh command; the agent's command is quoted as one word for the remote shell."""
        return ["ssh", *_OPTIONS, "--", host, shlex.join(["exec", *agent])]

    def why_not_up(self, host: str, exit_code: int, lines: Sequence[str]) -> str:
        """Why ssh did not reach a host, with ssh's message."""
        if exit_code != _FAILED:
            return super().why_not_up(host, exit_code, lines)
        said = next((line.strip() for line in reversed(lines) if line.strip()), "ssh gave no reason")
        return f"{host} cannot be reached by ssh: {said.removeprefix('ssh: ').rstrip('.')} (try `ssh {host} true`)"
