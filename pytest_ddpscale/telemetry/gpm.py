"""GPU performance monitoring (GPM): SM activity, on Hopper and later."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

# The driver updates the counters every 100 ms; samples closer together are meaningless.
LEAST_APART_S = 0.1


class Gpm:
    """Mean of one GPU's SM activity, 0 … 1, between successive reads.

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
