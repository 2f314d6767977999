"""A sampler on a played machine, and its answers as records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import structs

from pytest_ddpscale.telemetry.link import Sampler
from tests.builders.telemetry import Telemetry
from tests.nvml_stand_in.machine import PlayedMachine, uuid_of

GENEROUS_S = 30.0


@contextmanager
def sampler_on(machine: PlayedMachine, uuids: Sequence[str] = (uuid_of(0),), poll_s: float = 0.2) -> Iterator[Sampler]:
    """A sampler that has polled once."""
    with closing(Sampler(uuids, poll_s, machine.environment())) as sampler:
        now = time.time()
        assert sampler.cut([(uuids[0], now - 1, now)], GENEROUS_S), sampler.problem
        yield sampler


def cut(sampler: Sampler, windows: Sequence[tuple[str, float, float]]) -> list[Telemetry]:
    """The answer to a question, read as strictly as a run's telemetry is."""
    found = sampler.cut(windows, GENEROUS_S)
    assert len(found) == len(windows), sampler.problem
    whose = [("weak/r", "ddp@8", 0, 0, 0, "n", uuid) for uuid, _, _ in windows]
    return [Telemetry(*place, **structs.asdict(one)) for place, one in zip(whose, found, strict=True)]


def wait_until(unix_s: float) -> None:
    """Sleep until the system clock shows it."""
    time.sleep(max(0.0, unix_s - time.time()))


def is_running(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ends_within(pid: int, limit_s: float) -> bool:
    """Whether a process ends in time."""
    deadline_s = time.monotonic() + limit_s
    while is_running(pid) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return not is_running(pid)
