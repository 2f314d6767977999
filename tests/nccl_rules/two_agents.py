"""What srun does for two nodes, on this machine: an agent for each, which hears all that is said and says what it has.

``python two_agents.py AGENT…``: the nodes are 127.0.0.1 and 127.0.0.2, so that each finds the other under its name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

HOSTS = ("127.0.0.1", "127.0.0.2")


def main() -> int:
    """Run until both agents have ended. Returns the exit code of the first that failed."""
    agents = [
        subprocess.Popen(
            sys.argv[1:],
            stdin=subprocess.PIPE,
            env=os.environ | {"SLURM_PROCID": str(index), "SLURMD_NODENAME": host},
        )
        for index, host in enumerate(HOSTS)
    ]
    threading.Thread(target=_say_to, args=(agents,), daemon=True).start()
    return next((code for agent in agents if (code := agent.wait())), 0)


def _say_to(agents: list[subprocess.Popen[bytes]]) -> None:
    while data := os.read(0, 65536):
        for agent in agents:
            assert agent.stdin is not None
            agent.stdin.write(data)
            agent.stdin.flush()
    for agent in agents:
        assert agent.stdin is not None
        agent.stdin.close()


if __name__ == "__main__":
    sys.exit(main())
