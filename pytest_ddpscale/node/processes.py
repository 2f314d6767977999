"""Ending what we started, all of it."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence

import psutil

# In the environment of a launcher and so of all it starts: by it they are found, whoever their parent is.
# A node's agent adds `/` and its node's index for torchrun and its ranks.
GANG_VARIABLE = "DDPSCALE_GANG"


def stop_gang(started: Sequence[subprocess.Popen[bytes]], gang_id: str, grace_s: float) -> None:
    """End what we started, and every process that belongs to its gang.

    torchrun starts each worker in a session of its own, so that a signal to torchrun's process
    group leaves workers behind, holding GPUs; and when torchrun itself is killed, they get another
    parent. So they are looked up by what their environment says.

    Args:
        started: torchrun, or what carries agents; may have exited already.
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
        process.kill()  # does nothing to one that has been waited for
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()  # psutil checks the start time, so that a reused pid is safe
    psutil.wait_procs(alive, timeout=grace_s)
    _wait(started, time.monotonic() + grace_s)


def _wait(started: Sequence[subprocess.Popen[bytes]], ends_s: float) -> None:
    """Not by psutil, which would take the exit codes from under Popen."""
    for process in started:
        # Waiting for a disk or a driver that hangs: nobody can end it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, ends_s - time.monotonic()))


def members(gang_id: str) -> list[psutil.Process]:
    """Living processes of a gang on this machine, the launcher included; of one node's share for ``GANG/NODE``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # gone meanwhile, or somebody else's
            gang = process.environ().get(GANG_VARIABLE, "")
            if gang == gang_id or gang.startswith(f"{gang_id}/"):
                found.append(process)
    return found
