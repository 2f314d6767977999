"""The port of the store that ranks meet at."""

from __future__ import annotations

import contextlib
import socket
import zlib

# Above the services of most sites, below the ports that Linux hands out by itself (32768 …).
_FIRST, _COUNT = 20_000, 10_000


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
        port = _FIRST + (seed + offset) % _COUNT
        candidate = socket.socket()
        with contextlib.suppress(OSError):
            candidate.bind(("", port))
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: else a port in use would do
            return candidate
        candidate.close()
    raise OSError(f"100 ports from {_FIRST + seed % _COUNT} on are all in use")
