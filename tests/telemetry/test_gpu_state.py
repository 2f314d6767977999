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
    B200,
    COMPUTE_MODE_EXCLUSIVE_PROCESS,
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
    PlayedMachine,
    uuid_of,
)

READ = """
import json, msgspec
from pytest_ddpscale.telemetry.gpu_state import read_gpus
print(json.dumps(msgspec.to_builtins(read_gpus())))
"""
MIB = 2**20
NOT_HERE = "Not Supported"


def read(machine: PlayedMachine, **environ: str) -> tuple[dict[str, Any], list[SurveyedGpu]]:
    """The driver's state, and the GPUs in it."""
    state = json.loads(machine.run_python(READ, **environ))
    return state, msgspec.convert(state.pop("gpus"), list[SurveyedGpu])


def test_who_may_use_a_gpu_is_read_by_nvidia_smis_names(machine: PlayedMachine) -> None:
    modes = (COMPUTE_MODE_PROHIBITED, COMPUTE_MODE_EXCLUSIVE_PROCESS, 7, None)
    machine.play([replace(A100, compute_mode=mode) for mode in modes])
    _, gpus = read(machine)
    assert [gpu.compute_mode for gpu in gpus] == ["Prohibited", "Exclusive_Process", "mode 7", None]
    assert gpus[3].unreadable["compute_mode"]


def test_healthy_gpus_of_four_kinds_are_read_as_they_are(machine: PlayedMachine) -> None:
    machine.play([V100, A100, B200, RTX_PRO_6000_SERVER], cuda_driver_version=12090)
    state, (v100, a100, b200, rtx) = read(machine)
    assert state == {"is_loaded": True, "problem": "", "versions": {"driver": "570.86.15", "cuda_driver": "12.9"}}
    assert a100 == SurveyedGpu(
        index=1, uuid=uuid_of(1), name="NVIDIA A100-SXM4-80GB", pci_bus_id="00000000:11:00.0", pci_device_id="20b2",
        compute_capability="8.0", compute_mode="Default", memory_bytes=81251 * MIB, mig_enabled=False,
        ecc_enabled=True, ecc_corrected=0, ecc_uncorrected=0, retired_pages_pending=None,
        remapped_rows=RemappedRows(0, 0, pending=False, failed=False), throttle_reasons=("gpu_idle",),
        power_limit_w=400.0, power_limit_default_w=400.0, temperature_c=32, sm_clock_max_mhz=1410,
        pcie_generation=4, pcie_generation_max=4, pcie_generation_gpu_max=4, pcie_width=16, pcie_width_max=16,
        nvlinks_active=12, nvlinks=12, processes=(), unreadable={"retired_pages_pending": NOT_HERE},
    )  # fmt: skip
    assert [gpu.compute_capability for gpu in (v100, b200, rtx)] == ["7.0", "10.0", "12.0"]
    assert [(gpu.nvlinks_active, gpu.nvlinks) for gpu in (v100, b200, rtx)] == [(6, 6), (18, 18), (0, 0)]
    assert (rtx.pcie_generation, rtx.pcie_generation_max) == (1, 5), "an idle one saves power"
    assert (v100.remapped_rows, v100.mig_enabled, v100.retired_pages_pending) == (None, None, False)
    assert v100.unreadable == {"remapped_rows": NOT_HERE, "mig_enabled": NOT_HERE}


def test_each_fault_is_told_and_the_other_gpus_are_read_all_the_same(machine: PlayedMachine) -> None:
    ours = os.getpid()
    machine.play([
        replace(A100, ecc=Ecc(corrected_volatile=9, uncorrected_volatile=2, uncorrected_aggregate=3)),
        replace(A100, remapped_rows=PlayedRows(4, 1, pending=True, failed=True)),
        replace(A100, clock_event_reasons=HW_SLOWDOWN | HW_THERMAL_SLOWDOWN),
        replace(A100, nvlinks=[NvLink(), NvLink(active=0), *[NvLink()] * 10], mig=Mig(enabled=True)),
        replace(A100, pcie=replace(A100.pcie, width=8, max_generation=3), ecc=Ecc(enabled=False)),
        replace(A100, processes=[Process(ours, 512), Process(2**22 + 1, 30)]),
        replace(A100, failures={ANY_FUNCTION: GPU_IS_LOST}),
        replace(V100, retired_pages=RetiredPages(pending=True)),
    ])  # fmt: skip
    _, (ecc, rows, hot, link, narrow, busy, lost, v100) = read(machine)
    assert (ecc.ecc_corrected, ecc.ecc_uncorrected) == (9, 2)
    assert rows.remapped_rows == RemappedRows(4, 1, pending=True, failed=True)
    assert hot.throttle_reasons == ("hw_slowdown", "hw_thermal_slowdown")
    assert (link.nvlinks_active, link.nvlinks, link.mig_enabled) == (11, 12, True)
    assert (narrow.pcie_width, narrow.pcie_width_max, narrow.pcie_generation_max) == (8, 16, 3)
    assert (narrow.pcie_generation_gpu_max, narrow.ecc_enabled) == (4, False)
    assert busy.processes is not None
    assert busy.processes[1] == GpuProcess(2**22 + 1, "", 30 * MIB), "no such process can be seen here"
    assert busy.processes[0] == GpuProcess(ours, command_of(ours), 512 * MIB)
    assert (lost.index, lost.problem, lost.uuid, lost.ecc_uncorrected) == (6, "GPU is lost", "", None)
    assert v100.retired_pages_pending is True
    assert [gpu.problem for gpu in (ecc, rows, hot, link, narrow, busy, v100)] == [""] * 7
    assert [gpu.is_lost for gpu in (lost, ecc, rows, hot, link, narrow, busy, v100)] == [True] + [False] * 7


