"""kill, scancel and a lost ssh interrupt like Ctrl-C while measuring, and only then."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from pytest_ddpscale.launch.supervisor import interrupted_by_termination

NUMBERS = (signal.SIGTERM, signal.SIGHUP)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in NUMBERS]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_ends_a_job_is_an_interrupt_that_names_it(number: signal.Signals) -> None:
    before = handlers()
    with pytest.raises(KeyboardInterrupt, match=f"^{number.name}$"), interrupted_by_termination():
        signal.raise_signal(number)
    assert handlers() == before


def test_handlers_are_as_before_after_any_end() -> None:
    before = handlers()
    with interrupted_by_termination():
        assert handlers() != before
    assert handlers() == before


def test_in_another_thread_nothing_is_done() -> None:
    before, seen = handlers(), []

    def enter() -> None:
        with interrupted_by_termination():
            seen.append(handlers())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
