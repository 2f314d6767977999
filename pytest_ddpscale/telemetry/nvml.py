"""GPU utilization of a stretch of time, from the samples that the driver keeps anyway.

NVML's utilization is the share of time in which any kernel ran on the GPU, over sampling periods of
1/6 to 1 s. It says nothing of how much of the GPU those kernels used, and it counts a kernel that only
waits, as NCCL's do for a slow peer, as busy: a high value proves that the host kept up, not that the
GPU was productive. A low one is a real gap.

NVML ignores CUDA_VISIBLE_DEVICES, so its indices are not CUDA's: a GPU is found by its UUID.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

_UUID_PREFIXES = ("GPU-", "MIG-")
# nvmlValueType_t → the member of nvmlValue_t that holds the value.
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class UtilizationReader:
    """Reads one GPU's utilization afterwards: nothing polls while steps are timed.

    Neither opening nor reading ever raises: a driver that fails costs the value, not the run.

    Args:
        uuid: ``GPU-…`` as NVML writes it, or bare as torch's ``get_device_properties(i).uuid``.

    Attributes:
        why_unreadable: what NVML said last when it gave no value; None while all is well.
    """

    def __init__(self, uuid: str) -> None:
        self.why_unreadable: str | None = None
        self._nvml: Any = None
        self._handle: Any = None
        try:
            self._open(uuid if uuid.startswith(_UUID_PREFIXES) else f"GPU-{uuid}")
        except Exception as error:  # no NVML, no driver, no such GPU: whatever it is, training goes on
            self.why_unreadable = _words(error)

    def read(self, start_unix_s: float, end_unix_s: float) -> tuple[float | None, int]:
        """Mean utilization between two times of the system clock.

        A sample describes the period that ends at its time stamp, so one exactly at the start belongs
        to the window before. The driver keeps only the last 10 to 20 s: of a longer window this is
        its end, as the number of samples shows.

        Args:
            start_unix_s: seconds since the epoch.
            end_unix_s: seconds since the epoch.

        Returns:
            Mean utilization as a fraction, 0 … 1, and the number of samples in it. A driver that
            keeps no samples gives one reading of now. None and 0 if there is nothing to read.
        """
        if self._handle is None:
            return None, 0
        self.why_unreadable = None
        try:
            percentages = self._percentages(start_unix_s, end_unix_s)
        except Exception as error:  # a GPU that is lost, a driver that is reloaded
            self.why_unreadable = _words(error)
            return None, 0
        if not percentages:
            self.why_unreadable = "no sample in the window"
            return None, 0
        return sum(percentages) / len(percentages) / 100, len(percentages)

    def close(self) -> None:
        """Let go of NVML. Reading afterwards gives None."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def __enter__(self) -> UtilizationReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, uuid: str) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError:
            pynvml.nvmlShutdown()
            raise

    def _percentages(self, start_unix_s: float, end_unix_s: float) -> list[int]:
        start_us, end_us = round(start_unix_s * 1e6), round(end_unix_s * 1e6)
        try:
            samples = self._samples_after(start_us)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return [int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)]
        return [percent for time_us, percent in samples if start_us < time_us <= end_us and 0 <= percent <= 100]

    def _samples_after(self, time_us: int) -> list[tuple[int, int]]:
        """The driver's samples newer than `time_us`: (µs since the epoch, per cent)."""
        nvml = self._nvml
        try:
            kind, samples = nvml.nvmlDeviceGetSamples(self._handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, time_us)
        except nvml.NVMLError_NotFound:
            return []  # nothing newer
        member = _VALUE_MEMBERS[kind]
        return [(sample.timeStamp, int(getattr(sample.sampleValue, member))) for sample in samples]


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
