from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.sku.detection import visible_ordinals
from tests.nvml_stand_in.machine import (
    A100,
    ANY_FUNCTION,
    B200,
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RTX_PRO_6000_SERVER,
    V100,
    PlayedGpu,
    PlayedMachine,
    uuid_of,
)
from tests.rows import rows

# Prints what visible_gpus gave or refused, and how many users NVML is left with.
DETECT = """
import dataclasses, json, pynvml
from pytest_ddpscale.errors import SkuError
from pytest_ddpscale.sku.detection import visible_gpus
try:
    said = {"gpus": [dataclasses.asdict(gpu) for gpu in visible_gpus()]}
except SkuError as error:
    said = {"error": str(error)}
print(json.dumps({**said, "users": pynvml._nvmlLib_refcount}))
"""


def detect(machine: PlayedMachine, visible: str | None = None) -> dict[str, Any]:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    said: dict[str, Any] = json.loads(machine.run_python(DETECT, **environ))
    assert said.pop("users") == 0, "NVML was not shut down"
    return said


def indices(machine: PlayedMachine, visible: str | None = None) -> list[int]:
    return [gpu["index"] for gpu in detect(machine, visible)["gpus"]]


@pytest.mark.parametrize(
    ("played", "memory_gib"),
    [(V100, 15.78), (A100, 79.35), (B200, 179.06), (RTX_PRO_6000_SERVER, 95.0)],
    ids=lambda value: value.name if isinstance(value, PlayedGpu) else "",
)
def test_eight_gpus_are_described(machine: PlayedMachine, played: PlayedGpu, memory_gib: float) -> None:
    gpus = detect(machine.play([played] * 8))["gpus"]
    assert [gpu["index"] for gpu in gpus] == list(range(8))
    assert [gpu["uuid"] for gpu in gpus] == [uuid_of(i) for i in range(8)]
    assert {gpu["name"] for gpu in gpus} == {played.name}
    assert {gpu["pci_device_id"] for gpu in gpus} == {played.pci_device_id}
    assert {round(gpu["memory_gib"], 2) for gpu in gpus} == {memory_gib}


def test_each_gpu_of_a_mixed_machine_keeps_its_own_name(machine: PlayedMachine) -> None:
    names = [gpu["name"] for gpu in detect(machine.play([V100, A100, V100]))["gpus"]]
    assert names == [V100.name, A100.name, V100.name]


def test_a_pci_device_id_keeps_its_leading_zero_and_is_lower_case(machine: PlayedMachine) -> None:
    machine.play([dataclasses.replace(A100, pci_device_id="0FE1")])
    assert detect(machine)["gpus"][0]["pci_device_id"] == "0fe1"


def test_no_gpus_without_the_library(machine: PlayedMachine) -> None:
    # An empty file of the library's name is found first and cannot be loaded, whatever driver this machine has.
    (machine.file.parent / "libnvidia-ml.so.1").touch()
    said = machine.run_python(DETECT, LD_LIBRARY_PATH=str(machine.file.parent))
    assert json.loads(said) == {"gpus": [], "users": 0}


def test_no_gpus_without_a_driver(machine: PlayedMachine) -> None:
    assert detect(machine.play([A100], {"nvmlInit": DRIVER_NOT_LOADED})) == {"gpus": []}


def test_a_driver_that_was_updated_under_its_library_is_an_error_and_not_a_cpu_machine(machine: PlayedMachine) -> None:
    error = detect(machine.play([A100], {"nvmlInit": LIB_RM_VERSION_MISMATCH}))["error"]
    assert "version mismatch" in error
    assert "nvidia-smi" in error


def test_a_lost_gpu_is_named(machine: PlayedMachine) -> None:
    lost = dataclasses.replace(A100, failures={ANY_FUNCTION: GPU_IS_LOST})
    error = detect(machine.play([A100, A100, A100, lost]))["error"]
    assert error.startswith("GPU 3 of ")
    assert "lost" in error
    assert "dmesg" in error


def test_a_gpu_that_is_lost_between_two_questions_is_named(machine: PlayedMachine) -> None:
    dying = dataclasses.replace(A100, failures={"nvmlDeviceGetMemoryInfo": GPU_IS_LOST})
    assert detect(machine.play([A100, dying]))["error"].startswith("GPU 1 of ")


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_a_gpu_that_does_not_tell_its_memory_is_named(machine: PlayedMachine, code: int) -> None:
    mute = dataclasses.replace(A100, failures={"nvmlDeviceGetMemoryInfo": code})
    error = detect(machine.play([mute]))["error"]
    assert error.startswith("GPU 0 of ")
    assert "nvmlDeviceGetMemoryInfo" in error


def test_a_count_that_fails_is_an_error(machine: PlayedMachine) -> None:
    assert "nvidia-smi" in detect(machine.play([A100], {"nvmlDeviceGetCount_v2": 999}))["error"]


def test_gpus_withheld_by_a_cgroup_are_skipped_and_the_rest_renumbered_for_cuda(machine: PlayedMachine) -> None:
    withheld = dataclasses.replace(A100, failures={"nvmlDeviceGetHandleByIndex_v2": NO_PERMISSION})
    machine.play([withheld, A100, withheld, A100])
    assert indices(machine) == [1, 3]
    assert indices(machine, "1") == [3]


def test_cuda_visible_devices_chooses_and_orders(machine: PlayedMachine) -> None:
    assert indices(machine.play([V100] * 4), "3,1") == [3, 1]


def test_cuda_visible_devices_takes_uuid_prefixes(machine: PlayedMachine) -> None:
    assert indices(machine.play([V100] * 4), "GPU-00000002,GPU-00000000-1111") == [2, 0]


@pytest.mark.parametrize("hidden", ["", " ", "-1", "NoDevFiles"])
def test_cuda_visible_devices_hides_all(machine: PlayedMachine, hidden: str) -> None:
    assert indices(machine.play([V100]), hidden) == []


@pytest.mark.parametrize("visible", ["MIG-1234", "0, MIG-GPU-00000000/1/0"])
def test_a_mig_slice_is_refused(machine: PlayedMachine, visible: str) -> None:
    error = detect(machine.play([A100]), visible)["error"]
    assert error.startswith("CUDA_VISIBLE_DEVICES: MIG-")
    assert "whole GPU" in error


UUIDS = ["GPU-aa11", "GPU-aa22", "GPU-bb33"]


@rows(
    ("visible", "ordinals"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("0,3,1", [0]),  # ends at the first device there is not
        ("0,-1,1", [0]),
        ("0,,1", [0]),
        ("0,x,1", [0]),
        ("1st,2nd", [1, 2]),  # strtoul
        ("+1", [1]),
        ("1,1", []),  # a repeated device leaves none
        ("0,1,01", []),
        ("GPU-bb", [2]),
        ("GPU-bb33,GPU-aa1", [2, 0]),
        ("GPU-aa", []),  # ambiguous
        ("GPU-bb,GPU-aa,GPU-aa11", [2]),
        ("GPU-bb,GPU-b", []),
        ("GPU-bb,0", [2]),  # no mixture
        ("0,GPU-bb", [0]),
        ("GPU-cc", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(visible: str | None, ordinals: list[int]) -> None:
    assert visible_ordinals(visible, UUIDS) == ordinals


@given(st.text(alphabet="0123,-+ xGPU-ab", max_size=20))
def test_whatever_cuda_visible_devices_says_each_device_shows_at_most_once(visible: str) -> None:
    ordinals = visible_ordinals(visible, UUIDS)
    assert len(set(ordinals)) == len(ordinals)
    assert set(ordinals) <= {0, 1, 2}
