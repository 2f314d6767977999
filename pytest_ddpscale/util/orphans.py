"""Child processes that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process (SIGKILL) when the thread that started it ends, for whatever reason.

    torchrun starts each rank in its own session, so no group signal reaches all ranks; and if torchrun or its parent
    is killed by SIGKILL, no process is left to forward a signal. This ends a stopped process too. Does nothing on
    systems other than Linux.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended between the two calls
        os.kill(os.getpid(), signal.SIGKILL)
