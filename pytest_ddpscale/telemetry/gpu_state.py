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

from pytest_ddpscale.run.survey_record import COMPUTE_MODES, GpuProcess, RemappedRows, SurveyedGpu
from pytest_ddpscale.telemetry.nvml import NvmlCalls, in_words, is_lost, reasons_of

_PROC = Path("/proc")
# Inode of the initial PID namespace (PROC_PID_INIT_INO, linux/proc_ns.h); only there are NVML's pids ours.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
# Fields of SurveyedGpu that hold NVML's value.
_VALUES = (
    "ecc_corrected", "ecc_uncorrected", "temperature_c", "sm_clock_max_mhz", "power_limit_w", "power_limit_default_w",
    "pcie_generation", "pcie_generation_max", "pcie_generation_gpu_max", "pcie_width", "pcie_width_max",
)  # fmt: skip
# Fields that are on or off.
_MODES = ("mig_enabled", "ecc_enabled", "retired_pages_pending")


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
    system = _Survey()
    cuda = system.ask("cuda_driver")
    versions = {
        "driver": system.ask("driver"),
        "cuda_driver": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",  # 12080 is 12.8
    }
    count = system.ask("count")
    if count is None:
        return DriverState(is_loaded=True, problem=system.reasons["count"], versions=versions)
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
    gpu = _Survey(handle)
    uuid, name, pci = map(gpu.ask, ("uuid", "name", "pci"))
    unnamed = next(iter(gpu.reasons.values()), "")  # a GPU that cannot be identified cannot be used
    asked = ("compute_capability", "compute_mode", "memory", "remapped_rows", "throttle_reasons", "processes")
    capability, mode, memory, rows, bits, processes = map(gpu.ask, asked)
    links = gpu.ask("nvlinks", _states_of_links)
    values: dict[str, Any] = {reading: gpu.ask(reading) for reading in _VALUES}
    values |= {reading: _truth(gpu.ask(reading)) for reading in _MODES}
    return SurveyedGpu(
        index=index,
        uuid=uuid or "",
        name=name or "",
        pci_bus_id=_text(pci.busId) if pci else "",
        pci_device_id=f"{pci.pciDeviceId >> 16:04x}" if pci else "",  # the low half is the vendor, 10de
        compute_capability=None if capability is None else "{}.{}".format(*capability),
        compute_mode=_compute_mode(mode),
        memory_bytes=int(memory.total) if memory else None,
        remapped_rows=None if rows is None else _remapped_rows(*rows),
        throttle_reasons=None if bits is None else reasons_of(bits),
        nvlinks=None if links is None else len(links),
        nvlinks_active=None if links is None else sum(map(bool, links)),
        processes=None if processes is None else tuple(map(_process, processes)),
        **values,
        problem=next(iter(gpu.lost.values()), unnamed),
        is_lost=bool(gpu.lost),
        unreadable=gpu.reasons,
    )


class _Survey(NvmlCalls):
    """Asks no more of a GPU that is lost, since each further call may take long to fail."""

    def ask(self, reading: str, call: Callable[..., Any] | None = None) -> Any:
        """The answer; None if NVML gives none."""
        if not self.lost:
            return super().ask(reading, call)
        self.reasons[reading] = next(iter(self.lost.values()))
        return None

    def words(self, error: Exception) -> str:
        """``GPU is lost``."""
        return str(error) if isinstance(error, pynvml.NVMLError) else in_words(error)


def _truth(found: Any) -> bool | None:
    present = found[0] if isinstance(found, list) else found  # modes come as [current, after the next reset]
    return None if present is None else bool(present)


def _compute_mode(number: int | None) -> str | None:
    if number is None:
        return None
    return COMPUTE_MODES[number] if 0 <= number < len(COMPUTE_MODES) else f"mode {number}"


def _remapped_rows(correctable: int, uncorrectable: int, is_pending: int, has_failed: int) -> RemappedRows:
    return RemappedRows(correctable, uncorrectable, pending=bool(is_pending), failed=bool(has_failed))


def _process(found: Any) -> GpuProcess:
    return GpuProcess(found.pid, command_of(found.pid), found.usedGpuMemory)


def _states_of_links(handle: Any) -> list[int]:
    """State of each NVLink; a link that is down counts as present.

    NVML answers "Not Supported" or "Invalid Argument" for links that the GPU does not have.
    """
    states = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        with contextlib.suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            states.append(pynvml.nvmlDeviceGetNvLinkState(handle, link))
    return states


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
