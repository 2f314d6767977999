"""Where ranks meet: which of this machine's addresses and interfaces lead to another machine, and at which port."""

from __future__ import annotations

import contextlib
import socket
import zlib
from collections.abc import Sequence

import psutil

_MOST_ADDRESSES = 8
# Above the services of most sites, below the ports that Linux hands out by itself (32768 …).
_FIRST_PORT, _PORTS = 20_000, 10_000


def address_toward(host: str) -> str:
    """This machine's address on its way to another, IPv4 where there is a choice.

    Raises:
        OSError: nobody knows that host, or there is no way to it.
    """
    problem = OSError(f"{host} has no address")
    for family, kind, protocol, _, target in sorted(socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(target)  # of a datagram socket: sends nothing, only chooses the way
            except OSError as error:
                problem = error
                continue
            return str(probe.getsockname()[0])
    raise problem


def address_toward_any(hosts: Sequence[str]) -> str:
    """The same toward the first of a machine's names and addresses that leads anywhere else than to this machine.

    Raises:
        OSError: none does; of the first.
    """
    problems = []
    for host in hosts:
        try:
            found = address_toward(host)
        except OSError as error:
            problems.append(error)
            continue
        if (
            found != host or host == hosts[0]
        ):  # else it is an address of our own, as that of a bridge is on every machine
            return found
    raise problems[0]


def outward_addresses() -> tuple[str, ...]:
    """This machine's IPv4 addresses that others may reach it at: of all interfaces that are up, but for loopback."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
    return tuple(found[:_MOST_ADDRESSES])


def interface_of(address: str) -> str | None:
    """The name of the interface that has an address; None if none has."""
    return next(
        (name for name, found in psutil.net_if_addrs().items() if any(one.address == address for one in found)), None
    )


def reserved_port(gang_id: str) -> socket.socket:
    """A socket bound to a port of this node that nobody listens on, derived from the gang.

    So gangs that share a node start looking at different ports, and what a firewall has to let
    through is known: 20000 to 29999. As long as the socket is open nobody takes the port by chance, and
    rank 0 can listen on it, which asks for SO_REUSEADDR.

    Raises:
        OSError: no port is free.
    """
    seed = zlib.crc32(gang_id.encode())
    for offset in range(100):
        port = _FIRST_PORT + (seed + offset) % _PORTS
        candidate = socket.socket()
        with contextlib.suppress(OSError):
            candidate.bind(("", port))
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: else a port in use would do
            return candidate
        candidate.close()
    raise OSError(f"100 ports from {_FIRST_PORT + seed % _PORTS} on are all in use")
