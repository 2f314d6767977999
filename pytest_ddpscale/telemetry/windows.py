"""Compute the readings of one time window from a GPU's log. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pytest_ddpscale.run.telemetry import GpuReadings, Spread
from pytest_ddpscale.telemetry.log import GpuLog
from pytest_ddpscale.telemetry.nvml_calls import reasons_of

_SAMPLED = ("utilization", "power_w", "sm_clock_mhz")
_LOWEST = ("pcie_generation", "pcie_width")
_ERRORS = ("ecc_corrected", "ecc_uncorrected")
# A power sample counts as idle if nothing ran for this long before it, as power samples lag by up to a second …
SETTLED_S = 2.0
# … and this long after it, as a utilization sample describes up to a second.
SAMPLE_S = 1.0
# Longest gap between two power values; drivers sample and we poll at least about once a second.
MOST_GAP_S = 1.5


class Cut:
    """One window of one GPU, in seconds since the epoch."""

    def __init__(self, log: GpuLog, start_s: float, end_s: float) -> None:
        self._log, self._start_s, self._end_s = log, start_s, end_s
        self._found: dict[str, Any] = {}
        self._sources: dict[str, str] = {}
        self._unreadable: dict[str, str] = {}

    def readings(self) -> GpuReadings:
        """All readings of the window."""
        if self._log.problem:
            self._unreadable["device"] = self._log.problem
        else:
            self._cut()
        return GpuReadings(
            started_unix_s=self._start_s,
            ended_unix_s=self._end_s,
            polls=len(self._log.polls.within(self._start_s, self._end_s)),
            lost=min(self._log.lost.values(), default=""),
            sources=self._sources,
            unreadable=self._unreadable,
            **self._found,
        )

    def _cut(self) -> None:
        for reading in _SAMPLED:
            items, source = self._log.samples(reading, self._start_s, self._end_s)
            self._keep(reading, spread([value for _, value in items]), source)
        self._keep("temperature_c", spread(self._polled("temperature_c")), "poll")
        for reading in _LOWEST:
            values = self._polled(reading)
            self._keep(reading, int(min(values)) if values else None, "poll")
        for reading in _ERRORS:
            self._keep(reading, self._new(reading), "counter")
        activity = self._log.sm_activity.within(self._start_s, self._end_s)
        self._keep("sm_activity", weighted_spread(activity), "gpm")
        for reading in ("power_limit_w", "sm_clock_max_mhz"):
            self._keep(reading, self._log.limits.get(reading), "poll")
        self._keep("throttle_reasons", shares_of_reasons(self._polled("throttle_reasons")), "poll")
        self._keep_energy()
        if self._log.idle_power_w is None:
            self._unreadable["idle_power_w"] = "the GPU was never idle before the first window"
        self._found["idle_power_w"] = self._log.idle_power_w

    def _keep(self, reading: str, value: Any, source: str) -> None:
        self._found[reading] = value
        if value is not None:
            self._sources[reading] = source
            return
        reasons = self._log.reasons
        behind = reasons.get(f"{reading} samples", "no sample in the window")
        self._unreadable[reading] = reasons.get(reading, behind)

    def _polled(self, reading: str) -> list[float]:
        return self._log.polled[reading].within(self._start_s, self._end_s)

    def _new(self, reading: str) -> int | None:
        """Growth of a counter from the poll before the window to the poll after it, so that nothing is missed."""
        totals = self._log.counters[reading].around(self._start_s, self._end_s)
        return None if totals is None or not _is_ascending(totals) else round(totals[-1] - totals[0])

    def _growth(self, reading: str) -> float | None:
        """Growth of a counter within the window, interpolated linearly between polls."""
        counter = self._log.counters[reading]
        totals = counter.around(self._start_s, self._end_s)
        first, last = counter.at(self._start_s), counter.at(self._end_s)
        if totals is None or first is None or last is None or not _is_ascending(totals):
            return None
        return last - first

    def _keep_energy(self) -> None:
        energy_j, source = self._growth("energy_j"), "counter"
        if energy_j is None:
            power, _ = self._log.samples("power_w", self._start_s, self._end_s)
            energy_j, source = integral(power, self._start_s, self._end_s), "power"
        self._keep("energy_j", energy_j, source)


def cut(log: GpuLog, start_s: float, end_s: float) -> GpuReadings:
    """The readings of one GPU in start < time <= end.

    The first call also determines the GPU's idle power, from samples before the window.
    """
    if not log.is_idle_power_known:
        log.idle_power_w, log.is_idle_power_known = idle_power_w(log, start_s), True
    return Cut(log, start_s, end_s).readings()


def spread(values: Sequence[float]) -> Spread[float] | None:
    """Mean, minimum, maximum and number of samples; None without one."""
    return weighted_spread([(1.0, value) for value in values])


def weighted_spread(items: Sequence[tuple[float, float]]) -> Spread[float] | None:
    """`spread` of (weight, value) pairs, with a weighted mean."""
    if not items:
        return None
    values = [value for _, value in items]
    low, high = min(values), max(values)
    mean = math.fsum(weight * value for weight, value in items) / math.fsum(weight for weight, _ in items)
    # Rounding may push the mean of equal values beyond them.
    return Spread(mean=min(max(mean, low), high), minimum=low, maximum=high, samples=len(values))


def shares_of_reasons(masks: Sequence[float]) -> dict[str, float] | None:
    """Reason → share of the masks that contain it; None without masks, which differs from no reason."""
    if not masks:
        return None
    named = [reasons_of(int(mask)) for mask in masks]
    reasons = sorted({reason for names in named for reason in names})
    return {reason: sum(reason in names for names in named) / len(named) for reason in reasons}


def integral(items: Sequence[tuple[float, float]], start_s: float, end_s: float) -> float | None:
    """Value x seconds over a window; each (time, value) stands for the time since the previous one.

    The newest value also covers the rest of the window. None if one value would cover more than `MOST_GAP_S`, as when
    the GPU died in the window.
    """
    edges = [start_s, *(time_s for time_s, _ in items), end_s]
    if not items or max(later - earlier for earlier, later in pairwise(edges)) > MOST_GAP_S:
        return None
    stretches = pairwise([*edges[:-2], end_s])
    return math.fsum((end - begin) * value for (begin, end), (_, value) in zip(stretches, items, strict=True))


def idle_power_w(log: GpuLog, before_s: float) -> float | None:
    """Median power, in watts, of samples before a time during which the GPU was idle.

    None if the GPU was never idle, or if utilization or power cannot be read.
    """
    power, _ = log.samples("power_w", -math.inf, before_s)
    idle = []
    for time_s, value in power:
        busy, _ = log.samples("utilization", time_s - SETTLED_S, min(time_s + SAMPLE_S, before_s))
        if busy and all(share == 0 for _, share in busy):
            idle.append(value)
    return statistics.median(idle) if idle else None


def _is_ascending(totals: Sequence[float]) -> bool:
    """Whether a counter never decreased; one that was reset in the window is unusable."""
    return all(later >= earlier for earlier, later in pairwise(totals))
