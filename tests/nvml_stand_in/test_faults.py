"""Every fault that a machine can be given is what nvidia-ml-py sees, on that GPU and on no other."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

import pytest

from tests.nvml_stand_in.gpus import HW_THERMAL_SLOWDOWN, Ecc, Mig, NvLink, Pcie, Process, RemappedRows, RetiredPages
from tests.nvml_stand_in.machine import (
    A100,
    ANY_FUNCTION,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    HANG,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN_ERROR,
    V100,
    Changing,
    Failing,
    PlayedGpu,
    PlayedMachine,
    node_of,
)
from tests.nvml_stand_in.test_profiles import read

# Asks for the power of two GPUs until GPU 0 fails; prints a line after the first answer and one at the end.
WATCH = """
import json, time, pynvml as n
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
print(n.nvmlDeviceGetPowerUsage(gpus[0]), flush=True)
deadline, error, other = time.monotonic() + 20, None, None
while error is None and time.monotonic() < deadline:
    try:
        n.nvmlDeviceGetPowerUsage(gpus[0])
        time.sleep(0.01)
    except n.NVMLError as failure:
        error = type(failure).__name__
try:
    other = n.nvmlDeviceGetPowerUsage(gpus[1])
except n.NVMLError as failure:
    other = type(failure).__name__
print(json.dumps([error, other, time.time()]))
"""
LATER_S = 0.2


@contextlib.contextmanager
def started(machine: PlayedMachine, program: str) -> Iterator[IO[str]]:
    """Run a program on the machine until the block ends, and give what it prints."""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=machine.environment(), stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield running.stdout
        finally:
            running.kill()


def test_each_fault_is_seen_on_its_gpu_alone(machine: PlayedMachine) -> None:
    replace = dataclasses.replace
    links = [NvLink(), NvLink(active=0, replays=3, recoveries=2, crc_flit_errors=7, crc_data_errors=1)]
    faulty: dict[str, PlayedGpu] = {
        "gpu0": replace(A100, ecc=Ecc(True, True, 5, 1, 9, 2), remapped_rows=RemappedRows(3, 1, True, True)),
        "gpu1": replace(A100, clock_event_reasons=HW_THERMAL_SLOWDOWN, sm_clock_mhz=510, temperature_c=93),
        "gpu2": replace(A100, pcie=Pcie(3, 8, 4, 16, 4, replays=1234)),
        "gpu3": replace(A100, nvlinks=links),
        "gpu4": replace(A100, mig=Mig(True, True), processes=[Process(4711, 2048), Process(4712)]),
        "gpu5": replace(A100, ecc=Ecc(False, True), failures={"nvmlDeviceGetPowerUsage": NO_PERMISSION}),
        "gpu6": replace(A100, failures={
            "nvmlDeviceGetSamples": NOT_SUPPORTED, "nvmlDeviceGetCurrentClocksEventReasons": FUNCTION_NOT_FOUND,
        }),
    }  # fmt: skip
    worn = replace(V100, retired_pages=RetiredPages(2, 1, True))
    healthy, *gpus = read(machine.play([A100, *node_of(A100, 7, **faulty), worn]))["gpus"]

    def deviations(gpu: dict[str, Any]) -> dict[str, Any]:
        own = ("uuid", "energy_mj")
        return {key: value for key, value in gpu.items() if value != healthy[key] and key not in own}

    assert deviations(gpus[0]) == {"ecc_errors": [5, 9, 1, 2], "remapped_rows": [3, 1, 1, 1]}
    assert deviations(gpus[1]) == {
        "reasons": [0x40, 0x40], "clocks": [510, 510, 1593], "temperatures": [93, 93],
        "samples": [62_000, 0, 0, 510, 1593, "NotSupported"],
    }  # fmt: skip
    assert deviations(gpus[2]) == {"pcie": [3, 8, 4, 16, 4, 1234]}
    assert deviations(gpus[3]) == {
        "nvlinks": [1, 0, "InvalidArgument"], "nvlink_errors": [7, 1, 3, 2, 3, 2, 7, "error 2"],
    }  # fmt: skip
    assert deviations(gpus[4]) == {"mig": [1, 1], "processes": [[4711, 2**31], [4712, 2**29]]}
    assert deviations(gpus[5]) == {"ecc": [0, 1], "ecc_errors": ["NotSupported"] * 4, "power_mw": "NoPermission"}
    assert deviations(gpus[6]) == {"samples": ["NotSupported"] * 6, "reasons": ["FunctionNotFound", 1]}
    assert gpus[7]["retired_pages"] == [1, [0x100000, 0x100001], [0x100000]]


def test_a_gpu_off_the_bus_is_lost_to_every_function(machine: PlayedMachine) -> None:
    lost = dataclasses.replace(A100, failures={ANY_FUNCTION: GPU_IS_LOST})
    first, second = read(machine.play([A100, lost]))["gpus"]
    assert (first["name"], second) == (A100.name, "GpuIsLost")


def test_a_gpu_falls_off_the_bus_while_it_is_watched(machine: PlayedMachine) -> None:
    with started(machine.play([A100, A100]), WATCH) as printed:
        assert printed.readline() == "62000\n"
        moment = time.time() + LATER_S
        machine.play([dataclasses.replace(A100, failures={ANY_FUNCTION: Failing(GPU_IS_LOST, moment)}), A100])
        error, other, end = json.loads(printed.readline())
    assert (error, other) == ("NVMLError_GpuIsLost", 62_000)
    assert end >= moment


def test_a_driver_dies_while_it_is_watched(machine: PlayedMachine) -> None:
    with started(machine.play([A100, A100]), WATCH) as printed:
        assert printed.readline() == "62000\n"
        moment = time.time() + LATER_S
        machine.play([A100, A100], {ANY_FUNCTION: Failing(UNKNOWN_ERROR, moment)})
        error, other, end = json.loads(printed.readline())
    assert (error, other) == ("NVMLError_Unknown", "NVMLError_Unknown")
    assert end >= moment


def test_a_driver_hangs_while_it_is_watched(machine: PlayedMachine) -> None:
    with started(machine.play([A100, A100]), WATCH) as printed:
        assert printed.readline() == "62000\n"
        machine.play([A100, A100], {ANY_FUNCTION: HANG})
        answered, _, _ = select.select([printed], [], [], 0.5)
    assert answered == []  # a program that failed or went on would have printed its end, or ended


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
