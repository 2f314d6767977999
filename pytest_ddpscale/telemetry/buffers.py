"""Readings of which the driver keeps samples by itself: none is lost between two polls.

The driver samples a GPU every 20 ms to 1 s, whoever asks, and keeps the last 10 to 20 s. A sample describes the
period that ends at its time stamp, which is the system clock's.
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
# No driver samples less often than once a second: one that gave nothing for so long has no buffer for us.
SILENCE_S = 5.0


@dataclass(frozen=True)
class Kept:
    """A reading of which the driver keeps samples.

    Attributes:
        reading: name of the record's field.
        sampling_type: name of the nvmlSamplingType_t, which an older nvidia-ml-py may lack.
        now: asks for its value of the moment, in the same unit, where there is no buffer.
        scale: of the driver's unit, to that of the record's field.
        least: smallest value that is possible, in the driver's unit; smaller ones are left out.
        most: largest that is.
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
    # mW; no board is without power, none takes 100 kW
    Kept("power_w", "NVML_TOTAL_POWER_SAMPLES",
         lambda handle: float(pynvml.nvmlDeviceGetPowerUsage(handle)), 0.001, 1, 1e8),
    # MHz
    Kept("sm_clock_mhz", "NVML_PROCESSOR_CLK_SAMPLES",
         lambda handle: float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)), 1, 1, 1e5),
)  # fmt: skip


class Buffer:
    """Takes one GPU's samples of one reading over into its log."""

    def __init__(self, kept: Kept, handle: Any, asker: NvmlCalls, log: GpuLog) -> None:
        self._kept, self._handle, self._asker = kept, handle, asker
        self._samples, self._polled = log.buffered[kept.reading], log.polled[kept.reading]
        self._last_seen_us = 0
        # Apart from the reading itself, which the value of the moment may still give.
        self._buffer_name = f"{kept.reading} samples"

    def update(self, now_unix_s: float) -> None:
        """Take over what is new; if the driver keeps no samples, a value of now (seconds since the epoch)."""
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
