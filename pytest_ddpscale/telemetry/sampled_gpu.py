"""One GPU that is read periodically."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pynvml

from pytest_ddpscale.telemetry.nvml import BUFFERS, UNITS, VALUE_MEMBERS, NvmlCalls
from pytest_ddpscale.telemetry.windows import ERRORS, LIMITS, STATES, GpuLog

_UUID_PREFIXES = ("GPU-", "MIG-")
# Every driver samples at least once a second; one without samples for this long has no buffer.
SILENCE_S = 5.0
# The driver updates the counters of GPM every 100 ms; samples closer together are meaningless.
LEAST_APART_S = 0.1


class SampledGpu:
    """Reads one GPU into a log. Never raises; failures are recorded in the log.

    The GPU is found by UUID, because NVML ignores CUDA_VISIBLE_DEVICES and its indices are not CUDA's.

    Args:
        uuid: ``GPU-…`` as in NVML, or bare as in torch's ``get_device_properties(i).uuid``.
    """

    def __init__(self, uuid: str) -> None:
        self._calls = calls = NvmlCalls()
        full = uuid if uuid.startswith(_UUID_PREFIXES) else f"GPU-{uuid}"
        calls.subject = (calls.ask("device", lambda: pynvml.nvmlDeviceGetHandleByUUID(full)),)
        # the problem: no such GPU, or one that fell off the bus
        self.log = GpuLog(calls.reasons.get("device", ""), reasons=calls.reasons, lost=calls.lost)
        self._last_seen_us = dict.fromkeys(BUFFERS, 0)
        self._gpm: Gpm | None = None

    def mark(self) -> None:
        """Read energy and GPM at the edge of a window."""
        if not self.log.problem:
            self._read_totals(is_edge=True)

    def poll(self) -> None:
        """Read everything, including the driver's buffers."""
        if self.log.problem:
            return
        now_s = time.time()
        if now_s < (self.log.polls.newest_s or 0.0) - SILENCE_S:
            self.log.forget()
        self._read_totals(is_edge=False)
        for reading in BUFFERS:
            self._read_buffer(reading, now_s)
        for reading in STATES:
            value = self._calls.ask(reading)
            if value is not None:
                self.log.polled[reading].append(now_s, value)
        for reading in LIMITS:
            value = self._calls.ask(reading)
            if value is not None:
                self.log.limits[reading] = float(value)
        self.log.polls.append(now_s, 1.0)

    def _read_totals(self, *, is_edge: bool) -> None:
        self._read_gpm(time.time(), is_edge)
        for reading in ("energy_j",) if is_edge else ("energy_j", *ERRORS):
            now_s, total = time.time(), self._calls.ask(reading)
            if total is not None:
                self.log.counters[reading].append(now_s, total)

    def _read_gpm(self, now_s: float, is_edge: bool) -> None:
        if self._gpm is None:
            self._gpm = self._calls.ask("sm_activity", Gpm)
        gpm = self._gpm
        found = None if gpm is None else self._calls.ask("sm_activity", lambda _: gpm.read(now_s, is_edge))
        if found is not None and found[1] is not None:
            self.log.sm_activity.append(found[0], now_s, found[1])

    def _read_buffer(self, reading: str, now_s: float) -> None:
        """Copy new samples; without a buffer, log the current value."""
        buffer, samples = BUFFERS[reading], self.log.buffered[reading]

        def take_over(handle: Any) -> None:
            last_us = self._last_seen_us[reading]
            try:
                kind, found = pynvml.nvmlDeviceGetSamples(handle, buffer.sampling_type, last_us)
            except pynvml.NVMLError_NotFound:
                return  # nothing newer
            for sample in found:
                value = getattr(sample.sampleValue, VALUE_MEMBERS[kind]) / UNITS.get(reading, 1)
                self._last_seen_us[reading] = max(self._last_seen_us[reading], sample.timeStamp)
                if buffer.least <= value <= buffer.most:
                    samples.append(sample.timeStamp / 1e6, value)

        self._calls.ask(f"{reading} samples", take_over)  # a name of its own: the current value may still be readable
        if samples.newest_s is None or abs(now_s - samples.newest_s) > SILENCE_S:
            value = self._calls.ask(reading)
            if value is not None and buffer.least <= value <= buffer.most:
                self.log.polled[reading].append(now_s, value)


class Gpm:
    """Mean of one GPU's SM activity, 0 … 1, between successive reads: GPU performance monitoring, Hopper and later.

    Raises:
        pynvml.NVMLError: the GPU or its driver does not support GPM.
    """

    def __init__(self, handle: Any) -> None:
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._handle = handle
        self._metric = pynvml.NVML_GPM_METRIC_SM_UTIL
        self._before, self._after = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self._before_s: float | None = None
        self._request = pynvml.c_nvmlGpmMetricsGet_t()  # about 20 KB, so it is reused

    def read(self, now_unix_s: float, is_edge: bool = False) -> tuple[float, float | None] | None:
        """Mean since the last call.

        Args:
            is_edge: whether a window begins now, so that a new interval starts even if the last one was too short.

        Returns:
            Time of the last call, and the mean (None if implausible); None on the first call or too soon after the
            last.

        Raises:
            pynvml.NVMLError: the GPU does not answer. The next call starts over.
        """
        before_s, self._before_s = self._before_s, None
        is_too_soon = before_s is not None and now_unix_s - before_s < LEAST_APART_S
        if before_s is not None and is_too_soon and not is_edge:
            self._before_s = min(before_s, now_unix_s)  # the clock may have been set back
            return None
        pynvml.nvmlGpmSampleGet(self._handle, self._after)
        self._before, self._after = self._after, self._before
        self._before_s = now_unix_s
        return None if before_s is None or is_too_soon else (before_s, self._mean())

    def _mean(self) -> float | None:
        """Mean between the two samples; the newer one is already in `_before`, for the next call."""
        request = self._request
        ctypes.memset(ctypes.byref(request), 0, ctypes.sizeof(request))
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 1
        request.sample1, request.sample2 = self._after, self._before
        request.metrics[0].metricId = self._metric
        pynvml.nvmlGpmMetricsGet(request)
        share = float(request.metrics[0].value / 100)
        is_sound = request.metrics[0].nvmlReturn == pynvml.NVML_SUCCESS and 0 <= share <= 1  # NaN is not
        return share if is_sound else None
