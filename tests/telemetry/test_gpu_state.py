"""What is read of GPUs before they work, from a real library that plays them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_ddpscale.run.survey_record import GpuProcess, RemappedRows, SurveyedGpu
from pytest_ddpscale.telemetry.nvml import command_of
from tests.nvml_stand_in.gpus import HW_SLOWDOWN, HW_THERMAL_SLOWDOWN, Ecc, Mig, NvLink, Process, RetiredPages
from tests.nvml_stand_in.gpus import RemappedRows as PlayedRows
from tests.nvml_stand_in.machine import (
    A100,
    ANY_FUNCTION,
    COMPUTE_MODE_PROHIBITED,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RTX_PRO_6000_SERVER,
    UNKNOWN_ERROR,
    V100,
    PlayedGpu,
    PlayedMachine,
    uuid_of,
)

READ = """
import json, msgspec
from pytest_ddpscale.telemetry.nvml import read_gpus
print(json.dumps(msgspec.to_builtins(read_gpus("n1"))))
"""
OURS, NOBODY, MIB = os.getpid(), 2**22 + 1, 2**20


def failing(gpu: PlayedGpu = A100, **failures: int) -> PlayedGpu:
    return replace(gpu, failures={f"nvmlDeviceGet{name}": code for name, code in failures.items()})


# GPUs, and what is read of each; what a driver does not say is its reason, and never zero.
GPUS: list[tuple[PlayedGpu, dict[str, Any]]] = [
    (V100, {"compute_capability": "7.0", "nvlinks_active": 6, "nvlinks": 6, "retired_pages_pending": False,
            "unreadable": dict.fromkeys(("mig_enabled", "remapped_rows"), "Not Supported")}),
    (RTX_PRO_6000_SERVER, {"compute_capability": "12.0", "nvlinks_active": 0, "nvlinks": 0,
                           "pcie_generation": 1, "pcie_generation_max": 5}),  # an idle one saves power
    (replace(A100, compute_mode=COMPUTE_MODE_PROHIBITED), {"compute_mode": "Prohibited"}),
    (replace(A100, compute_mode=7), {"compute_mode": "mode 7"}),
    (replace(A100, compute_mode=None), {"compute_mode": "Not Supported"}),
    (replace(A100, ecc=Ecc(corrected_volatile=9, uncorrected_volatile=2, uncorrected_aggregate=3)),
     {"ecc_corrected": 9, "ecc_uncorrected": 2}),
    (replace(A100, remapped_rows=PlayedRows(4, 1, pending=True, failed=True)),
     {"remapped_rows": RemappedRows(1, pending=True, failed=True)}),
    (replace(A100, clock_event_reasons=HW_SLOWDOWN | HW_THERMAL_SLOWDOWN),
     {"throttle_reasons": ("hw_slowdown", "hw_thermal_slowdown")}),
    (replace(A100, nvlinks=[NvLink(), NvLink(active=0), *[NvLink()] * 10], mig=Mig(enabled=True)),
     {"nvlinks_active": 11, "nvlinks": 12, "mig_enabled": True}),
    (replace(A100, pcie=replace(A100.pcie, width=8, max_generation=3), ecc=Ecc(enabled=False)),
     {"pcie_width": 8, "pcie_width_max": 16, "pcie_generation_max": 3, "pcie_generation_gpu_max": 4,
      "ecc_enabled": False}),
    (replace(A100, processes=[Process(OURS, 512), Process(NOBODY, 30)]),
     {"processes": (GpuProcess(OURS, command_of(OURS), 512 * MIB), GpuProcess(NOBODY, "", 30 * MIB))}),
    (replace(V100, retired_pages=RetiredPages(pending=True)), {"retired_pages_pending": True}),
    (failing(V100, CurrentClocksEventReasons=FUNCTION_NOT_FOUND), {"throttle_reasons": ("gpu_idle",)}),  # an old driver
    (failing(TotalEccErrors=NOT_SUPPORTED, EccMode=NOT_SUPPORTED),
     {"ecc_enabled": "Not Supported", "ecc_uncorrected": "Not Supported"}),
    (replace(A100, temperature_c=255, power_limit_w=0, memory_used_mib=90000),
     {"temperature_c": "the driver says 255, which is impossible", "power_limit_default_w": 400,
      "power_limit_w": "the driver says 0, which is impossible", "memory_bytes": 81251 * MIB,
      "memory_used_bytes": "the driver says 9.43718e+10, which is impossible"}),
    (failing(NvLinkState=UNKNOWN_ERROR), {"nvlinks": "Unknown Error", "nvlinks_active": None}),
    (failing(NvLinkState=FUNCTION_NOT_FOUND), {"nvlinks": "Function Not Found"}),
]  # fmt: skip
# And what is wrong with a GPU as a whole.
BROKEN: list[tuple[PlayedGpu, dict[str, Any]]] = [
    (replace(A100, failures={ANY_FUNCTION: GPU_IS_LOST}), {"problem": "GPU is lost", "is_lost": True, "uuid": ""}),
    (failing(MemoryInfo=GPU_IS_LOST), {"problem": "GPU is lost", "is_lost": True, "name": A100.name,
                                       "memory_bytes": "GPU is lost", "processes": "GPU is lost"}),
    (failing(UUID=UNKNOWN_ERROR),
     {"problem": "nvmlDeviceGetUUID fails (Unknown Error)", "is_lost": False, "uuid": "", "name": A100.name}),
    (failing(HandleByIndex_v2=NO_PERMISSION),
     {"problem": "", "is_visible": False, "unreadable": {"handle": "Insufficient Permissions"}}),
]  # fmt: skip


def read(machine: PlayedMachine, **environ: str) -> tuple[dict[str, Any], list[SurveyedGpu]]:
    """The driver's state, and the GPUs in it."""
    state = json.loads(machine.run_python(READ, **environ))
    return state, msgspec.convert(state.pop("gpus", []), list[SurveyedGpu])


