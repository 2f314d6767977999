"""Reads everything that nvidia-ml-py can ask the stand-in, and prints it as JSON.

What fails is given as the name of the error, without its prefix: ``NotSupported``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pynvml as n

GPM_INTERVAL_S = 0.02


def asked(question: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except n.NVMLError as error:
        return type(error).__name__.removeprefix("NVMLError_")


def sample_of(gpu: Any, kind: int) -> Any:
    """Value of the newest sample."""
    answer = asked(n.nvmlDeviceGetSamples, gpu, kind, 0)
    return answer if isinstance(answer, str) else answer[1][-1].sampleValue.uiVal


def gpm_of(gpu: Any) -> Any:
    """SM utilization for a moment, and an unknown metric."""
    support = asked(n.nvmlGpmQueryDeviceSupport, gpu)
    if isinstance(support, str) or not support.isSupportedDevice:
        return support if isinstance(support, str) else "no"
    get = n.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, 2
    get.sample1, get.sample2 = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
    for i, metric in enumerate((2, 199)):
        get.metrics[i].metricId = metric
    n.nvmlGpmSampleGet(gpu, get.sample1)
    time.sleep(GPM_INTERVAL_S)
    n.nvmlGpmSampleGet(gpu, get.sample2)
    n.nvmlGpmMetricsGet(get)
    n.nvmlGpmSampleFree(get.sample1)
    n.nvmlGpmSampleFree(get.sample2)
    return [round(m.value, 1) if m.nvmlReturn == 0 else f"error {m.nvmlReturn}" for m in get.metrics[:2]]


def links_of(gpu: Any) -> list[Any]:
    """State of each link, up to and including the answer for the first that there is not."""
    states: list[Any] = []
    while not states or not isinstance(states[-1], str):
        states.append(asked(n.nvmlDeviceGetNvLinkState, gpu, len(states)))
    return states


def processes_of(gpu: Any) -> Any:
    answer = asked(n.nvmlDeviceGetComputeRunningProcesses, gpu)
    return answer if isinstance(answer, str) else [[process.pid, process.usedGpuMemory] for process in answer]


def described(gpu: Any) -> dict[str, Any]:
    memory = asked(n.nvmlDeviceGetMemoryInfo, gpu, n.nvmlMemory_v2)
    use = asked(n.nvmlDeviceGetUtilizationRates, gpu)
    return {
        "name": asked(n.nvmlDeviceGetName, gpu),
        "uuid": asked(n.nvmlDeviceGetUUID, gpu),
        "capability": asked(n.nvmlDeviceGetCudaComputeCapability, gpu),
        "memory": memory if isinstance(memory, str) else [memory.total, memory.reserved, memory.used, memory.free],
        "utilization": use if isinstance(use, str) else [use.gpu, use.memory],
        "samples": [sample_of(gpu, kind) for kind in (0, 1, 5, 3)],
        "power_mw": asked(n.nvmlDeviceGetPowerUsage, gpu),
        "power_limits_mw": [
            asked(n.nvmlDeviceGetEnforcedPowerLimit, gpu), asked(n.nvmlDeviceGetPowerManagementDefaultLimit, gpu),
        ],
        "energy_mj": asked(n.nvmlDeviceGetTotalEnergyConsumption, gpu),
        "clocks": [asked(n.nvmlDeviceGetClockInfo, gpu, clock) for clock in (0, 1, 2)],
        "max_clocks": [asked(n.nvmlDeviceGetMaxClockInfo, gpu, clock) for clock in (0, 1, 2)],
        "temperature": asked(n.nvmlDeviceGetTemperature, gpu, 0),
        "reasons": [
            asked(n.nvmlDeviceGetCurrentClocksEventReasons, gpu),
            asked(n.nvmlDeviceGetCurrentClocksThrottleReasons, gpu),
        ],
        "ecc": asked(n.nvmlDeviceGetEccMode, gpu),
        "ecc_errors": [asked(n.nvmlDeviceGetTotalEccErrors, gpu, e, c) for e in (0, 1) for c in (0, 1)],
        "retired_pages_pending": asked(n.nvmlDeviceGetRetiredPagesPendingStatus, gpu),
        "remapped_rows": asked(n.nvmlDeviceGetRemappedRows, gpu),
        "mig": asked(n.nvmlDeviceGetMigMode, gpu),
        "compute_mode": asked(n.nvmlDeviceGetComputeMode, gpu),
        "processes": processes_of(gpu),
        "pcie": [
            asked(n.nvmlDeviceGetCurrPcieLinkGeneration, gpu), asked(n.nvmlDeviceGetCurrPcieLinkWidth, gpu),
            asked(n.nvmlDeviceGetMaxPcieLinkGeneration, gpu), asked(n.nvmlDeviceGetMaxPcieLinkWidth, gpu),
            asked(n.nvmlDeviceGetGpuMaxPcieLinkGeneration, gpu),
        ],
        "nvlinks": links_of(gpu),
        "gpm": gpm_of(gpu),
    }  # fmt: skip


def main() -> None:
    n.nvmlInit()
    gpus = [asked(n.nvmlDeviceGetHandleByIndex, i) for i in range(n.nvmlDeviceGetCount())]
    print(json.dumps({
        "driver": n.nvmlSystemGetDriverVersion(),
        "nvml": n.nvmlSystemGetNVMLVersion(),
        "cuda": [n.nvmlSystemGetCudaDriverVersion(), n.nvmlSystemGetCudaDriverVersion_v2()],
        "gpus": [gpu if isinstance(gpu, str) else described(gpu) for gpu in gpus],
    }))  # fmt: skip