def test_what_fails_is_unknown_and_never_zero(machine: PlayedMachine) -> None:
    machine.play([
        replace(A100, failures={"nvmlDeviceGetMemoryInfo": GPU_IS_LOST}),
        replace(A100, failures={"nvmlDeviceGetTotalEccErrors": NOT_SUPPORTED, "nvmlDeviceGetEccMode": NOT_SUPPORTED}),
        replace(A100, failures={"nvmlDeviceGetNvLinkState": UNKNOWN_ERROR}),
        replace(A100, failures={"nvmlDeviceGetUUID": UNKNOWN_ERROR}),
        replace(A100, failures={"nvmlDeviceGetHandleByIndex_v2": NO_PERMISSION}),
        replace(A100, failures={"nvmlDeviceGetNvLinkState": FUNCTION_NOT_FOUND}),
    ])  # fmt: skip
    _, (lost, no_ecc, dark, nameless, withheld, old) = read(machine)
    assert (lost.problem, lost.is_lost, lost.uuid) == ("GPU is lost", True, uuid_of(0))
    assert (lost.memory_bytes, lost.pcie_width, lost.processes, lost.nvlinks) == (None, None, None, None)
    assert set(lost.unreadable.values()) == {"GPU is lost"}
    assert (no_ecc.ecc_enabled, no_ecc.ecc_uncorrected) == (None, None)
    assert no_ecc.unreadable["ecc_uncorrected"] == NOT_HERE
    assert (dark.nvlinks, dark.nvlinks_active, dark.unreadable["nvlinks"]) == (None, None, "Unknown Error")
    assert (nameless.uuid, nameless.problem, nameless.name) == ("", "Unknown Error", A100.name)
    assert (withheld.is_visible, withheld.problem) == (False, "")
    assert withheld.unreadable == {"handle": "Insufficient Permissions"}
    assert (old.nvlinks, old.unreadable["nvlinks"], old.problem) == (None, "Function Not Found", "")


def test_an_old_driver_is_asked_by_the_names_that_it_knows(machine: PlayedMachine) -> None:
    renamed = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlSystemGetCudaDriverVersion_v2")
    machine.play([V100], dict.fromkeys(renamed, FUNCTION_NOT_FOUND))
    state, [gpu] = read(machine)
    assert gpu.throttle_reasons == ("gpu_idle",)
    assert gpu.memory_bytes == 16160 * MIB
    assert state["versions"]["driver"] == "570.86.15"


@pytest.mark.parametrize(
    ("failures", "is_loaded", "problem"),
    [
        ({"nvmlInit": DRIVER_NOT_LOADED}, False, ""),
        ({"nvmlInit": LIB_RM_VERSION_MISMATCH}, True, "RM has detected an NVML/RM version mismatch."),
        ({"nvmlDeviceGetCount_v2": UNKNOWN_ERROR}, True, "Unknown Error"),
    ],
)
def test_a_driver_that_does_not_answer_at_all(
    machine: PlayedMachine, failures: dict[str, int], is_loaded: bool, problem: str
) -> None:
    state, gpus = read(machine.play([A100], failures))
    assert (state["is_loaded"], state["problem"], gpus) == (is_loaded, problem, [])


def test_without_the_library_there_is_no_driver(machine: PlayedMachine) -> None:
    state, gpus = read(machine.play([A100]), LD_LIBRARY_PATH="")
    assert (state["is_loaded"], state["problem"], gpus) == (False, "", [])


def test_a_process_is_named_only_where_its_pid_means_the_same(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/comm").write_text("python\n")
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026531836]")
    assert [command_of(pid, tmp_path) for pid in (7, 8)] == ["python", ""]
    (tmp_path / "self/ns/pid").unlink()
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026532411]")  # a container's
    assert command_of(7, tmp_path) == ""
