"""Hosts with an sshd each, on one machine, that share nothing but the programs: no /tmp, no run directory.

    with SshLab(directory, hosts=3) as lab:
        lab.run([...])          # on a machine of its own, which reaches n1 … n3 by name

Each host has a network, host name, process tree and mounts of its own, with an empty /tmp and /dev/shm among them.
The checkout and the virtual environment are there to read, as an installation on each of them would be.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import psutil

from tests.slurm_lab.machine import Machine, lab_path, program_of
from tests.slurm_lab.network import Network, execute
from tests.slurm_lab.polling import wait_until

ROOT = Path(__file__).parents[2]
UP_DEADLINE_S = 120
NOBODY = "n99"  # has an address, at which nobody is
_SSHD = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
"""
# The programs are bound elsewhere first, as they may lie below /tmp. Nothing of the lab's own is seen on a host.
_OWN_FILES = """
set -e
mkdir -p /run/sshd
keep=$(mktemp -d /var/tmp/keep.XXXXXX)
number=0
for path in "$@"; do
    number=$((number + 1)); mkdir "$keep/$number"; mount --bind "$path" "$keep/$number"
done
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
number=0
for path in "$@"; do
    number=$((number + 1)); mkdir -p "$path"; mount --bind -o ro "$keep/$number" "$path"
done
chmod 1777 /tmp /dev/shm
for mount in "$keep"/*; do [ ! -d "$mount" ] || { umount "$mount"; rmdir "$mount"; }; done
rmdir "$keep"
"""


class SshLab:
    """``head``, from which ssh reaches ``n1`` … ``nN`` without a password, and knows their keys.

    Args:
        directory: for keys and logs; kept.
        hosts: how many.
    """

    def __init__(self, directory: Path, hosts: int = 3) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.names = [f"n{number}" for number in range(1, hosts + 1)]
        self.hosts: dict[str, Machine] = {}
        self._cleanup = ExitStack()

    def __enter__(self) -> SshLab:
        with ExitStack() as begun:
            self._up(begun)
            self._cleanup = begun.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` on head, in the working directory of whoever runs it."""
        return self.head.enter(argv, as_member=False)

    def run(
        self, argv: Sequence[str], cwd: Path, environ: Mapping[str, str] | None = None, timeout_s: float = 240
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on head; its output and errors together."""
        return subprocess.run(
            self.command(argv), cwd=cwd, env={**self.environ, **(environ or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    @property
    def environ(self) -> dict[str, str]:
        """Of commands on head."""
        return {name: value for name, value in lab_path(os.environ).items() if not name.startswith("SLURM")}

    def processes(self) -> list[psutil.Process]:
        """Every living process on any host but sshd's: empty when nothing survived."""
        found = [process for host in self.hosts.values() for process in host.processes()]
        return [process for process in found if program_of(process) not in ("", "sshd", "sshd-session")]

    def write(self, name: str, text: str) -> None:
        """Replace a file of head's ~/.ssh."""
        (self._dot_ssh / name).write_text(text, encoding="utf-8")

    @property
    def known_hosts(self) -> str:
        """The keys of all hosts, as head has them when it comes up."""
        key = (self._keys / "host_key.pub").read_text(encoding="utf-8")
        return "".join(f"{name},{address} {key}" for name, address in self.network.nodes.items())

    @contextmanager
    def other_file(self, host: str, path: Path, text: str) -> Iterator[None]:
        """Let one host alone find another file at a path."""
        other = self._keys / f"{host}-{path.name}"
        other.write_text(text, encoding="utf-8")
        execute(["mount", "--bind", str(other), str(path)], self.hosts[host])
        try:
            yield
        finally:
            execute(["umount", str(path)], self.hosts[host])

    def entering(self) -> Path:
        """A program of this lab's own, ``PROGRAM HOST COMMAND…``, that runs a command on a host without ssh."""
        program = self.directory / "enter"
        namespaces = "--net --uts --mount --pid --"
        cases = (f'{name}) exec nsenter --target {host.pid} {namespaces} "$@";;' for name, host in self.hosts.items())
        program.write_text("\n".join(["#!/bin/sh", 'host=$1; shift; cd /; case "$host" in', *cases, "esac", ""]))
        program.chmod(0o755)
        return program

    def _up(self, begun: ExitStack) -> None:
        # Not below /tmp, which hosts have to themselves.
        self._keys = Path(tempfile.mkdtemp(prefix="ssh-lab-", dir="/var/tmp"))
        begun.callback(shutil.rmtree, self._keys, ignore_errors=True)
        self._dot_ssh = self._keys / "dot_ssh"
        self._dot_ssh.mkdir(mode=0o700)
        network = self.network = Network(self.names)
        hosts_file = self._keys / "hosts"
        network.write_hosts(hosts_file)
        nobody = next(address for address in map(str, network.subnet.hosts()) if address not in network.nodes.values())
        with hosts_file.open("a") as file:
            file.write(f"{nobody} {NOBODY}\n")
        for name in self.names:
            self.hosts[name] = Machine(name, hosts_file, own_proc=True)
        self.head = Machine("head", hosts_file, own_proc=False)
        for machine in (self.head, *self.hosts.values()):
            begun.callback(machine.down)
            machine.up()
        begun.callback(network.disconnect)
        network.connect(self.head, list(self.hosts.values()))
        self._start_sshds()

    def _start_sshds(self) -> None:
        for name, folder in (("host_key", self._keys), ("id_ed25519", self._dot_ssh)):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        shutil.copy(self._dot_ssh / "id_ed25519.pub", self._keys / "authorized_keys")
        (self._keys / "sshd_config").write_text(_SSHD.format(folder=self._keys), encoding="utf-8")
        self.write("known_hosts", self.known_hosts)
        Path("/root/.ssh").mkdir(mode=0o700, exist_ok=True)
        execute(["mount", "--bind", str(self._dot_ssh), "/root/.ssh"], self.head)
        programs = dict.fromkeys(map(str, (ROOT, Path(sys.prefix).resolve())))
        hidden = [path for path in programs if path.startswith(("/tmp/", "/dev/shm/"))]
        for name, host in self.hosts.items():
            execute(["sh", "-c", _OWN_FILES, "sh", *hidden], host)
            config = str(self._keys / "sshd_config")
            host.start_daemon(["/usr/sbin/sshd", "-D", "-e", "-f", config], self.directory / f"sshd.{name}.log")
        for name in self.names:
            wait_until(lambda name=name: self._answers(name), UP_DEADLINE_S, f"sshd of {name}")  # type: ignore[misc]

    def _answers(self, name: str) -> bool:
        return self.run(["ssh", "-o", "BatchMode=yes", name, "true"], self.directory).returncode == 0


def why_not() -> str | None:
    """Why no lab with ssh can run here besides what other labs need; None where one can."""
    missing = [name for name in ("/usr/sbin/sshd", "ssh", "ssh-keygen") if shutil.which(name) is None]
    return f"the ssh lab needs {', '.join(missing)}: apt-get install -y openssh-server" if missing else None
