"""GPU performance monitoring (GPM): what the SMs really did. Hopper and later."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import pynvml

from pytest_ddpscale.telemetry.nvml_calls import NvmlCalls

# Closer together, two samples say nothing: the counters behind them are read every 100 ms.
LEAST_APART_S = 0.1


@dataclass(frozen=True)
class GpmMetric:
    """What is asked for.

    Attributes:
        reading: name of the record's field.
        name: NVML_GPM_METRIC_…, which an older nvidia-ml-py may lack.
        scale: of NVML's unit, to that of the field.
        most: largest value that is possible, in the field's unit.
    """

    reading: str
    name: str
    scale: float
    most: float


METRICS = (GpmMetric("sm_activity", "NVML_GPM_METRIC_SM_UTIL", 0.01, 1.0),)


class Gpm:
    """Means of one GPU between the successive times it is asked.

    Args:
        handle: NVML's, of the GPU.
        asker: of the GPU.

    Raises:
        pynvml.NVMLError: the GPU has none, or its driver does not know of it.
    """

    def __init__(self, handle: Any, asker: NvmlCalls) -> None:
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._handle = handle
        self._numbers: dict[GpmMetric, int] = {}
        for metric in METRICS:
            try:
                self._numbers[metric] = getattr(pynvml, metric.name)
            except AttributeError as error:
                asker.refuse(metric.reading, error)
        self._before, self._after = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self._before_s: float | None = None
        self._request = pynvml.c_nvmlGpmMetricsGet_t()  # some 20 KB: made once

    def read(self, now_unix_s: float, is_edge: bool = False) -> tuple[float, dict[str, float]] | None:
        """Means since the last call.

        Args:
            now_unix_s: seconds since the epoch.
            is_edge: whether what begins now is to be told from what was before, even if that was too short.

        Returns:
            When the last call was, and reading → mean; None the first time, or too soon after the last.

        Raises:
            pynvml.NVMLError: the GPU does not answer. The next call begins anew.
        """
        before_s, self._before_s = self._before_s, None
        is_too_soon = before_s is not None and now_unix_s - before_s < LEAST_APART_S
        if before_s is not None and is_too_soon and not is_edge:
            self._before_s = min(before_s, now_unix_s)  # the clock may have been set back
            return None
        pynvml.nvmlGpmSampleGet(self._handle, self._after)
        self._before, self._after = self._after, self._before
        self._before_s = now_unix_s
        return None if before_s is None or is_too_soon else (before_s, self._means())

    def _means(self) -> dict[str, float]:
        """Between the samples, of which the newer one now lies in `_before`, where the next call needs it."""
        request = self._request
        ctypes.memset(ctypes.byref(request), 0, ctypes.sizeof(request))
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._numbers)
        request.sample1, request.sample2 = self._after, self._before
        for place, number in enumerate(self._numbers.values()):
            request.metrics[place].metricId = number
        pynvml.nvmlGpmMetricsGet(request)
        found = {}
        for place, metric in enumerate(self._numbers):
            value = request.metrics[place].value * metric.scale
            if request.metrics[place].nvmlReturn == pynvml.NVML_SUCCESS and 0 <= value <= metric.most:  # NaN is not
                found[metric.reading] = value
        return found
