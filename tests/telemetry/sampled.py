"""A sampler on a played machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from unittest.mock import patch

from pytest_ddpscale.node.ranks import process_state
from pytest_ddpscale.run.telemetry import GpuReadings
from pytest_ddpscale.telemetry.windows import Sampler
from tests.nvml_stand_in.machine import PlayedMachine, uuid_of

GENEROUS_S = 30.0


@contextmanager
def sampler_on(machine: PlayedMachine, uuid: str = uuid_of(0), poll_s: float = 0.2) -> Iterator[Sampler]:
    """One that has polled once."""
    with patch.dict(os.environ, machine.environment(CUDA_VISIBLE_DEVICES="")):
        running = Sampler(uuid, machine.file.with_name(uuid), poll_s)
    with closing(running) as sampler:
        sampler.wait_for_first_poll(GENEROUS_S)
        yield sampler


def cut(sampler: Sampler, start_s: float, end_s: float) -> GpuReadings:
    """The readings once the sampler has polled after the window, or has ended."""
    after = time.time()
    deadline_s = after + GENEROUS_S
    while not sampler.read() and sampler.log.newest.unix_s <= after and time.time() < deadline_s:
        time.sleep(0.01)
    return sampler.cut(start_s, end_s)


def wait_until(unix_s: float) -> None:
    """Sleep until the system clock shows it."""
    time.sleep(max(0.0, unix_s - time.time()))


def ends_within(pid: int, limit_s: float) -> bool:
    """Whether a process ends in time; a zombie has."""
    deadline_s = time.monotonic() + limit_s
    while (is_there := process_state(pid) not in ("", "Z")) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return not is_there
