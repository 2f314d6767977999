"""``python -m pytest_ddpscale.telemetry UUID,… POLL_S PARENT_PID``: the sampler, one process per node for all its GPUs.

Only `telemetry.link.Sampler` starts it.
"""

from __future__ import annotations

import os
import signal
import sys

from pytest_ddpscale.telemetry.sampling import Sampling, serve
from pytest_ddpscale.util.orphans import die_with_parent


def main() -> None:
    """Sample until the client ends."""
    uuids, poll_s, parent = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent):  # the parent ended while this process was starting
        return
    # Ctrl-C reaches the whole process group; the parent ends this process once the last window is cut.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # keeps library output out of the answers
    serve(Sampling(uuids.split(",")), float(poll_s), 0, answers.write)


if __name__ == "__main__":
    main()
