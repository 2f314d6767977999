"""What nvidia-ml-py reads of whole machines: each kind of GPU, at rest, at work, and with each fault, on it alone."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest

from tests.nvml_stand_in.gpus import (
    HW_THERMAL_SLOWDOWN,
    Ecc,
    Mig,
    NvLink,
    Pcie,
    PlayedGpu,
    Process,
    RemappedRows,
    RetiredPages,
)
from tests.nvml_stand_in.machine import (
    A100,
    ANY_FUNCTION,
    B200,
    COMPUTE_MODE_PROHIBITED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    PROFILES,
    RTX_PRO_6000_SERVER,
    V100,
    Changing,
    PlayedMachine,
    at_work,
    node_of,
    uuid_of,
)

READ_EVERYTHING = "from tests.nvml_stand_in.everything import main; main()"
MIB = 2**20
UNSUPPORTED = "NotSupported"


def read(machine: PlayedMachine) -> Any:
    return json.loads(machine.run_python(READ_EVERYTHING))


def own_name(value: object) -> str | None:
    return value.name if isinstance(value, PlayedGpu) else None


@pytest.mark.parametrize(
    ("gpu", "own"),
    [
        (V100, {
            "capability": [7, 0], "max_clocks": [1530, 1530, 877], "power_limits_mw": [300_000, 300_000],
            "pcie": [3, 16, 3, 16, 3], "nvlinks": [1] * 6 + ["InvalidArgument"], "gpm": "no",
            "retired_pages_pending": 0, "remapped_rows": UNSUPPORTED, "mig": UNSUPPORTED,
        }),
        (A100, {
            "capability": [8, 0], "max_clocks": [1410, 1410, 1593], "power_limits_mw": [400_000, 400_000],
            "pcie": [4, 16, 4, 16, 4], "nvlinks": [1] * 12 + ["InvalidArgument"], "gpm": "no",
            "retired_pages_pending": UNSUPPORTED, "remapped_rows": [0, 0, 0, 0], "mig": [0, 0],
        }),
        (B200, {
            "capability": [10, 0], "max_clocks": [1965, 1965, 3996], "power_limits_mw": [1_000_000, 1_000_000],
            "pcie": [5, 16, 5, 16, 5], "nvlinks": [1] * 18 + ["InvalidArgument"], "gpm": [0, "error 3"],
            "retired_pages_pending": UNSUPPORTED, "remapped_rows": [0, 0, 0, 0], "mig": [0, 0],
        }),
        (RTX_PRO_6000_SERVER, {
            "capability": [12, 0], "max_clocks": [2430, 2430, 12481], "power_limits_mw": [600_000, 600_000],
            "pcie": [1, 16, 5, 16, 5], "nvlinks": [UNSUPPORTED], "gpm": [0, "error 3"],
            "retired_pages_pending": UNSUPPORTED, "remapped_rows": [0, 0, 0, 0], "mig": [0, 0],
        }),
    ],
    ids=own_name,
)  # fmt: skip
def test_eight_healthy_gpus_at_rest(machine: PlayedMachine, gpu: PlayedGpu, own: dict[str, Any]) -> None:
    said = read(machine.play(node_of(gpu), driver_version="580.95.05", cuda_driver_version=13000))
    assert (said["driver"], said["nvml"], said["cuda"]) == ("580.95.05", "13.580.95.05", [13000, 13000])
    assert [one["uuid"] for one in said["gpus"]] == [uuid_of(i) for i in range(8)]
    for one in said["gpus"]:
        assert {key: one[key] for key in own} == own
        assert one["name"] == gpu.name
        total, reserved, used, free = one["memory"]
        assert (total, used) == (gpu.memory_mib * MIB, 4 * MIB)
        assert total == reserved + used + free
        assert one["utilization"] == [0, 0]
        assert one["power_mw"] == gpu.power_w * 1000  # type: ignore[operator]
        assert one["clocks"] == [gpu.sm_clock_mhz, gpu.sm_clock_mhz, gpu.memory_clock_mhz]
        assert one["samples"] == [one["power_mw"], 0, gpu.sm_clock_mhz, UNSUPPORTED]
        assert one["temperature"] == gpu.temperature_c
        assert one["reasons"] == [1, 1]  # idle
        assert (one["ecc"], one["ecc_errors"]) == ([1, 1], [0, 0, 0, 0])
        assert one["processes"] == []


def test_gpus_at_work(machine: PlayedMachine) -> None:
    said = read(machine.play([at_work(gpu) for gpu in PROFILES]))
    for gpu, one in zip(PROFILES, said["gpus"], strict=True):
        work = gpu.work
        assert one["utilization"] == [99, 60]
        assert one["power_mw"] == work.power_w * 1000
        assert one["clocks"][1:] == [work.sm_clock_mhz, work.memory_clock_mhz]
        assert one["temperature"] == work.temperature_c
        assert one["reasons"] == [work.clock_event_reasons] * 2
        assert one["pcie"][0] == work.pcie_generation
        assert gpu.gpm is None or one["gpm"] == [pytest.approx(85), "error 3"]


def test_each_fault_is_seen_on_its_gpu_alone(machine: PlayedMachine) -> None:
    replace = dataclasses.replace
    links = [NvLink(), NvLink(active=0)]
    faulty: dict[str, PlayedGpu] = {
        "gpu0": replace(A100, ecc=Ecc(True, True, 5, 1, 9, 2), remapped_rows=RemappedRows(3, 1, True, True)),
        "gpu1": replace(A100, clock_event_reasons=HW_THERMAL_SLOWDOWN, sm_clock_mhz=510, temperature_c=93),
        "gpu2": replace(A100, pcie=Pcie(3, 8, 4, 16, 4)),
        "gpu3": replace(A100, nvlinks=links),
        "gpu4": replace(A100, mig=Mig(True, True), processes=[Process(4711, 2048), Process(4712)]),
        "gpu5": replace(A100, ecc=Ecc(False, True), failures={"nvmlDeviceGetPowerUsage": NO_PERMISSION}),
        "gpu6": replace(A100, failures={
            "nvmlDeviceGetSamples": NOT_SUPPORTED, "nvmlDeviceGetCurrentClocksEventReasons": FUNCTION_NOT_FOUND,
        }),
    }  # fmt: skip
    worn = replace(V100, retired_pages=RetiredPages(pending=True))
    closed = replace(A100, compute_mode=COMPUTE_MODE_PROHIBITED)
    healthy, *gpus = read(machine.play([A100, *node_of(A100, 7, **faulty), worn, closed]))["gpus"]

    def deviations(gpu: dict[str, Any]) -> dict[str, Any]:
        own = ("uuid", "energy_mj")
        return {key: value for key, value in gpu.items() if value != healthy[key] and key not in own}

    assert deviations(gpus[0]) == {"ecc_errors": [5, 9, 1, 2], "remapped_rows": [3, 1, 1, 1]}
    assert deviations(gpus[1]) == {
        "reasons": [0x40, 0x40], "clocks": [510, 510, 1593], "temperature": 93,
        "samples": [62_000, 0, 510, "NotSupported"],
    }  # fmt: skip
    assert deviations(gpus[2]) == {"pcie": [3, 8, 4, 16, 4]}
    assert deviations(gpus[3]) == {"nvlinks": [1, 0, "InvalidArgument"]}
    assert deviations(gpus[4]) == {"mig": [1, 1], "processes": [[4711, 2**31], [4712, 2**29]]}
    assert deviations(gpus[5]) == {"ecc": [0, 1], "ecc_errors": ["NotSupported"] * 4, "power_mw": "NoPermission"}
    assert deviations(gpus[6]) == {"samples": ["NotSupported"] * 4, "reasons": ["FunctionNotFound", 1]}
    assert gpus[7]["retired_pages_pending"] == 1
    assert deviations(gpus[8]) == {"compute_mode": 2}


def test_a_gpu_off_the_bus_is_lost_to_every_function(machine: PlayedMachine) -> None:
    lost = dataclasses.replace(A100, failures={ANY_FUNCTION: GPU_IS_LOST})
    first, second = read(machine.play([A100, lost]))["gpus"]
    assert (first["name"], second) == (A100.name, "GpuIsLost")


def test_a_handle_to_a_gpu_that_the_machine_no_longer_has_is_lost(machine: PlayedMachine) -> None:
    program = """
