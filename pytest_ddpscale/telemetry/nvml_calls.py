"""Asking a driver that may not know the answer, may have lost the GPU, or may be dying; and what it means."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pynvml

Answer = TypeVar("Answer")

# What will be answered the same next time: not worth asking again.
_FOR_GOOD = frozenset(
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,  # an older driver's word on a kind of samples it does not know
        pynvml.NVML_ERROR_NO_PERMISSION,
    ]
)
# nvml.h, nvmlClocksEventReasons*; the names are nvidia-smi's (`clocks_event_reasons.hw_slowdown` …).
# Idling, clocks that somebody set, and the power cap at full load are no faults: whoever judges decides.
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
# Until the GPU, or its node, is reset. Any other error may be the driver's.
_LOST = frozenset([pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])


class NvmlCalls:
    """Asks one GPU for its readings, and never raises.

    Attributes:
        reasons: reading → what the driver said last, for those that it does not answer.
        lost: the same, of those at which it said that the GPU is lost.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self._given_up: set[str] = set()

    def ask(self, reading: str, call: Callable[[], Answer]) -> Answer | None:
        """What `call` returns; None if it raises, or did so before for good."""
        if reading in self._given_up:
            return None
        try:
            answer = call()
        except Exception as error:  # whatever a driver that is dying makes of it: the others are asked on
            self.refuse(reading, error)
            return None
        self.reasons.pop(reading, None)
        self.lost.pop(reading, None)
        return answer

    def refuse(self, reading: str, error: Exception) -> None:
        """Note that a reading failed, and how."""
        self.reasons[reading] = words(error)
        self.lost.pop(reading, None)
        if is_lost(error):
            self.lost[reading] = str(error)
        if isinstance(error, pynvml.NVMLError) and error.value in _FOR_GOOD:
            self._given_up.add(reading)


def is_lost(error: Exception) -> bool:
    """Whether it says that the GPU is lost."""
    return isinstance(error, pynvml.NVMLError) and error.value in _LOST


def words(error: Exception) -> str:
    """``NVMLError_GpuIsLost: GPU is lost``; of a name that the installed pynvml lacks, what to install."""
    if isinstance(error, AttributeError) and error.obj is pynvml:
        return f"the installed nvidia-ml-py has no {error.name}; install nvidia-ml-py>=12.560"
    return f"{type(error).__name__}: {error}"


def reasons_of(bits: int) -> tuple[str, ...]:
    """Names of the reasons in NVML's bit mask, lowest bit first; ``unknown_0x…`` for bits that have none here."""
    named = tuple(name for bit, name in REASONS.items() if bits & bit)
    left = bits & ~sum(REASONS)
    return (*named, f"unknown_{left:#x}") if left else named


def pci_address(uuid: str) -> str:
    """``0000:17:00.0``, as the kernel writes it. By UUID: NVML's indices are not CUDA's.

    Raises:
        LookupError: NVML does not say.
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
