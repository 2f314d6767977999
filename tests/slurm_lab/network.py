"""The lab's network: a bridge in the head's namespace, a cable from it to every node, and one to this machine.

Only the last cable has an end outside the lab, and it ends with the head's namespace.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.slurm_lab.machine import Machine, lab_path

# RFC 2544's range for benchmarking networks, which no site routes.
RANGE = ipaddress.ip_network("198.18.0.0/15")
INTERFACE = "e0"  # a node's end of its cable
BRIDGE = "br0"
_QUEUE = ("burst", "256kbit", "latency", "400ms")
_labs = itertools.count()


class Network:
    """Addresses and cables of one lab; ``outside`` is the name of this machine's own end, unique on it."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.outside = f"lab{os.getpid()}x{next(_labs)}"  # at most 15 characters: the kernel's limit
        self.subnet = _free_subnet()
        addresses = [str(address) for address in self.subnet.hosts()]
        self.nodes = dict(zip(nodes, addresses, strict=False))
        *_, self.this_machine, self.head = addresses

    def write_hosts(self, path: Path) -> None:
        """The /etc/hosts of every machine of the lab."""
        names = {"head": self.head, **self.nodes, socket.gethostname(): self.this_machine}
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def connect(self, head: Machine, nodes: Sequence[Machine]) -> None:
        """Lay every cable. Raises CalledProcessError when the kernel refuses."""
        bits = self.subnet.prefixlen
        ip(f"link add {self.outside} type veth peer name outside netns {head.pid}")
        ip(f"address add {self.this_machine}/{bits} dev {self.outside}", f"link set {self.outside} up")
        for node in nodes:
            ip(f"link add {node.name} netns {head.pid} type veth peer name {INTERFACE} netns {node.pid}")
            ip(f"address add {self.nodes[node.name]}/{bits} dev {INTERFACE}", f"link set {INTERFACE} up", of=node)
        plugs = [f"link set {name} master {BRIDGE} up" for name in ("outside", *(node.name for node in nodes))]
        ip(
            f"link add {BRIDGE} type bridge", f"address add {self.head}/{bits} dev {BRIDGE}", f"link set {BRIDGE} up",
            *plugs, of=head,
        )  # fmt: skip

    def disconnect(self) -> None:
        """Pull this machine's own cable; the others end with their machines. Harmless when it is gone."""
        if self.outside in psutil.net_if_addrs() or Path("/sys/class/net", self.outside).exists():
            ip(f"link delete {self.outside}")


def ip(*commands: str, of: Machine | None = None) -> None:
    """Run commands of ``ip`` in a machine's network namespace, or in this process's own."""
    execute(["ip", "-batch", "-"], of, "\n".join(commands))


def limit_rate(rate: str, interface: str, of: Machine) -> None:
    """Let no more than ``rate`` (tc's syntax: ``200mbit``) out of an interface; packets wait at most 400 ms."""
    execute(["tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate", rate, *_QUEUE], of)


def lift_limit(interface: str, of: Machine) -> None:
    """Take the limit of ``limit_rate`` away."""
    execute(["tc", "qdisc", "delete", "dev", interface, "root"], of)


def lose_packets(percent: int, interface: str, of: Machine) -> None:
    """Drop this share of the packets that come in through an interface, at random."""
    rule = f"type filter hook ingress device {interface} priority 0\nnumgen random mod 100 < {percent} drop"
    table = f"table netdev losses_{interface}"
    execute(["nft", "-f", "-"], of, f"{table} {{\nchain incoming {{\n{rule}\n}}\n}}\n")


def lose_none(interface: str, of: Machine) -> None:
    """Take the losses of ``lose_packets`` away."""
    execute(["nft", "delete", "table", "netdev", f"losses_{interface}"], of)


def execute(argv: list[str], of: Machine | None, text: str = "") -> None:
    """Run a command that says nothing, in a machine's namespaces or in this process's own, with ``text`` to read.

    Raises:
        RuntimeError: it failed, with what it said.
    """
    command = of.enter(argv) if of else argv
    done = subprocess.run(
        command, input=text, env=lab_path(os.environ), capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}\n{text}")


def _free_subnet() -> ipaddress.IPv4Network:
    """A /24 of RANGE in which this machine has no address; another process's labs begin to look elsewhere."""
    taken = [
        ipaddress.ip_address(address.address)
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    ]
    subnets = [net for net in RANGE.subnets(new_prefix=24) if isinstance(net, ipaddress.IPv4Network)]
    start = os.getpid() % len(subnets)
    free = (net for net in subnets[start:] + subnets[:start] if not any(address in net for address in taken))
    return next(free)
