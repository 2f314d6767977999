"""A sampler on a played machine, and its readings as records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import structs

from pytest_ddpscale.telemetry.windows import Sampler
from tests.builders.telemetry import Telemetry
from tests.nvml_stand_in.machine import PlayedMachine, uuid_of

GENEROUS_S = 30.0


@contextmanager
def sampler_on(machine: PlayedMachine, uuids: Sequence[str] = (uuid_of(0),), poll_s: float = 0.2) -> Iterator[Sampler]:
    """A sampler that has polled once."""
    lines = machine.file.with_name("gpus.jsonl")
    with closing(Sampler(uuids, lines, poll_s, machine.environment())) as sampler:
        sampler.wait_for_first_poll(GENEROUS_S)
        yield sampler


def cut(sampler: Sampler, windows: Sequence[tuple[str, float, float]]) -> list[Telemetry]:
    """The readings once the sampler has polled after the windows, or has ended."""
    after = time.time()
    deadline_s = after + GENEROUS_S
    while not sampler.read() and sampler.logs[windows[0][0]].newest.unix_s <= after and time.time() < deadline_s:
        time.sleep(0.01)
    whose = [("weak/r", "ddp@8", 0, 0, 0, "n", uuid) for uuid, _, _ in windows]
    return [Telemetry(*at, **structs.asdict(one)) for at, one in zip(whose, sampler.cut(windows), strict=True)]


def wait_until(unix_s: float) -> None:
    """Sleep until the system clock shows it."""
    time.sleep(max(0.0, unix_s - time.time()))


def ends_within(pid: int, limit_s: float) -> bool:
    """Whether a process ends in time; a zombie has."""
    stat, deadline_s = Path(f"/proc/{pid}/stat"), time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        try:
            if stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False
