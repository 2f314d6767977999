"""What this rank's node is called."""

from __future__ import annotations

import os
import socket

HOST_VARIABLE = "DDPSCALE_HOST"


def host_name() -> str:
    """The node's name as its launcher has it, where the agent says so: what a drain command needs. Else the host's."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()
