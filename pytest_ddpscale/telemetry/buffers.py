"""Readings that the driver samples and buffers itself, so that none is lost between two polls.

The driver samples a GPU every 20 ms to 1 s, independently of clients, and keeps the last 10 to 20 s. A sample describes
the period that ends at its time stamp, in system time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from pytest_ddpscale.telemetry.log import GpuLog
from pytest_ddpscale.telemetry.nvml_calls import NvmlCalls

# nvmlValueType_t → the member of nvmlValue_t that holds the value.
VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# Every driver samples at least once a second; one without samples for this long has no buffer.
SILENCE_S = 5.0


@dataclass(frozen=True)
class Kept:
    """A reading that the driver buffers.

    Attributes:
        reading: name of the record's field.
        sampling_type: name of the nvmlSamplingType_t, which an older nvidia-ml-py may lack.
        now: reads the current value, in the driver's unit; used if there is no buffer.
        scale: factor from the driver's unit to that of the record's field.
        least: smallest plausible value, in the driver's unit; smaller ones are dropped.
        most: largest plausible value; larger ones are dropped.
    """

    reading: str
    sampling_type: str
    now: Callable[[Any], float]
    scale: float
    least: float
    most: float


KEPT = (
    Kept("utilization", "NVML_GPU_UTILIZATION_SAMPLES",
         lambda handle: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu), 0.01, 0, 100),
    # mW; a board always draws power, and none draws 100 kW
    Kept("power_w", "NVML_TOTAL_POWER_SAMPLES",
         lambda handle: float(pynvml.nvmlDeviceGetPowerUsage(handle)), 0.001, 1, 1e8),
    # MHz
    Kept("sm_clock_mhz", "NVML_PROCESSOR_CLK_SAMPLES",
         lambda handle: float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)), 1, 1, 1e5),
)  # fmt: skip


class Buffer:
    """Copies one GPU's samples of one reading into its log."""

    def __init__(self, kept: Kept, handle: Any, asker: NvmlCalls, log: GpuLog) -> None:
        self._kept, self._handle, self._asker = kept, handle, asker
        self._samples, self._polled = log.buffered[kept.reading], log.polled[kept.reading]
        self._last_seen_us = 0
        # A name of its own: if the buffer fails, the current value may still be readable.
        self._buffer_name = f"{kept.reading} samples"

    def update(self, now_unix_s: float) -> None:
        """Copy new samples; without a buffer, log the current value at `now_unix_s` (seconds since the epoch)."""
        self._asker.ask(self._buffer_name, self._take_over)
        newest_s = self._samples.newest_s
        if newest_s is None or newest_s < now_unix_s - SILENCE_S:
            value = self._asker.ask(self._kept.reading, lambda: self._kept.now(self._handle))
            if value is not None and self._is_possible(value):
                self._polled.append(now_unix_s, value * self._kept.scale)

    def _take_over(self) -> None:
        sampling_type = getattr(pynvml, self._kept.sampling_type)
        try:
            kind, samples = pynvml.nvmlDeviceGetSamples(self._handle, sampling_type, self._last_seen_us)
        except pynvml.NVMLError_NotFound:
            return  # nothing newer
        member = VALUE_MEMBERS[kind]
        for sample in samples:
            time_us, value = sample.timeStamp, float(getattr(sample.sampleValue, member))
            self._last_seen_us = max(self._last_seen_us, time_us)
            if self._is_possible(value):
                self._samples.append(time_us / 1e6, value * self._kept.scale)

    def _is_possible(self, value: float) -> bool:
        return self._kept.least <= value <= self._kept.most
