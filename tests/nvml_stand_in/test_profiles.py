"""What nvidia-ml-py reads of whole machines: each kind of GPU, at rest, at work, and with each fault, on it alone."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.approved import assert_approved
from tests.nvml_stand_in.gpus import HW_THERMAL_SLOWDOWN, Ecc, Mig, NvLink, Pcie, Process, RemappedRows, RetiredPages
from tests.nvml_stand_in.machine import (
    A100,
    ANY_FUNCTION,
    COMPUTE_MODE_PROHIBITED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    PROFILES,
    V100,
    Changing,
    PlayedMachine,
    at_work,
    node_of,
)

READ_EVERYTHING = "from tests.nvml_stand_in.everything import main; main()"
FAULTS: dict[str, dict[str, Any]] = {
    "ECC errors, rows remapped": {
        "ecc": Ecc(True, True, 5, 1, 9, 2), "remapped_rows": RemappedRows(3, 1, True, False),
    },
    "hot": {"clock_event_reasons": HW_THERMAL_SLOWDOWN, "sm_clock_mhz": 510, "temperature_c": 93},
    "a narrow link": {"pcie": Pcie(3, 8, 4, 16, 4)},
    "an NVLink down": {"nvlinks": [NvLink(), NvLink(active=0)]},
    "MIG and others' processes": {"mig": Mig(True, True), "processes": [Process(4711, 2048), Process(4712)]},
    "ECC off, a forbidden reading": {"ecc": Ecc(False, True), "failures": {"nvmlDeviceGetPowerUsage": NO_PERMISSION}},
    "functions that its driver lacks": {
        "failures": {
            "nvmlDeviceGetSamples": NOT_SUPPORTED, "nvmlDeviceGetCurrentClocksEventReasons": FUNCTION_NOT_FOUND,
        },
    },
    "no computing allowed": {"compute_mode": COMPUTE_MODE_PROHIBITED},
    "off the bus": {"failures": {ANY_FUNCTION: GPU_IS_LOST}},
}  # fmt: skip


def read(machine: PlayedMachine) -> Any:
    return json.loads(machine.run_python(READ_EVERYTHING))


def readings(gpu: Any, beside: Any = None) -> Iterator[str]:
    """A line for each reading that differs from those of the other GPU; energy depends on the time."""
    if isinstance(gpu, str):
        yield f"    {gpu}"
        return
    for key, value in gpu.items():
        if key != "energy_mj" and (beside is None or value != beside[key]):
            yield f"    {key}: {json.dumps(value)}"


def test_what_is_read_of_healthy_and_of_faulty_gpus_is_what_was_approved(machine: PlayedMachine) -> None:
    resting = read(machine.play(PROFILES, driver_version="580.95.05", cuda_driver_version=13000))
    healthy = resting.pop("gpus")
    lines = [f"{key}: {json.dumps(value)}" for key, value in resting.items()]
    working = read(machine.play([*map(at_work, PROFILES)]))["gpus"]
    for profile, rest, work in zip(PROFILES, healthy, working, strict=True):
        lines += [f"# {profile.name}", *readings(rest), "at work", *readings(work, rest)]
    faulty = [dataclasses.replace(A100, **fault) for fault in FAULTS.values()]
    worn = dataclasses.replace(V100, retired_pages=RetiredPages(pending=True))
    before, *others, after = read(machine.play([A100, *faulty, worn, A100]))["gpus"]
    lines += ["# A100 with a fault"]
    for name, gpu in zip((*FAULTS, "a V100 whose pages retire"), others, strict=True):
        is_v100 = name not in FAULTS
        lines += [name, *readings(gpu, healthy[0] if is_v100 else before)]
    lines += ["the last GPU, without one", *readings(after, before)]
    assert_approved("nvml-readings.txt", "\n".join([*lines, ""]))


def test_eight_gpus_are_alike_but_for_their_uuids(machine: PlayedMachine) -> None:
    first, *others = read(machine.play(node_of(A100)))["gpus"]
    assert {line.partition(":")[0].strip() for gpu in others for line in readings(gpu, first)} == {"uuid"}
    assert len({gpu["uuid"] for gpu in (first, *others)}) == 8


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
