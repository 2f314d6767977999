"""On which addresses processes listen, as the kernel has it.

    python tests/listening.py FILE COMMAND …

runs a command, and writes the addresses on which anything in this network namespace listened meanwhile.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

_LISTENING = "0A"


def addresses_listened_on(pids: Iterable[int] | None = None) -> set[str]:
    """The addresses on which these processes listen, or any process in this one's network namespace."""
    if pids is None:
        return set(_listeners("self").values())
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            own = _sockets(pid)
            found |= {address for inode, address in _listeners(str(pid)).items() if inode in own}
    return found


def _sockets(pid: int) -> set[str]:
    """The inodes of its sockets."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed
            match = re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink()))
            found |= {match[1]} if match else set()
    return found


def _listeners(pid: str) -> dict[str, str]:
    """Inode and address of each listening socket in a process's network namespace."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    return {inode: _address(local) for _, local, _, state, _, _, _, _, _, inode, *_ in lines if state == _LISTENING}


def _address(local: str) -> str:
    """``127.0.0.1`` of ``0100007F:1F90``: four bytes at a time in the byte order of this machine."""
    text = local.partition(":")[0]
    words = (int(text[first : first + 8], 16) for first in range(0, len(text), 8))
    return str(ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words)))


def main() -> int:
    """Run the command. Returns its exit code."""
    found: set[str] = set()
    process = subprocess.Popen(sys.argv[2:])
    while process.poll() is None:
        found |= addresses_listened_on()
        time.sleep(0.3)  # what listens does so for as long as ranks work
    Path(sys.argv[1]).write_text("".join(f"{address}\n" for address in sorted(found)))
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