def test_a_healthy_gpu_is_read_completely(machine: PlayedMachine) -> None:
    state, (gpu,) = read(machine.play([A100], cuda_driver_version=12090))
    versions = {"driver": "570.86.15", "cuda_driver": "12.9"}
    assert state | {"unix_s": 0} == {
        "kind": "survey",
        "host": "n1",
        "unix_s": 0,
        "has_driver": True,
        "versions": versions,
    }
    assert gpu == SurveyedGpu(
        index=0, uuid=uuid_of(0), name="NVIDIA A100-SXM4-80GB", pci_bus_id="00000000:10:00.0", pci_device_id="20b2",
        compute_capability="8.0", compute_mode="Default", memory_bytes=81251 * MIB, memory_used_bytes=4 * MIB,
        mig_enabled=False, ecc_enabled=True, ecc_corrected=0, ecc_uncorrected=0, retired_pages_pending=None,
        remapped_rows=RemappedRows(0, pending=False, failed=False), throttle_reasons=("gpu_idle",),
        power_limit_w=400.0, power_limit_default_w=400.0, temperature_c=32,
        pcie_generation=4, pcie_generation_max=4, pcie_generation_gpu_max=4, pcie_width=16, pcie_width_max=16,
        nvlinks_active=12, nvlinks=12, processes=(), unreadable={"retired_pages_pending": "Not Supported"},
    )  # fmt: skip


def test_each_fault_is_told_of_its_gpu_alone(machine: PlayedMachine) -> None:
    rows = GPUS + BROKEN
    _, gpus = read(machine.play([gpu for gpu, _ in rows]))
    for index, (gpu, (_, expected)) in enumerate(zip(gpus, rows, strict=True)):
        found = {name: getattr(gpu, name) for name in expected}
        reasons = {name: gpu.unreadable[name] for name in found if found[name] is None and name in gpu.unreadable}
        assert (gpu.index, found | reasons) == (index, expected)
    assert {gpu.problem for gpu in gpus[: len(GPUS)]} == {""}


@pytest.mark.parametrize(
    ("failures", "environ", "is_loaded", "problem"),
    [
        ({"nvmlInit": DRIVER_NOT_LOADED}, {}, False, ""),
        ({"nvmlInit": LIB_RM_VERSION_MISMATCH}, {}, True, "RM has detected an NVML/RM version mismatch."),
        ({"nvmlDeviceGetCount_v2": UNKNOWN_ERROR}, {}, True, "Unknown Error"),
        ({}, {"LD_LIBRARY_PATH": ""}, False, ""),
    ],
)
def test_a_driver_that_does_not_answer_at_all(
    machine: PlayedMachine, failures: dict[str, int], environ: dict[str, str], is_loaded: bool, problem: str
) -> None:
    state, gpus = read(machine.play([A100], failures), **environ)
    assert (state.get("has_driver", False), state.get("driver_problem", ""), gpus) == (is_loaded, problem, [])


def test_a_process_is_named_only_where_its_pid_means_the_same(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/comm").write_text("python\n")
    for namespace, names in [("pid:[4026531836]", ["python", ""]), ("pid:[4026532411]", ["", ""])]:  # a container's
        (tmp_path / "self/ns/pid").unlink(missing_ok=True)
        (tmp_path / "self/ns/pid").symlink_to(namespace)
        assert [command_of(pid, tmp_path) for pid in (7, 8)] == names
