"""Ends all processes of a gang."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence

import psutil

# Set in the environment of a launcher, so its descendants are found by it even after losing their parent.
# A node's agent appends `/` and its node's index for torchrun and its ranks.
GANG_VARIABLE = "DDPSCALE_GANG"


def stop_gang(started: Sequence[subprocess.Popen[bytes]], gang_id: str, grace_s: float) -> None:
    """End the started processes and every other process of their gang.

    torchrun starts each worker in its own session, so a signal to torchrun's process group leaves workers behind that
    hold GPUs; and if torchrun is killed, they get another parent. So they are found by their environment.

    Args:
        started: torchrun, or the processes that carry agents; may have exited already.
        grace_s: seconds between asking (SIGTERM) and killing (SIGKILL).
    """
    for process in started:
        if process.poll() is None:
            process.terminate()  # torchrun passes it on to its workers
    patience_ends = time.monotonic() + grace_s
    _wait(started, patience_ends)
    own = {process.pid for process in started}
    ranks = [member for member in members(gang_id) if member.pid not in own]
    _, alive = psutil.wait_procs(ranks, timeout=max(0.0, patience_ends - time.monotonic()))
    for process in started:
        process.kill()  # no effect on a process already waited for
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()  # psutil checks the start time, so a reused pid is safe
    psutil.wait_procs(alive, timeout=grace_s)
    _wait(started, time.monotonic() + grace_s)


def _wait(started: Sequence[subprocess.Popen[bytes]], ends_s: float) -> None:
    """Wait through Popen, because psutil would consume the exit codes."""
    for process in started:
        # A process that hangs in a disk or driver call cannot be ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, ends_s - time.monotonic()))


def members(gang_id: str) -> list[psutil.Process]:
    """Running processes of a gang on this machine, including the launcher; for ``GANG/NODE`` those of one node."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # ended meanwhile, or another user's
            gang = process.environ().get(GANG_VARIABLE, "")
            if gang == gang_id or gang.startswith(f"{gang_id}/"):
                found.append(process)
    return found
