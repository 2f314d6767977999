"""Numbers that change with time, what NVML counts and averages of them, and what a call costs."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest

from tests.nvml_stand_in.gpus import Gpm
from tests.nvml_stand_in.machine import A100, B200, Changing, PlayedMachine, at_work, machine_text
from tests.nvml_stand_in.test_profiles import read


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
