"""NVML calls that tolerate missing features, lost GPUs and failing drivers, and the meaning of their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pynvml

Answer = TypeVar("Answer")

# Permanent errors: not worth asking again.
_FOR_GOOD = frozenset(
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,  # from an older driver for an unknown sampling type
        pynvml.NVML_ERROR_NO_PERMISSION,
    ]
)
# nvml.h, nvmlClocksEventReasons*; the names are nvidia-smi's (`clocks_event_reasons.hw_slowdown` …).
# Not all are faults, for example idling or the power cap at full load; `checks.throttling` decides.
REASONS: dict[int, str] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
# The GPU is lost until it or its node is reset. Other errors may come from the driver.
_LOST = frozenset([pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])


class NvmlCalls:
    """Reads one GPU and never raises.

    Attributes:
        reasons: reading → the driver's latest error, for readings that fail.
        lost: the same, for errors that mean a lost GPU.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self._given_up: set[str] = set()

    def ask(self, reading: str, call: Callable[[], Answer]) -> Answer | None:
        """The result of `call`; None if it raises or has failed permanently before."""
        if reading in self._given_up:
            return None
        try:
            answer = call()
        except Exception as error:  # a failing driver may raise anything; the other readings continue
            self.refuse(reading, error)
            return None
        self.reasons.pop(reading, None)
        self.lost.pop(reading, None)
        return answer

    def refuse(self, reading: str, error: Exception) -> None:
        """Record that a reading failed, and why."""
        self.reasons[reading] = words(error)
        self.lost.pop(reading, None)
        if is_lost(error):
            self.lost[reading] = str(error)
        if isinstance(error, pynvml.NVMLError) and error.value in _FOR_GOOD:
            self._given_up.add(reading)


def is_lost(error: Exception) -> bool:
    """Whether the error means that the GPU is lost."""
    return isinstance(error, pynvml.NVMLError) and error.value in _LOST


def words(error: Exception) -> str:
    """``NVMLError_GpuIsLost: GPU is lost``; for a name missing in the installed pynvml, what to install."""
    if isinstance(error, AttributeError) and error.obj is pynvml:
        return f"the installed nvidia-ml-py has no {error.name}; install nvidia-ml-py>=12.560"
    return f"{type(error).__name__}: {error}"


def reasons_of(bits: int) -> tuple[str, ...]:
    """Names of the reasons in NVML's bit mask, lowest bit first; ``unknown_0x…`` for unnamed bits."""
    named = tuple(name for bit, name in REASONS.items() if bits & bit)
    left = bits & ~sum(REASONS)
    return (*named, f"unknown_{left:#x}") if left else named


def pci_address(uuid: str) -> str:
    """PCI address in the kernel's format, ``0000:17:00.0``; by UUID, since NVML's indices are not CUDA's.

    Raises:
        LookupError: NVML does not give it.
    """
    try:
        pynvml.nvmlInit()
        try:
            pci = pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise LookupError(words(error)) from error
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
