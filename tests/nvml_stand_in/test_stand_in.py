"""The stand-in answers nvidia-ml-py as NVIDIA's library does: otherwise tests built on it prove nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

from tests.nvml_stand_in.gpus import Process
from tests.nvml_stand_in.machine import A100, B200, GPU_IS_LOST, PlayedMachine, uuid_of

DESCRIBE = """
import json, pynvml as n
n.nvmlInit()
gpus = []
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    pci = n.nvmlDeviceGetPciInfo(h)
    gpus.append({
        "name": n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h))),
        "uuid": n.nvmlDeviceGetUUID(h),
        "pci": [pci.busId, pci.pciDeviceId],
        "v1": n.nvmlDeviceGetMemoryInfo(h).total,
        "v2": n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).total,
        "busy": n.nvmlDeviceGetUtilizationRates(h).gpu,
    })
driver = n.nvmlSystemGetDriverVersion()
n.nvmlShutdown()
print(json.dumps({"driver": driver, "gpus": gpus}))
"""
ERROR_OF = """
import sys, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
{before}
try:
    {call}
except n.NVMLError as error:
    print(type(error).__name__)
"""


def test_a_machine_is_described_as_it_was_given(machine: PlayedMachine) -> None:
    machine.play([A100, dataclasses.replace(B200, utilization_pct=42)], driver_version="550.1")
    said: dict[str, Any] = json.loads(machine.run_python(DESCRIBE))
    assert said["driver"] == "550.1"
    assert [gpu["name"] for gpu in said["gpus"]] == ["NVIDIA A100-SXM4-80GB", "NVIDIA B200"]
    assert [gpu["uuid"] for gpu in said["gpus"]] == [uuid_of(0), uuid_of(1)]
    assert [gpu["pci"] for gpu in said["gpus"]] == [["00000000:10:00.0", 0x20B210DE], ["00000000:11:00.0", 0x290110DE]]
    assert [gpu["v1"] for gpu in said["gpus"]] == [81251 * 2**20, 183359 * 2**20]
    assert [gpu["v2"] for gpu in said["gpus"]] == [81251 * 2**20, 183359 * 2**20]
    assert [gpu["busy"] for gpu in said["gpus"]] == [0, 42]


def test_an_unknown_uuid_is_not_found(machine: PlayedMachine) -> None:
    program = ERROR_OF.format(before="", call='n.nvmlDeviceGetHandleByUUID("GPU-none")')
    assert machine.play([A100]).run_python(program) == "NVMLError_NotFound\n"


TORCH_ASKS = """
import ctypes, json, pynvml as n
library = ctypes.CDLL("libnvidia-ml.so.1")
assert library.nvmlInit() == 0  # not _v2, as torch.cuda.device_count() calls it


class Process(ctypes.Structure):  # of the first version
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong)]


def found(bus_id):
    gpu = ctypes.c_void_p()
    code = library.nvmlDeviceGetHandleByPciBusId_v2(bus_id, ctypes.byref(gpu))
    return gpu if code == 0 else code


second = found(b"00000000:11:00.0")
uuid = ctypes.create_string_buffer(96)
library.nvmlDeviceGetUUID(second, uuid, 96)
count, processes = ctypes.c_uint(4), (Process * 4)()
library.nvmlDeviceGetComputeRunningProcesses(second, ctypes.byref(count), processes)
kind, pci = ctypes.c_int(), n.nvmlPciInfo_t()
library.nvmlDeviceGetNvLinkRemoteDeviceType(second, 0, ctypes.byref(kind))
library.nvmlDeviceGetNvLinkRemotePciInfo_v2(second, 0, ctypes.byref(pci))
print(json.dumps([
    uuid.value.decode(), found(b"0000:12:00.0"), found(b"none"), [[p.pid, p.bytes] for p in processes[: count.value]],
    kind.value, pci.busId, library.nvmlDeviceGetNvLinkRemoteDeviceType(second, 12, ctypes.byref(kind)),
]))
"""


def test_what_torch_asks_beside_nvidia_ml_py(machine: PlayedMachine) -> None:
    machine.play([A100, dataclasses.replace(A100, processes=[Process(4711, 2048)])])
    assert json.loads(machine.run_python(TORCH_ASKS)) == [
        uuid_of(1), 6, 2, [[4711, 2**31]], 2, "00000000:F0:00.0", 2,
    ]  # fmt: skip


def test_nothing_answers_after_shutdown(machine: PlayedMachine) -> None:
    program = ERROR_OF.format(before="n.nvmlShutdown()", call="n.nvmlDeviceGetName(h)")
    assert machine.play([A100]).run_python(program) == "NVMLError_Uninitialized\n"


def test_one_function_of_one_gpu_can_fail(machine: PlayedMachine) -> None:
    machine.play([dataclasses.replace(A100, failures={"nvmlDeviceGetName": GPU_IS_LOST}), A100])
    assert machine.run_python(ERROR_OF.format(before="", call="n.nvmlDeviceGetName(h)")) == "NVMLError_GpuIsLost\n"
    assert machine.run_python(ERROR_OF.format(before="", call="n.nvmlDeviceGetUUID(h)")) == ""
    other = "n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(1))"
    assert machine.run_python(ERROR_OF.format(before="", call=other)) == ""


def test_samples_come_every_100_ms_up_to_now_and_only_newer_than_asked(machine: PlayedMachine) -> None:
    program = """
import json, time, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
before = time.time_ns() // 1000
kind, all_ = n.nvmlDeviceGetSamples(h, n.NVML_GPU_UTILIZATION_SAMPLES, 0)
after = time.time_ns() // 1000
_, newer = n.nvmlDeviceGetSamples(h, n.NVML_GPU_UTILIZATION_SAMPLES, all_[-11].timeStamp)
times = [s.timeStamp for s in all_]
print(json.dumps([kind, before, after, times, [s.sampleValue.uiVal for s in all_], newer[0].timeStamp, times[-10]]))
"""
    machine.play([dataclasses.replace(A100, utilization_pct=63)])
    kind, before, after, times, values, first_newer, tenth_last = json.loads(machine.run_python(program))
    assert kind == 1  # NVML_VALUE_TYPE_UNSIGNED_INT
    assert {b - a for a, b in itertools.pairwise(times)} == {100_000}
    assert len(times) == 100
    assert before - 100_000 < times[-1] <= after
    assert set(values) == {63}
    assert first_newer == tenth_last
