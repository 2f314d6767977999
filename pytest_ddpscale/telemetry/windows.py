"""A rank's sampler as the rank has it: its lines, cut to time windows."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import subprocess
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pytest_ddpscale.run.telemetry import HARDLY_BUSY, GpuReadings, contradicts, why_not_idle
from pytest_ddpscale.telemetry.nvml import reasons_of
from pytest_ddpscale.telemetry.sampler import GpuPoll

POLL_S = 0.25
# A window is not known if nothing was read in its last part, of this length.
LATE_S = 2.0
# Windows of several ranks or turns are cut together; what is older than the last one by this is dropped.
KEEP_S = 60.0
# A power sample counts as idle if nothing ran for this long before it, as power samples lag by up to a second …
SETTLED_S = 2.0
# … and this long after it, as a utilization sample describes up to a second.
SAMPLE_S = 1.0
_LINES = msgspec.json.Decoder(GpuPoll)


class Sampler:
    """Starts and reads the sampler of a GPU. Never raises, because failing telemetry must not end a run.

    The sampler ends with the thread that creates it.

    Args:
        path: file for the sampler's lines, in the node's memory.
        poll_s: seconds between two polls.

    Attributes:
        process: the sampler; None if it did not start.
        log: what was read.
    """

    def __init__(self, uuid: str, path: Path, poll_s: float = POLL_S) -> None:
        self.log, self._is_awaited = GpuLog(), True
        self.process: subprocess.Popen[bytes] | None = None
        self._path, self._rest, self._problem = path, b"", ""
        module = "pytest_ddpscale.telemetry.sampler"
        command = [sys.executable, "-m", module, uuid, str(path), str(poll_s), str(os.getpid())]
        try:
            path.write_bytes(b"")
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            self._problem = f"the sampler did not start: {error}"

    def read(self) -> str:
        """Read the new lines. Returns why no more will come; empty while they may."""
        if self.process is None:
            return self._problem
        code = self.process.poll()
        is_left = not os.fstat(self._file.fileno()).st_nlink  # asked first: the sampler adds nothing to this file then
        data = self._rest + self._file.read()
        if is_left:
            self._file.close()
            self._file = self._path.open("rb", buffering=0)
            data += self._file.read()
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            self.log.add(_LINES.decode(line))
        return "" if code is None else f"the sampler ended with exit code {code}"

    def wait_for_first_poll(self, timeout_s: float = 5.0) -> None:
        """Once, before any window, wait until the GPU was read: errors are counted from then on.

        Starting NVML may take seconds if the driver unloads its state between programs (persistence mode off). It
        starts while arms warm up, so that usually nothing is left to wait for.
        """
        ends_s = time.monotonic() + timeout_s
        while self._is_awaited and not self.read() and time.monotonic() < ends_s and not self.log.newest.unix_s:
            time.sleep(0.02)
        if self._is_awaited:
            self.log.idle_power_w, self._is_awaited = self.log.power_while_idle(), False

    def cut(self, start_s: float, end_s: float, *, tells_errors: bool = True) -> GpuReadings:
        """The readings of a time window that is over; both ends in seconds since the epoch.

        New memory errors are told once, in the first window that tells them.
        """
        problem = self.read()
        return self.log.cut(start_s, end_s, problem, tells_errors=tells_errors)

    def energy_j(self) -> float | None:
        """What the GPU used since the first poll, by its counter; None if that is unknown, or nothing new is read."""
        is_late = bool(self.read()) or self.log.newest.unix_s < time.time() - LATE_S
        used = math.nan if is_late else self.log.newest.values.get("energy_j", math.nan) - self.log.first_energy_j
        return used if used > 0 else None

    def close(self) -> None:
        """End the sampler."""
        if self.process is not None:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # hangs in the driver
                self.process.wait(timeout=1.0)
            self._file.close()


def shares_of_reasons(masks: Sequence[float]) -> dict[str, float]:
    """Reason → share of the masks that contain it."""
    named = [reasons_of(int(mask)) for mask in masks]
    reasons = sorted({reason for names in named for reason in names})
    return {reason: sum(reason in names for names in named) / len(named) for reason in reasons}


# How the values in a window become its reading.
_JOINS: Mapping[str, Callable[[Sequence[float]], Any]] = {
    **dict.fromkeys(("utilization", "power_w", "sm_clock_mhz", "temperature_c", "sm_activity"), statistics.fmean),
    **dict.fromkeys(("pcie_generation", "pcie_width"), lambda values: int(min(values))),
    "throttle_reasons": shares_of_reasons,
}
# Counters of which all that is new since the window before counts, so that no error falls between two.
_ERRORS = ("ecc_corrected", "ecc_uncorrected")


class GpuLog:
    """Readings of one GPU so far.

    Attributes:
        newest: the last poll; at 0 s before the first.
        first_energy_j: of the counter, in the first poll; NaN if unknown.
        idle_power_w: before the first window; None if unknown.
    """

    def __init__(self) -> None:
        self.newest, self.first_energy_j = GpuPoll(0.0), math.nan
        self.idle_power_w: float | None = None
        self._series: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)  # (time, value), ascending
        self._counted: dict[str, float] = {}  # totals of errors that are in no window to come

    def add(self, poll: GpuPoll) -> None:
        """Add the next poll."""
        if not self.newest.unix_s:
            self.first_energy_j = poll.values.get("energy_j", math.nan)
            self._counted = {reading: poll.values[reading] for reading in _ERRORS if reading in poll.values}
        if poll.unix_s < self.newest.unix_s:
            self._series.clear()  # the clock was set back, and series only grow
        self.newest = poll
        polled = {reading: [(poll.unix_s, value)] for reading, value in {"polls": 1.0, **poll.values}.items()}
        for reading, samples in (*polled.items(), *poll.samples.items()):
            series = self._series[reading]
            series += [(time_s, value) for time_s, value in samples if not series or time_s > series[-1][0]]

    def _within(self, reading: str, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """(time, value) with start < time <= end, since a sample describes the period that ends at its time."""
        series = self._series[reading]
        return series[bisect_left(series, (start_s, math.inf)) : bisect_left(series, (end_s, math.inf))]

    def cut(self, start_s: float, end_s: float, problem: str = "", *, tells_errors: bool = True) -> GpuReadings:
        """The readings in start < time <= end.

        Args:
            problem: why there are no more polls; empty if there may be.
            tells_errors: whether errors so far are in no later window.
        """
        newest = self.newest
        if not problem and newest.unix_s < end_s - LATE_S:
            problem = "the sampler reads nothing any more: its driver may hang"
        window: dict[str, Any] = {"started_unix_s": start_s, "ended_unix_s": end_s, "lost": newest.lost}
        if problem := problem or newest.reasons.get("device", ""):
            return GpuReadings(**window, unreadable={"device": problem})
        readings: dict[str, Any] = {"idle_power_w": self.idle_power_w, "energy_j": self._energy_j(start_s, end_s)}
        for reading, join in _JOINS.items():
            values = [value for _, value in self._within(reading, start_s, end_s)]
            readings[reading] = join(values) if values else None
        for reading in ("power_limit_w", "sm_clock_max_mhz"):  # which rarely change: the latest value
            readings[reading] = self._series[reading][-1][1] if self._series[reading] else None
        is_begun = bool(self._within("polls", -math.inf, start_s))
        for reading in _ERRORS:
            before, total = self._counted.get(reading, math.inf), newest.values.get(reading, -math.inf)
            readings[reading] = round(total - before) if is_begun and total >= before else None
            self._counted |= {reading: total} if tells_errors and reading in newest.values else {}
        why = {"idle_power_w": "the GPU was never idle before the first window"} | newest.reasons
        missing = [reading for reading, value in readings.items() if value is None]
        unreadable = {name: why.get(name) or why.get(f"{name} samples", "no sample in the window") for name in missing}
        low = [value < HARDLY_BUSY for _, value in self._within("utilization", start_s, end_s)]
        power_w = readings["power_w"] if readings["energy_j"] is None else readings["energy_j"] / (end_s - start_s)
        drawn = [
            math.nan if one is None else one for one in (power_w, readings["power_limit_w"], readings["sm_activity"])
        ]
        if low and contradicts(sum(low) / len(low), *drawn):
            unreadable["utilization"] = why_not_idle(readings["utilization"], *drawn)
            readings["utilization"] = None
        polls = len(self._within("polls", start_s, end_s))
        for series in self._series.values():
            del series[: bisect_left(series, (start_s - KEEP_S,))]
        return GpuReadings(**window, polls=polls, **readings, unreadable=unreadable)

    def _energy_j(self, start_s: float, end_s: float) -> float | None:
        """Of the window at the mean power between its first and its last poll, because power jumps at its edges."""
        totals = self._within("energy_j", start_s, end_s)
        if len(totals) < 2 or totals[-1][1] <= totals[0][1]:  # a board always draws power
            return None
        (first_s, first), (last_s, last) = totals[0], totals[-1]
        return (last - first) / (last_s - first_s) * (end_s - start_s)

    def power_while_idle(self) -> float | None:
        """Median power, in watts, of samples so far during which the GPU was idle.

        None if the GPU was never idle, or if utilization or power cannot be read.
        """
        idle = []
        for time_s, value in self._series["power_w"]:
            busy = self._within("utilization", time_s - SETTLED_S, time_s + SAMPLE_S)
            if busy and not any(share for _, share in busy):
                idle.append(value)
        return statistics.median(idle) if idle else None
