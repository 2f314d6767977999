"""Which of this machine's addresses and interfaces lead to another machine."""

from __future__ import annotations

import socket

import psutil


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


def interface_of(address: str) -> str | None:
    """The name of the interface that has an address; None if none has."""
    return next(
        (name for name, found in psutil.net_if_addrs().items() if any(one.address == address for one in found)), None
    )
