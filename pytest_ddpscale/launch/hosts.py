"""Hosts by name: pdsh-style lists, host files of OpenMPI and MPICH, and launchers that reach them by a command."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from ipaddress import IPv6Address
from pathlib import Path
from typing import ClassVar

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.launcher import AgentProcess, Cluster, Launch, Launcher, is_among
from pytest_ddpscale.settings import MOST_NODES, Settings
from pytest_ddpscale.util.regular_file import read_regular

_LOGIN = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?"  # no leading hyphen, which would look like an option
_NAME = re.compile(rf"{_LOGIN}[A-Za-z0-9_][A-Za-z0-9_.-]*")
_IPV6 = re.compile(rf"({_LOGIN})(\[)?([0-9A-Fa-f.]*(?::[0-9A-Fa-f.]*){{2,}}(?:%[\w.-]+)?)(?(2)\])")
_BETWEEN_HOSTS = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NESTED = re.compile(r"\[[^\]]*\[")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MPICH = re.compile(r"(\[.*\]|[^:]*):(\d+)")
_SLOTS = re.compile(r"(?:(?:slots|count)=)?(\d+)")
_NO_PACKAGE = re.compile(r"No module named '?pytest_ddpscale")
MOST_HOSTFILE_BYTES = 2**22  # 500 bytes for each of the most nodes
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

    def why_not_up(self, host: str, exit_code: int, lines: Sequence[str]) -> str:
        """Whether Python or this package is missing on the host."""
        if any(map(_NO_PACKAGE.search, lines)):
            return (
                f"{host}: pytest-ddpscale is not installed for {self._python} there: install version {__version__}, or "
                "name another Python with --ddp-remote-python"
            )
        if exit_code in _NO_PROGRAM:
            return f"{host}: {self._python} cannot be started there: name its Python with --ddp-remote-python"
        return super().why_not_up(host, exit_code, lines)

    @property
    def _python(self) -> str:
        return self.settings.remote_python or sys.executable

    @cached_property
    def named_hosts(self) -> tuple[dict[str, str], int | None]:
        """Each requested host as it is to be reached, and the ranks per host, None if not given. Raises OptionError."""
        asked, slots = self.settings.hosts, None
        if isinstance(asked, Path):
            hosts, slots = read_hostfile(asked)
        else:
            hosts, first = expanded("--ddp-hosts", asked or ""), dict[str, str]()
            for host in hosts:
                if other := first.get(_identity(host)):
                    raise OptionError("--ddp-hosts", f"found {other} and {host}, one host twice", "each host once")
                first[_identity(host)] = host
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

    def why_not_up(self, host: str, exit_code: int, lines: Sequence[str]) -> str:
        """Why ssh did not reach a host, with ssh's message."""
        if exit_code != _SSH_FAILED:
            return super().why_not_up(host, exit_code, lines)
        said = next((line.strip() for line in reversed(lines) if line.strip()), "ssh gave no reason")
        said, target = said.removeprefix("ssh: ").rstrip("."), self.named_hosts[0][host]
        return f"{host} cannot be reached by ssh: {said} (try `ssh {target} true`)"


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
        if user := next((one for one in self.named_hosts[0].values() if "@" in one), None):
            raise OptionError("--ddp-hosts", f"found {user!r}", "hosts alone", "Name the user in --ddp-exec.")
        return super().cluster(plans_only=plans_only)

    def command(self, target: str, agent: Sequence[str]) -> list[str]:
        """The user's command with the host's name inserted, followed by the agent's command."""
        return [*(word.replace(_HOST, target) for word in self.settings.exec), *agent]


def read_hostfile(path: Path) -> tuple[tuple[str, ...], int | None]:
    """Hosts in the order of a host file, and the slots of each; None if it does not give slots.

    A line has a name or a list of names, and its slots as ``slots=4``, ``count=4`` (OpenMPI), ``:4`` (MPICH) or ``4``
    (LSF). A repeated name without slots counts as one slot each time, as in OpenMPI and LSF's $LSB_DJOB_HOSTFILE. Other
    words, such as ``max_slots=8``, are ignored.

    Raises:
        OptionError: the file cannot be read, a line has no valid host or 0 slots, or hosts have different slots.
    """
    try:
        lines = read_regular(path, MOST_HOSTFILE_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError("--ddp-hosts", f"{path} cannot be read ({reason})", "a file with one host per line") from None
    slots, first = dict[str, int | None](), dict[str, str]()
    for number, line in enumerate(lines, start=1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if not words:
            continue
        name, counted = (match[1], match[2]) if (match := _MPICH.fullmatch(words[0])) else (words[0], None)
        said = next((found[1] for word in words[1:] if (found := _SLOTS.fullmatch(word))), counted)
        if said and not int(said):
            raise OptionError(f"{path}, line {number}", f"found 0 slots for {name}", "at least one, or no such line")
        for host in expanded(f"{path}, line {number}", name):
            host = first.setdefault(_identity(host), host)
            own = int(said) if said else None
            slots[host] = (slots[host] or 1) + (own or 1) if host in slots else own
    if not slots:
        raise OptionError("--ddp-hosts", f"found no host in {path}", "one host per line")
    (one, of_first), *others = slots.items()
    for host, count in others:
        if (count or 1) != (of_first or 1):
            raise OptionError(
                str(path), f"{one} has {of_first or 1} slots, {host} has {count or 1}",
                "the same number on every host",
                "Every node runs the same number of ranks; test hosts with different numbers in separate runs.",
            )  # fmt: skip
    return tuple(slots), of_first


def _identity(host: str) -> str:
    """What is equal for all ways to write a host's name."""
    return host.rpartition("@")[2].rstrip(".").lower()


def expanded(where: str, text: str) -> tuple[str, ...]:
    """The hosts of a list: ``n1,n[2-4,7],r[01-12]n1``, addresses without brackets, users as they are given.

    Raises:
        OptionError: it is not a valid list.
    """
    found: list[str] = []
    for part in _BETWEEN_HOSTS.split(text):
        if part.strip():
            found += _expanded(where, part.strip())
    if len(found) > MOST_NODES:
        raise OptionError(where, f"found {len(found)} hosts", f"at most {MOST_NODES}")
    return tuple(found)


def _expanded(where: str, part: str) -> list[str]:
    if found := _IPV6.fullmatch(part):
        with suppress(ValueError):
            address = IPv6Address(found[3])
            if address.is_link_local and not address.scope_id:
                raise OptionError(where, f"found {part!r}", f"its interface too, such as {address}%eth0")
            return [f"{found[1]}{address}"]
    brackets = _BRACKETS.search(part)
    if brackets is None or _NESTED.search(part):
        if not _NAME.fullmatch(part):
            hint = "Ranks are given by --ddp-gpus-per-node or a host file." if ":" in part else ""
            raise OptionError(where, f"found {part!r}", "names of hosts such as n1,n2 or n[1-8]", hint)
        return [part]
    names: list[str] = []
    for piece in brackets[1].split(","):
        match = _RANGE.fullmatch(piece.strip())
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < MOST_NODES:
            raise OptionError(where, f"found {part!r}", "names of hosts such as n1,n2 or n[1-8]")
        for number in range(int(first), int(last) + 1):
            names += _expanded(where, part[: brackets.start()] + str(number).zfill(len(first)) + part[brackets.end() :])
            if len(names) > MOST_NODES:
                return names  # already too many; the caller reports it
    return names
