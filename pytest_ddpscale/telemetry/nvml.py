"""What is asked of NVML, and answers that tolerate missing features, lost GPUs and failing drivers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pynvml

# Reading → names of an NVML function and its arguments after the handle.
_QUESTIONS: dict[str, tuple[str, ...]] = {
    "driver": ("nvmlSystemGetDriverVersion",),
    "cuda_driver": ("nvmlSystemGetCudaDriverVersion_v2",),
    "count": ("nvmlDeviceGetCount",),
    "uuid": ("nvmlDeviceGetUUID",),
    "name": ("nvmlDeviceGetName",),
    "pci": ("nvmlDeviceGetPciInfo",),
    "compute_capability": ("nvmlDeviceGetCudaComputeCapability",),
    "compute_mode": ("nvmlDeviceGetComputeMode",),
    "memory": ("nvmlDeviceGetMemoryInfo",),
    "processes": ("nvmlDeviceGetComputeRunningProcesses",),
    "mig_enabled": ("nvmlDeviceGetMigMode",),
    "ecc_enabled": ("nvmlDeviceGetEccMode",),
    "retired_pages_pending": ("nvmlDeviceGetRetiredPagesPendingStatus",),
    "remapped_rows": ("nvmlDeviceGetRemappedRows",),
    "ecc_corrected": ("nvmlDeviceGetTotalEccErrors", "NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_VOLATILE_ECC"),
    "ecc_uncorrected": ("nvmlDeviceGetTotalEccErrors", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC"),
    "temperature_c": ("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    "throttle_reasons": ("nvmlDeviceGetCurrentClocksEventReasons",),
    "utilization": ("nvmlDeviceGetUtilizationRates",),
    "power_w": ("nvmlDeviceGetPowerUsage",),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit",),
    "power_limit_default_w": ("nvmlDeviceGetPowerManagementDefaultLimit",),
    "energy_j": ("nvmlDeviceGetTotalEnergyConsumption",),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "pcie_generation_max": ("nvmlDeviceGetMaxPcieLinkGeneration",),
    "pcie_generation_gpu_max": ("nvmlDeviceGetGpuMaxPcieLinkGeneration",),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
    "pcie_width_max": ("nvmlDeviceGetMaxPcieLinkWidth",),
}
# The same, if the driver lacks that function.
_OLDER = {
    "cuda_driver": ("nvmlSystemGetCudaDriverVersion",),
    "throttle_reasons": ("nvmlDeviceGetCurrentClocksThrottleReasons",),  # the name before driver 535
}
# NVML's units in one of the reading: percent, mW, mJ.
UNITS = {"utilization": 100, "power_w": 1000, "power_limit_w": 1000, "power_limit_default_w": 1000, "energy_j": 1000}
# nvmlValueType_t → the member of nvmlValue_t that holds the value.
VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
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
# Not all are faults, for example idling or the power cap at full load; `judge.devices.THROTTLE_FAULTS` are.
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


class Buffer(NamedTuple):
    """How the driver keeps a reading.

    Attributes:
        sampling_type: nvmlSamplingType_t.
        least: smallest plausible value of the reading; smaller ones are dropped.
        most: largest plausible value; larger ones are dropped.
    """

    sampling_type: int
    least: float
    most: float


# Readings that the driver samples and buffers itself, so that none is lost between two polls: every 20 ms to 1 s,
# independently of clients; it keeps the last 10 to 20 s. A sample describes the period that ends at its time stamp, in
# system time.
BUFFERS = {
    "utilization": Buffer(pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0, 1),
    # a board always draws power, and none draws 100 kW
    "power_w": Buffer(pynvml.NVML_TOTAL_POWER_SAMPLES, 0.001, 1e5),
    "sm_clock_mhz": Buffer(pynvml.NVML_PROCESSOR_CLK_SAMPLES, 1, 1e5),
}


class NvmlCalls:
    """Asks NVML about one GPU, or about the system, and never raises.

    Attributes:
        subject: the handle passed to each call; none for the system.
        reasons: reading → the latest error, for readings that fail.
        lost: the same, for errors that mean a lost GPU.
    """

    def __init__(self, *subject: Any) -> None:
        self.subject = subject
        self.reasons: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self._given_up: set[str] = set()

    def ask(self, reading: str, call: Callable[..., Any] | None = None) -> Any:
        """The answer to the reading's question, or of `call`; None if that raises or has failed permanently before."""
        if reading in self._given_up:
            return None
        try:
            answer = (call or partial(_answer, reading))(*self.subject)
        except Exception as error:  # a failing driver may raise anything; the other readings continue
            self.reasons[reading] = self.words(error)
            self.lost.pop(reading, None)
            if is_lost(error):
                self.lost[reading] = str(error)
            if isinstance(error, pynvml.NVMLError) and error.value in _FOR_GOOD:
                self._given_up.add(reading)
            return None
        self.reasons.pop(reading, None)
        self.lost.pop(reading, None)
        return answer

    def words(self, error: Exception) -> str:
        """The reason that is recorded."""
        return in_words(error)


def _answer(reading: str, *subject: Any) -> Any:
    try:
        answer = _call(_QUESTIONS[reading], subject)
    except pynvml.NVMLError_FunctionNotFound:
        if reading not in _OLDER:
            raise
        answer = _call(_OLDER[reading], subject)
    if reading == "utilization":
        answer = answer.gpu  # beside that of its memory
    return answer / UNITS[reading] if reading in UNITS else answer


def _call(question: tuple[str, ...], subject: tuple[Any, ...]) -> Any:
    function, *arguments = (getattr(pynvml, name) for name in question)
    return function(*subject, *arguments)


def is_lost(error: Exception) -> bool:
    """Whether the error means that the GPU is lost."""
    return isinstance(error, pynvml.NVMLError) and error.value in _LOST


def in_words(error: Exception) -> str:
    """``NVMLError_GpuIsLost: GPU is lost``."""
    return f"{type(error).__name__}: {error}"


def reasons_of(bits: int) -> tuple[str, ...]:
    """Names of the reasons in NVML's bit mask, lowest bit first; ``unknown_0x…`` for unnamed bits."""
    named = tuple(name for bit, name in REASONS.items() if bits & bit)
    left = bits & ~sum(REASONS)
    return (*named, f"unknown_{left:#x}") if left else named


@dataclass(frozen=True)
class DriverPlace:
    """Where NVML has a GPU.

    Attributes:
        index: NVML's, which ``nvidia-smi -i`` takes.
        bus_id: PCI address in NVML's format, ``00000000:17:00.0``.
        address: PCI address in the kernel's format, ``0000:17:00.0``.
    """

    index: int
    bus_id: str
    address: str


def driver_place(uuid: str) -> DriverPlace:
    """Index and PCI address of a GPU, by UUID, since NVML's indices are not CUDA's.

    Raises:
        LookupError: NVML does not give them.
    """
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            pci, index = pynvml.nvmlDeviceGetPciInfo(handle), pynvml.nvmlDeviceGetIndex(handle)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise LookupError(in_words(error)) from error
    bus_id = pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
    return DriverPlace(int(index), bus_id, f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0")
