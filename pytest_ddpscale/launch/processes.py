"""Ending what we started, all of it."""

from __future__ import annotations

import subprocess

import psutil


def stop_tree(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End a launcher and every process below it.

    torchrun starts each worker in a session of its own, so that a signal to torchrun's process
    group leaves workers behind, holding GPUs: they are looked up as its descendants first.

    Args:
        process: the launcher; may have exited already.
        grace_s: seconds between asking (SIGTERM) and killing (SIGKILL).
    """
    family = _family(process.pid)
    if process.poll() is None:
        process.terminate()  # torchrun passes it on to its workers
    _, alive = psutil.wait_procs(family, timeout=grace_s)
    for member in alive:
        _kill(member)
    psutil.wait_procs(alive, timeout=grace_s)
    process.wait(timeout=grace_s)


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()  # psutil checks the start time, so that a reused pid is safe
    except psutil.NoSuchProcess:
        pass
