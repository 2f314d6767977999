"""One GPU that is read periodically."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pynvml

from pytest_ddpscale.telemetry.buffers import KEPT, Buffer
from pytest_ddpscale.telemetry.gpm import Gpm
from pytest_ddpscale.telemetry.log import GpuLog
from pytest_ddpscale.telemetry.nvml_calls import NvmlCalls, words

Reading = Callable[[Any], float]
_UUID_PREFIXES = ("GPU-", "MIG-")


def _ecc_errors(kind: str) -> Reading:
    def ask(handle: Any) -> float:
        return float(pynvml.nvmlDeviceGetTotalEccErrors(handle, getattr(pynvml, kind), pynvml.NVML_VOLATILE_ECC))

    return ask


def _throttle_mask(handle: Any) -> int:
    """Current throttle reasons, as a bit mask. Drivers before 535 know the call only by its old name."""
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (pynvml.NVMLError_FunctionNotFound, AttributeError):
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


# State at the time of a poll.
_STATES: dict[str, Reading] = {
    "throttle_reasons": lambda handle: float(_throttle_mask(handle)),
    "temperature_c": lambda handle: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
    "pcie_generation": lambda handle: float(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
    "pcie_width": lambda handle: float(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
}
# Counters of consumption, whose growth is needed between any two times …
_CONSUMPTION: dict[str, Reading] = {
    "energy_j": lambda handle: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,  # mJ
}
# … and of errors, whose growth is counted from poll to poll.
_ERRORS: dict[str, Reading] = {
    "ecc_corrected": _ecc_errors("NVML_MEMORY_ERROR_TYPE_CORRECTED"),
    "ecc_uncorrected": _ecc_errors("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
}
# Readings that rarely change.
_LIMITS: dict[str, Reading] = {
    "power_limit_w": lambda handle: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,  # mW
    "sm_clock_max_mhz": lambda handle: float(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)),
}


class SampledGpu:
    """Reads one GPU into a log. Never raises; failures are recorded in the log.

    The GPU is found by UUID, because NVML ignores CUDA_VISIBLE_DEVICES and its indices are not CUDA's.

    Args:
        uuid: ``GPU-…`` as in NVML, or bare as in torch's ``get_device_properties(i).uuid``.
    """

    def __init__(self, uuid: str) -> None:
        self._asker = NvmlCalls()
        self.log = GpuLog(uuid, reasons=self._asker.reasons, lost=self._asker.lost)
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(_UUID_PREFIXES) else f"GPU-{uuid}")
        except Exception as error:  # no such GPU, or one that fell off the bus
            self._asker.refuse("device", error)
            self.log.problem = words(error)
            return
        self._buffers = [Buffer(kept, self._handle, self._asker, self.log) for kept in KEPT]
        self._gpm: Gpm | None = None

    def mark(self) -> None:
        """Read energy and GPM at the edge of a window."""
        if not self.log.problem:
            self._read_totals(is_edge=True)

    def _read_totals(self, *, is_edge: bool) -> None:
        self._read_gpm(time.time(), is_edge)
        for reading, ask in (_CONSUMPTION if is_edge else {**_CONSUMPTION, **_ERRORS}).items():
            now_s, total = time.time(), self._ask(reading, ask)
            if total is not None:
                self.log.counters[reading].append(now_s, total)

    def poll(self) -> None:
        """Read everything, including the driver's buffers."""
        if self.log.problem:
            return
        self._read_totals(is_edge=False)
        now_s = time.time()
        for buffer in self._buffers:
            buffer.update(now_s)
        for reading, ask in _STATES.items():
            value = self._ask(reading, ask)
            if value is not None:
                self.log.polled[reading].append(now_s, value)
        for reading, ask in _LIMITS.items():
            value = self._ask(reading, ask)
            if value is not None:
                self.log.limits[reading] = value
        self.log.polls.append(now_s, 1.0)

    def _ask(self, reading: str, ask: Reading) -> float | None:
        return self._asker.ask(reading, lambda: ask(self._handle))

    def _read_gpm(self, now_s: float, is_edge: bool) -> None:
        if self._gpm is None:
            self._gpm = self._asker.ask("sm_activity", lambda: Gpm(self._handle))
        gpm = self._gpm
        found = None if gpm is None else self._asker.ask("sm_activity", lambda: gpm.read(now_s, is_edge))
        if found is not None and found[1] is not None:
            self.log.sm_activity.append(found[0], now_s, found[1])
