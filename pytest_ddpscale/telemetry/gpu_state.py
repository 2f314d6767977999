"""The state of all GPUs of a machine before a run, from the driver: no CUDA context, no change, no sampling.

A reading that the driver does not give is None, with the reason beside it, because an old driver, a missing feature
and a broken GPU must not look like a zero. A lost GPU is reported as lost, and the others are still read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pynvml

from pytest_ddpscale.run.survey_record import SurveyedGpu
from pytest_ddpscale.telemetry.nvml import LOST, NvmlCalls, reasons_of

_NAMES = ("uuid", "name", "pci_bus_id", "pci_device_id")
_READINGS = (
    "compute_capability", "compute_mode", "memory_bytes", "memory_used_bytes", "mig_enabled", "ecc_enabled",
    "ecc_corrected", "ecc_uncorrected", "retired_pages_pending", "remapped_rows", "power_limit_w",
    "power_limit_default_w", "temperature_c", "pcie_generation", "pcie_generation_max", "pcie_generation_gpu_max",
    "pcie_width", "pcie_width_max", "processes",
)  # fmt: skip


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
    system = NvmlCalls()
    versions = {name: system.ask(name) for name in ("driver", "cuda_driver")}
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
        gpu = NvmlCalls(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError_NoPermission as error:  # NVML counts it, but CUDA does not see it
        return SurveyedGpu(index, "", "", "", "", is_visible=False, unreadable={"handle": str(error)})
    except pynvml.NVMLError as error:
        return SurveyedGpu(index, "", "", "", "", problem=str(error), is_lost=error.value in LOST)
    names: dict[str, Any] = {reading: gpu.ask(reading) or "" for reading in _NAMES}
    unnamed = next(iter(gpu.reasons.values()), "")  # a GPU that cannot be identified cannot be used
    found: dict[str, Any] = {reading: gpu.ask(reading) for reading in _READINGS}
    links, reasons = gpu.ask("nvlinks", _states_of_links), gpu.ask("throttle_reasons")
    return SurveyedGpu(
        index,
        **names,
        **found,
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
