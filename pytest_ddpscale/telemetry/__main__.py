"""``python -m pytest_ddpscale.telemetry UUID,… POLL_S PARENT_PID``: the sampler, one process a node for all its GPUs.

`telemetry.link.Sampler` is its only caller.
"""

from __future__ import annotations

import os
import signal
import sys

from pytest_ddpscale.telemetry.sampling import Sampling, serve
from pytest_ddpscale.util.orphans import die_with_parent


def main() -> None:
    """Sample until the asking side ends."""
    uuids, poll_s, parent = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent):  # it ended before this process had been imported
        return
    # Ctrl-C goes to the whole group: whoever started this one ends it, when the last window is cut.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints does not get between the answers
    serve(Sampling(uuids.split(",")), float(poll_s), 0, answers.write)


if __name__ == "__main__":
    main()
