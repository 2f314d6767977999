"""Signals that end a job, made into what Ctrl-C is, so that nobody is left behind."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupted_by_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP (kill, scancel, a time limit, a lost ssh) interrupt like Ctrl-C.

    Does nothing outside the main thread, where Python takes no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
