"""Ending what we started, all of it."""

from __future__ import annotations

import contextlib
import subprocess
import time

import psutil


def stop_tree(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End a launcher and every process below it.

    torchrun starts each worker in a session of its own, so that a signal to torchrun's process
    group leaves workers behind, holding GPUs: they are looked up as its descendants first.

    Args:
        process: the launcher; may have exited already.
        grace_s: seconds between asking (SIGTERM) and killing (SIGKILL).
    """
    if process.poll() is not None:
        return  # its pid may be another's by now, and whoever it left behind has another parent
    below = _descendants(process.pid)
    process.terminate()  # torchrun passes it on to its workers
    patience_ends = time.monotonic() + grace_s
    # Not psutil, which would take the exit code from under Popen: it would then say 0.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)
    _, alive = psutil.wait_procs(below, timeout=max(0.0, patience_ends - time.monotonic()))
    process.kill()  # does nothing to one that has been waited for
    for member in alive:
        _kill(member)
    psutil.wait_procs(alive, timeout=grace_s)
    process.wait(timeout=grace_s)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()  # psutil checks the start time, so that a reused pid is safe
