"""No process of ours outlives the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process (SIGKILL) when the thread that started it ends, however that ends.

    torchrun starts each rank in a session of its own, so that no signal to a group reaches all of
    them; and a SIGKILL to torchrun, or to what started it, leaves nobody to pass anything on. A
    stopped process is ended by it too. Does nothing where the system is not Linux.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended between the two calls
        os.kill(os.getpid(), signal.SIGKILL)
