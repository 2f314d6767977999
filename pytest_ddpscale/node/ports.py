"""The port of the rendezvous."""

from __future__ import annotations

import contextlib
import socket
import zlib
from collections.abc import Mapping

# Above the services of most sites, below the ports that Linux hands out by itself (32768 …).
_FIRST, _COUNT = 20_000, 10_000


def free_port(gang_id: str, environ: Mapping[str, str]) -> int:
    """A port of this node that nobody listens on, derived from the job and the gang.

    So jobs that share a node start looking at different ports, and what a firewall has to let
    through is known: 20000 to 29999.

    Raises:
        OSError: no port is free.
    """
    seed = zlib.crc32(f"{environ.get('SLURM_JOB_ID', '')}/{gang_id}".encode())
    for offset in range(100):
        port = _FIRST + (seed + offset) % _COUNT
        with contextlib.suppress(OSError), socket.socket() as candidate:
            candidate.bind(("", port))
            return port
    raise OSError(f"100 ports from {_FIRST + seed % _COUNT} on are all in use")
