"""The rendezvous of ranks: which of this machine's addresses and interfaces lead to other machines, and the port."""

from __future__ import annotations

import contextlib
import socket
import zlib
from collections.abc import Sequence

import psutil

_MOST_ADDRESSES = 8
_LOOPBACK_LIMIT_S = 5.0  # the kernel answers at once; a firewall that drops packets does not
# Above the services of most sites, below the ports that Linux hands out by itself (32768 …).
_FIRST_PORT, _PORTS = 20_000, 10_000


def loopback_problem() -> str:
    """Why processes of this machine cannot connect to each other at 127.0.0.1, in the system's words; else empty."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), _LOOPBACK_LIMIT_S),
        ):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def address_toward(host: str) -> str:
    """This machine's address on the route to another one, preferring IPv4.

    Raises:
        OSError: the host cannot be resolved, or there is no route to it.
    """
    problem = OSError(f"{host} has no address")
    for family, kind, protocol, _, target in sorted(socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(target)  # on a datagram socket this sends nothing and only selects a route
            except OSError as error:
                problem = error
                continue
            return str(probe.getsockname()[0])
    raise problem


def address_toward_any(hosts: Sequence[str]) -> str:
    """`address_toward` the first of a machine's names and addresses that leads to another machine.

    Raises:
        OSError: none does; the first one's error.
    """
    problems = []
    for host in hosts:
        try:
            address = address_toward(host)
        except OSError as error:
            problems.append(error)
            continue
        # An address that leads to itself is our own: a bridge has the same one on every machine.
        if address != host or host == hosts[0]:
            return address
    raise problems[0]


def outward_addresses(most: int | None = _MOST_ADDRESSES) -> tuple[str, ...]:
    """This machine's IPv4 addresses on all interfaces that are up, without loopback, or the first ones of them."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    addresses = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
    return tuple(addresses[:most])


def interface_of(address: str) -> str | None:
    """The name of the interface with this address; None if there is none."""
    return next(
        (name for name, addresses in psutil.net_if_addrs().items() if any(one.address == address for one in addresses)),
        None,
    )


def reserved_port(gang_id: str) -> socket.socket:
    """A socket bound to a free port of this node, in the range 20000 to 29999 that a firewall has to admit.

    The search starts at a port derived from the gang, so gangs that share a node try different ports. While the socket
    is open no other process gets the port by chance, but rank 0, which sets SO_REUSEADDR, can listen on it.

    Raises:
        OSError: no port is free.
    """
    seed = zlib.crc32(gang_id.encode())
    for offset in range(100):
        port = _FIRST_PORT + (seed + offset) % _PORTS
        candidate = socket.socket()
        with contextlib.suppress(OSError):
            candidate.bind(("", port))
            # Set only after bind, which would otherwise succeed on a port in use.
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return candidate
        candidate.close()
    raise OSError(f"all of 100 ports starting at {_FIRST_PORT + seed % _PORTS} are in use")
