"""What NVML says of GPUs, with answers that tolerate missing features, lost GPUs and failing drivers."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
from msgspec.structs import replace

from pytest_ddpscale.run.survey_record import COMPUTE_MODES, GpuProcess, RemappedRows, Survey, SurveyedGpu
from pytest_ddpscale.util.digits import percent

# Inode of the initial PID namespace (PROC_PID_INIT_INO, linux/proc_ns.h); only there are NVML's pids ours.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"

# Reading → names of an NVML function and its arguments after the handle.
_QUESTIONS: dict[str, tuple[str, ...]] = {
    "driver": ("nvmlSystemGetDriverVersion",),
    "cuda_driver": ("nvmlSystemGetCudaDriverVersion_v2",),
    "count": ("nvmlDeviceGetCount",),
    "uuid": ("nvmlDeviceGetUUID",),
    "name": ("nvmlDeviceGetName",),
    "pci_bus_id": ("nvmlDeviceGetPciInfo",),
    "pci_device_id": ("nvmlDeviceGetPciInfo",),
    "compute_capability": ("nvmlDeviceGetCudaComputeCapability",),
    "compute_mode": ("nvmlDeviceGetComputeMode",),
    "memory_bytes": ("nvmlDeviceGetMemoryInfo",),
    "memory_used_bytes": ("nvmlDeviceGetMemoryInfo", "nvmlMemory_v2"),  # without what the driver reserves
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
# The same, if the driver lacks that function: the name before driver 535.
_OLDER = {"nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons"}
# Reading → what it is of NVML's answer, if not the answer itself.
_READ: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("power_w", "power_limit_w", "power_limit_default_w", "energy_j"), lambda milli: milli / 1000),
    "utilization": lambda rates: rates.gpu / 100,  # beside that of its memory
    "cuda_driver": lambda number: f"{number // 1000}.{number % 1000 // 10}",  # 12080 is 12.8
    "pci_bus_id": lambda pci: _text(pci.busId),
    "pci_device_id": lambda pci: f"{pci.pciDeviceId >> 16:04x}",  # the low half is the vendor, 10de
    "compute_capability": lambda version: "{}.{}".format(*version),
    "compute_mode": lambda mode: COMPUTE_MODES[mode] if mode < len(COMPUTE_MODES) else f"mode {mode}",
    "memory_bytes": lambda memory: int(memory.total),
    "memory_used_bytes": lambda memory: int(possible(memory.used, 0, memory.total)),
    "processes": lambda found: tuple(
        GpuProcess(process.pid, command_of(process.pid), process.usedGpuMemory) for process in found
    ),
    **dict.fromkeys(("mig_enabled", "ecc_enabled"), lambda modes: bool(modes[0])),  # the second is after a reset
    "retired_pages_pending": bool,
    "remapped_rows": lambda rows: RemappedRows(rows[1], *map(bool, rows[2:])),
}
# Least and largest possible value, beyond which a reading is none: a board always draws power, and none draws 100 kW.
POSSIBLE: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("power_w", "power_limit_w", "power_limit_default_w"), (0.001, 1e5)),
    **dict.fromkeys(("sm_clock_mhz", "sm_clock_max_mhz"), (1, 1e5)),
    "utilization": (0, 1),
    "temperature_c": (-50, 150),
}
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
# Not all are faults, for example idling or the power cap at full load; `judge.check_rules.THROTTLE_FAULTS` are.
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
LOST = frozenset([pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])


def possible(value: float, least: float, most: float) -> float:
    """The value. Raises ValueError if it is not within these."""
    if least <= value <= most:
        return value
    raise ValueError(f"the driver says {percent(value) if most == 1 else f'{value:g}'}, which is impossible")


class NvmlCalls:
    """Asks NVML about one GPU, or about the system, and never raises.

    It asks no more of a GPU that is lost, since each further call may take long to fail.

    Attributes:
        subject: the handle passed to each call; none for the system.
        reasons: reading → the latest error, for readings that fail.
        lost: the driver's error if the GPU is lost; else empty.
    """

    def __init__(self, *subject: Any) -> None:
        self.subject = subject
        self.reasons: dict[str, str] = {}
        self.lost = ""
        self._given_up: set[str] = set()

    def ask(self, reading: str, call: Callable[..., Any] | None = None) -> Any:
        """The reading, or the answer of `call`; None if that raises or has failed permanently before."""
        if self.lost:
            self.reasons[reading] = self.lost
        if self.lost or reading in self._given_up:
            return None
        try:
            answer = (call or partial(_answer, reading))(*self.subject)
        except pynvml.NVMLError as error:
            self.reasons[reading] = str(error)
            self.lost = str(error) if error.value in LOST else ""
            if error.value in _FOR_GOOD:
                self._given_up.add(reading)
            return None
        except Exception as error:  # a failing driver may raise anything; the other readings continue
            self.reasons[reading] = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            return None
        self.reasons.pop(reading, None)
        return answer


def _answer(reading: str, *subject: Any) -> Any:
    function, *names = _QUESTIONS[reading]
    arguments = [*subject, *(getattr(pynvml, name) for name in names)]
    try:
        answer = getattr(pynvml, function)(*arguments)
    except pynvml.NVMLError_FunctionNotFound:
        if function not in _OLDER:
            raise
        answer = getattr(pynvml, _OLDER[function])(*arguments)
    value = _READ[reading](answer) if reading in _READ else answer
    return possible(value, *POSSIBLE[reading]) if reading in POSSIBLE else value


def command_of(pid: int, proc: Path = Path("/proc")) -> str:
    """The command of a process of this host; empty if not visible, as in a container, whose pids differ."""
    try:
        if (proc / "self/ns/pid").readlink() != Path(_FIRST_PID_NAMESPACE):
            return ""
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("ascii", errors="replace")


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
        raise LookupError(f"{type(error).__name__}: {error}") from error
    return DriverPlace(int(index), _text(pci.busId), f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0")


_LIBRARY_FOLDERS = (
    *os.environ.get("LD_LIBRARY_PATH", "").split(":"), f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64",
)  # fmt: skip
_NAMES = ("uuid", "name", "pci_bus_id", "pci_device_id")
_READINGS = (
    "compute_capability", "compute_mode", "memory_bytes", "memory_used_bytes", "mig_enabled", "ecc_enabled",
    "ecc_corrected", "ecc_uncorrected", "retired_pages_pending", "remapped_rows", "power_limit_w",
    "power_limit_default_w", "temperature_c", "pcie_generation", "pcie_generation_max", "pcie_generation_gpu_max",
    "pcie_width", "pcie_width_max", "processes",
)  # fmt: skip


def read_gpus(host: str, about_to: Callable[[int], None] = lambda index: None) -> Survey:
    """Read the driver and all GPUs through NVML, regardless of CUDA_VISIBLE_DEVICES.

    NVML errors become part of the result. A driver that hangs also hangs the caller.

    Args:
        host: this node's name.
        about_to: called with the index of each GPU before it is read, to tell which GPU hangs the driver.

    Returns:
        The GPUs in PCI bus order. `SurveyedGpu.is_visible` is False for one that a cgroup withholds from this process.
    """
    survey = Survey(host, time.time(), versions=dict.fromkeys(("driver", "cuda_driver")))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        # The library is missing, or what is there is empty, damaged or of another architecture.
        libraries = [str(path) for folder in _LIBRARY_FOLDERS if (path := Path(folder, "libnvidia-ml.so.1")).exists()]
        problem = f"{libraries[0]} cannot be loaded: damaged, or of another architecture" if libraries else ""
        return replace(survey, has_driver=bool(libraries), driver_problem=problem)
    except pynvml.NVMLError_DriverNotLoaded:
        return survey
    except pynvml.NVMLError as error:
        return replace(survey, has_driver=True, driver_problem=str(error))
    try:
        system = NvmlCalls()
        versions = {name: system.ask(name) for name in survey.versions}
        count, gpus = system.ask("count"), []
        for index in range(count or 0):
            about_to(index)
            gpus.append(_gpu(index))
        problem = system.reasons.get("count", "")
        return replace(survey, has_driver=True, driver_problem=problem, versions=versions, gpus=tuple(gpus))
    finally:
        with contextlib.suppress(pynvml.NVMLError):  # the driver may have died meanwhile
            pynvml.nvmlShutdown()


def _gpu(index: int) -> SurveyedGpu:
    try:
        gpu = NvmlCalls(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError_NoPermission as error:  # NVML counts it, but CUDA does not see it
        return SurveyedGpu(index, "", "", "", "", is_visible=False, unreadable={"handle": str(error)})
    except pynvml.NVMLError as error:
        is_lost = error.value in LOST
        problem = str(error) if is_lost else f"nvmlDeviceGetHandleByIndex fails ({error})"
        return SurveyedGpu(index, "", "", "", "", problem=problem, is_lost=is_lost)
    names: dict[str, Any] = {reading: gpu.ask(reading) or "" for reading in _NAMES}
    # A GPU that cannot be identified cannot be used.
    unnamed = next((f"{_QUESTIONS[reading][0]} fails ({why})" for reading, why in gpu.reasons.items()), "")
    readings: dict[str, Any] = {reading: gpu.ask(reading) for reading in _READINGS}
    links, reasons = gpu.ask("nvlinks", _states_of_links), gpu.ask("throttle_reasons")
    return SurveyedGpu(
        index,
        **names,
        **readings,
        throttle_reasons=None if reasons is None else reasons_of(reasons),
        nvlinks=None if links is None else len(links),
        nvlinks_active=None if links is None else sum(map(bool, links)),
        problem=gpu.lost or unnamed,
        is_lost=bool(gpu.lost),
        unreadable=gpu.reasons,
    )


def _states_of_links(handle: Any) -> list[int]:
    """State of each NVLink; a link that is down counts as present.

    NVML answers "Not Supported" or "Invalid Argument" for links that the GPU does not have.
    """
    states = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        with contextlib.suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            states.append(pynvml.nvmlDeviceGetNvLinkState(handle, link))
    return states
