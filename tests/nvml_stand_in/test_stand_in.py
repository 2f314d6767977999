"""The stand-in answers nvidia-ml-py as NVIDIA's library does: otherwise tests built on it prove nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from typing import Any

import pytest

from tests.nvml_stand_in.gpus import Gpm, Process
from tests.nvml_stand_in.machine import A100, B200, GPU_IS_LOST, Changing, PlayedMachine, at_work, machine_text, uuid_of
from tests.nvml_stand_in.test_profiles import read

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


def test_energy_is_the_integral_of_the_power_since_the_driver_was_loaded(machine: PlayedMachine) -> None:
    now = time.time()
    played = dataclasses.replace(A100, power_w=Changing(100, [(now - 30, 400), (now - 20, 50)]))
    loaded = machine.play([played], driver_loaded_unix_s=now - 40)
    (energy_mj,) = (gpu["energy_mj"] for gpu in read(loaded)["gpus"])
    assert energy_mj == pytest.approx(1e3 * (100 * 10 + 400 * 10 + 50 * 20), rel=0.1)  # and 50 W until it is read
    (energy_mj,) = (gpu["energy_mj"] for gpu in read(machine.play([played], driver_loaded_unix_s=now - 25))["gpus"])
    assert energy_mj == pytest.approx(1e3 * (400 * 5 + 50 * 20), rel=0.1)


def test_every_buffer_keeps_what_was_played_at_the_time_of_each_sample(machine: PlayedMachine) -> None:
    program = """
import json, pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
samples = {kind: n.nvmlDeviceGetSamples(gpu, kind, 0)[1] for kind in (0, 1, 5)}
print(json.dumps({kind: [[s.timeStamp / 1e6, s.sampleValue.uiVal] for s in of] for kind, of in samples.items()}))
"""
    now = time.time()
    start, end = now - 4, now - 2
    samples = json.loads(machine.play([at_work(A100, (start, end))]).run_python(program))
    rest_and_work = {"0": (62_000, 390_000), "1": (0, 99), "5": (210, 1350)}
    assert set(samples) == set(rest_and_work)
    for kind, (rest, work) in rest_and_work.items():
        assert len(samples[kind]) == 100
        for at, value in samples[kind]:
            assert value == (work if start <= at < end else rest)


def test_gpm_averages_over_the_time_between_two_samples(machine: PlayedMachine) -> None:
    program = """
import json, os, time, pynvml as n
from pathlib import Path
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
get = n.c_nvmlGpmMetricsGet_t()
get.version, get.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, 1
get.metrics[0].metricId = n.NVML_GPM_METRIC_SM_UTIL
get.sample1, get.sample2 = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
before = time.time()
n.nvmlGpmSampleGet(gpu, get.sample1)
began = time.time()
time.sleep(0.2)
changed = time.time()
text = Path(os.environ["NVML_STAND_IN"]).read_text()
Path(os.environ["NVML_STAND_IN"]).write_text(text.replace("4444444444", str(changed)))
time.sleep(0.1)
ended = time.time()
n.nvmlGpmSampleGet(gpu, get.sample2)
after = time.time()
n.nvmlGpmMetricsGet(get)
low, high = (changed - before) / (ended - before), (changed - began) / (after - began)
metric = get.metrics[0]
print(json.dumps([low, metric.value / 90, high, metric.metricInfo.unit.decode()]))
"""
    gpm = Gpm(sm_util_pct=Changing(90, [(4444444444, 0)]))
    played = machine.play([dataclasses.replace(B200, gpm=gpm)])
    one, share, other, unit = json.loads(played.run_python(program))
    assert min(one, other) - 0.01 <= share <= max(one, other) + 0.01
    assert 0.2 < share < 0.9
    assert unit == "%"


def test_a_machine_that_changes_in_place_is_read_anew_at_once(machine: PlayedMachine) -> None:
    program = """
import os, sys, pynvml as n
from pathlib import Path
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
file = Path(os.environ["NVML_STAND_IN"])
readings = []
for text in sys.argv[1:] * 20:
    file.write_text(text)  # of the same length, and within one tick of the kernel's clock
    readings.append(n.nvmlDeviceGetPowerUsage(gpu))
print(readings == [100000, 200000, 300000] * 20)
"""
    texts = [machine_text([dataclasses.replace(A100, power_w=watts)], {}, "570.1") for watts in (100, 200, 300)]
    assert len({len(text) for text in texts}) == 1
    assert machine.play([A100]).run_python(program, *texts) == "True\n"


def test_a_file_that_is_no_json_is_said_and_no_machine(machine: PlayedMachine) -> None:
    machine.file.write_text('{"gpus": [}')
    program = """
import pynvml as n
try:
    n.nvmlInit()
except n.NVMLError as error:
    print(type(error).__name__)
"""
    assert machine.run_python(program) == "NVMLError_Unknown\n"


def test_texts_come_through_json_unharmed(machine: PlayedMachine) -> None:
    name = 'A "GPU" \\ of\tVoltä – 1'
    gpus: Any = read(machine.play([dataclasses.replace(A100, name=name)]))["gpus"]
    assert gpus[0]["name"] == name
