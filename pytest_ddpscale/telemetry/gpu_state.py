"""The state of all GPUs of a machine before a run, from the driver: no CUDA context, no change, no sampling.

A reading that the driver does not give is None, with the reason beside it, because an old driver, a missing feature
and a broken GPU must not look like a zero. A lost GPU is reported as lost, and the others are still read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from pytest_ddpscale.run.survey_record import GpuProcess, RemappedRows, SurveyedGpu
from pytest_ddpscale.telemetry.nvml_calls import is_lost, reasons_of, words

# An NVML function and its arguments after the handle, by name, as an older nvidia-ml-py lacks some.
Question = tuple[str, ...]
_PROC = Path("/proc")
# Inode of the initial PID namespace (PROC_PID_INIT_INO, linux/proc_ns.h); only there are NVML's pids ours.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
# Fields of SurveyedGpu that hold NVML's value unchanged.
_NUMBERS: dict[str, Question] = {
    "ecc_corrected": ("nvmlDeviceGetTotalEccErrors", "NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_VOLATILE_ECC"),
    "ecc_uncorrected": ("nvmlDeviceGetTotalEccErrors", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC"),
    "temperature_c": ("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "pcie_generation_max": ("nvmlDeviceGetMaxPcieLinkGeneration",),
    "pcie_generation_gpu_max": ("nvmlDeviceGetGpuMaxPcieLinkGeneration",),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
    "pcie_width_max": ("nvmlDeviceGetMaxPcieLinkWidth",),
}
# Fields that are on or off.
_MODES = {
    "mig_enabled": "nvmlDeviceGetMigMode",
    "ecc_enabled": "nvmlDeviceGetEccMode",
    "retired_pages_pending": "nvmlDeviceGetRetiredPagesPendingStatus",
}
_POWER_LIMITS = {
    "power_limit_w": "nvmlDeviceGetEnforcedPowerLimit",
    "power_limit_default_w": "nvmlDeviceGetPowerManagementDefaultLimit",
}


@dataclass(frozen=True)
class DriverState:
    """The driver and its GPUs.

    Attributes:
        is_loaded: whether an NVIDIA driver is loaded.
        problem: NVML's error if the loaded driver does not work; empty otherwise.
        versions: ``driver`` and ``cuda_driver``, the newest CUDA that it supports; None if unknown.
        gpus: in NVML's order, which is PCI bus order. `SurveyedGpu.is_visible` is False for a GPU that a cgroup
            withholds from this process.
    """

    is_loaded: bool
    problem: str = ""
    versions: Mapping[str, str | None] = field(default_factory=lambda: {"driver": None, "cuda_driver": None})
    gpus: tuple[SurveyedGpu, ...] = ()


def read_gpus(about_to: Callable[[int], None] = lambda index: None) -> DriverState:
    """Read all GPUs through NVML, regardless of CUDA_VISIBLE_DEVICES.

    NVML errors become part of the result. A driver that hangs also hangs the caller.

    Args:
        about_to: called with the index of each GPU before it is read, to tell which GPU hangs the driver.
    """
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return DriverState(is_loaded=False)
    except pynvml.NVMLError as error:
        return DriverState(is_loaded=True, problem=str(error))
    try:
        return _driver(about_to)
    finally:
        with contextlib.suppress(pynvml.NVMLError):  # the driver may have died meanwhile
            pynvml.nvmlShutdown()


def _driver(about_to: Callable[[int], None]) -> DriverState:
    system = _Questions()
    older = ("nvmlSystemGetCudaDriverVersion",)
    cuda = system.ask("cuda_driver", "nvmlSystemGetCudaDriverVersion_v2", older=older)
    versions = {
        "driver": system.ask("driver", "nvmlSystemGetDriverVersion"),
        "cuda_driver": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",  # 12080 is 12.8
    }
    count = system.ask("count", "nvmlDeviceGetCount")
    if count is None:
        return DriverState(is_loaded=True, problem=system.unreadable["count"], versions=versions)
    gpus = []
    for index in range(count):
        about_to(index)
        gpus.append(_gpu(index))
    return DriverState(is_loaded=True, versions=versions, gpus=tuple(gpus))


def _gpu(index: int) -> SurveyedGpu:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError_NoPermission as error:  # NVML counts it, but CUDA does not see it
        return SurveyedGpu(index, "", "", "", "", is_visible=False, unreadable={"handle": str(error)})
    except pynvml.NVMLError as error:
        return SurveyedGpu(index, "", "", "", "", problem=str(error), is_lost=is_lost(error))
    gpu = _Questions(handle)
    uuid = gpu.ask("uuid", "nvmlDeviceGetUUID")
    name = gpu.ask("name", "nvmlDeviceGetName")
    pci = gpu.ask("pci", "nvmlDeviceGetPciInfo")
    unnamed = next(iter(gpu.unreadable.values()), "")  # a GPU that cannot be identified cannot be used
    memory = gpu.ask("memory", "nvmlDeviceGetMemoryInfo")
    links, links_up = _nvlinks(gpu)
    readings: dict[str, Any] = {reading: gpu.ask(reading, *question) for reading, question in _NUMBERS.items()}
    readings |= {reading: _truth(gpu.ask(reading, question)) for reading, question in _MODES.items()}
    readings |= {reading: _watts(gpu.ask(reading, question)) for reading, question in _POWER_LIMITS.items()}
    return SurveyedGpu(
        index=index,
        uuid=uuid or "",
        name=name or "",
        pci_bus_id=_text(pci.busId) if pci else "",
        pci_device_id=f"{pci.pciDeviceId >> 16:04x}" if pci else "",  # the low half is the vendor, 10de
        compute_capability=_capability(gpu.ask("compute_capability", "nvmlDeviceGetCudaComputeCapability")),
        memory_bytes=int(memory.total) if memory else None,
        remapped_rows=_remapped_rows(gpu.ask("remapped_rows", "nvmlDeviceGetRemappedRows")),
        throttle_reasons=_throttle_reasons(gpu),
        nvlinks=links,
        nvlinks_active=links_up,
        processes=_processes(gpu.ask("processes", "nvmlDeviceGetComputeRunningProcesses")),
        **readings,
        problem=gpu.lost or unnamed,
        is_lost=bool(gpu.lost),
        unreadable=gpu.unreadable,
    )


class _Questions:
    """Calls NVML for one GPU or for the system, and records what it did not answer.

    Args:
        subject: the handle passed to each call; none for the system.

    Attributes:
        unreadable: reading → reason.
        lost: why the GPU does not answer at all; empty while it does.
    """

    def __init__(self, *subject: Any) -> None:
        self._subject = subject
        self.unreadable: dict[str, str] = {}
        self.lost = ""

    def ask(self, reading: str, *question: str | Callable[..., Any], older: Question = ()) -> Any:
        """The answer; None if NVML gives none.

        Args:
            older: what to call instead if the driver or nvidia-ml-py lacks that function.
        """
        if self.lost:  # each further call may take long to fail
            self.unreadable[reading] = self.lost
            return None
        try:
            function, *arguments = (getattr(pynvml, one) if isinstance(one, str) else one for one in question)
            return function(*self._subject, *arguments)
        except (pynvml.NVMLError_FunctionNotFound, AttributeError) as error:
            if older:
                return self.ask(reading, *older)
            self.unreadable[reading] = words(error) if isinstance(error, AttributeError) else str(error)
        except pynvml.NVMLError as error:
            self.unreadable[reading] = str(error)
            if is_lost(error):
                self.lost = str(error)
        return None


def _truth(found: Any) -> bool | None:
    present = found[0] if isinstance(found, list) else found  # modes come as [current, after the next reset]
    return None if present is None else bool(present)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _capability(found: tuple[int, int] | None) -> str | None:
    return None if found is None else f"{found[0]}.{found[1]}"


def _remapped_rows(found: tuple[int, int, int, int] | None) -> RemappedRows | None:
    if found is None:
        return None
    correctable, uncorrectable, is_pending, has_failed = found
    return RemappedRows(correctable, uncorrectable, pending=bool(is_pending), failed=bool(has_failed))


def _throttle_reasons(gpu: _Questions) -> tuple[str, ...] | None:
    older = ("nvmlDeviceGetCurrentClocksThrottleReasons",)  # the name before driver 535
    bits = gpu.ask("throttle_reasons", "nvmlDeviceGetCurrentClocksEventReasons", older=older)
    return None if bits is None else reasons_of(bits)


def _nvlinks(gpu: _Questions) -> tuple[int | None, int | None]:
    """The number of NVLinks, and the number of those that are up.

    NVML answers "Not Supported" or "Invalid Argument" for links that the GPU does not have; a link that is down counts
    as present.
    """
    states = gpu.ask("nvlinks", _states_of_links)
    return (None, None) if states is None else (len(states), sum(map(bool, states)))


def _states_of_links(handle: Any) -> list[int]:
    states = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        with contextlib.suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            states.append(pynvml.nvmlDeviceGetNvLinkState(handle, link))
    return states


def _processes(found: list[Any] | None) -> tuple[GpuProcess, ...] | None:
    if found is None:
        return None
    return tuple(GpuProcess(one.pid, command_of(one.pid), one.usedGpuMemory) for one in found)


def command_of(pid: int, proc: Path = _PROC) -> str:
    """The command of a process of this host; empty if not visible, as in a container, whose pids differ."""
    try:
        if (proc / "self/ns/pid").readlink() != Path(_FIRST_PID_NAMESPACE):
            return ""
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("ascii", errors="replace")