import os, pynvml as n
from pathlib import Path
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(1)
os.replace(os.environ["FEWER"], os.environ["NVML_STAND_IN"])
try:
    n.nvmlDeviceGetName(gpu)
except n.NVMLError as error:
    print(type(error).__name__, n.nvmlDeviceGetCount())
"""
    fewer = PlayedMachine(machine.nvml_directory, machine.file.with_name("fewer.json")).play([A100])
    assert machine.play([A100, A100]).run_python(program, FEWER=str(fewer.file)) == "NVMLError_GpuIsLost 1\n"


def test_a_failure_of_a_function_that_is_not_played_is_refused(machine: PlayedMachine) -> None:
    with pytest.raises(AssertionError, match="nvmlDeviceGetPowerUse"):
        machine.play([dataclasses.replace(A100, failures={"nvmlDeviceGetPowerUse": NOT_SUPPORTED})])


def test_an_ecc_error_under_load_shows_from_its_time_on(machine: PlayedMachine) -> None:
    now = time.time()
    early, late = (Ecc(uncorrected_volatile=Changing(0, [(at, 1)])) for at in (now - 1, now + 3600))
    gpus = read(machine.play([dataclasses.replace(A100, ecc=ecc) for ecc in (early, late)]))["gpus"]
    assert [gpu["ecc_errors"] for gpu in gpus] == [[0, 0, 1, 0], [0, 0, 0, 0]]
