from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.nvml_stand_in.machine import (
    A100,
    ANY_FUNCTION,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    PlayedMachine,
    machine_text,
    uuid_of,
)

SAMPLES = "nvmlDeviceGetSamples"
RATES = "nvmlDeviceGetUtilizationRates"
# Reads [now - argv[2], now - argv[3]] of the GPU argv[1], in seconds.
READ = """
import json, sys, time
from pytest_ddpscale.telemetry.nvml import UtilizationReader
now = time.time()
with UtilizationReader(sys.argv[1]) as reader:
    value, count = reader.read(now - float(sys.argv[2]), now - float(sys.argv[3]))
    print(json.dumps([value, count, reader.why_unreadable]))
import pynvml
assert pynvml._nvmlLib_refcount == 0, "NVML was not shut down"
"""


def read(machine: PlayedMachine, start_s: float, end_s: float = 0.0, uuid: str = uuid_of(0), **environ: str) -> Any:
    return json.loads(machine.run_python(READ, uuid, str(start_s), str(end_s), **environ))


def test_utilization_is_the_mean_of_the_drivers_samples(machine: PlayedMachine) -> None:
    value, count, why = read(machine.play([dataclasses.replace(A100, utilization_pct=97)]), 2.0)
    assert value == pytest.approx(0.97)
    assert 19 <= count <= 21  # a sample every 100 ms
    assert why is None


def test_only_samples_of_the_window_count(machine: PlayedMachine) -> None:
    # Busy for two seconds in the past, idle before and after.
    now = time.time()
    machine.play([dataclasses.replace(A100, utilization_changes=[(now - 6, 80), (now - 4, 0)])])
    program = READ.replace("now = time.time()", f"now = {now!r}")
    inside = json.loads(machine.run_python(program, uuid_of(0), "5.7", "4.3"))
    across = json.loads(machine.run_python(program, uuid_of(0), "5.0", "3.0"))
    after = json.loads(machine.run_python(program, uuid_of(0), "3.0", "2.0"))
    assert inside[:2] == [pytest.approx(0.8), 14]
    assert across[0] == pytest.approx(0.4, abs=0.05)
    assert after[:2] == [0.0, 10]


def test_neighbouring_windows_share_no_sample(machine: PlayedMachine) -> None:
    program = """
import json, time
from pytest_ddpscale.telemetry.nvml import UtilizationReader
import sys
edge = int(time.time()) - 2.0
reader = UtilizationReader(sys.argv[1])
print(json.dumps([reader.read(a, b)[1] for a, b in [(edge - 1, edge), (edge, edge + 1), (edge - 1, edge + 1)]]))
"""
    assert json.loads(machine.play([A100]).run_python(program, uuid_of(0))) == [10, 10, 20]


def test_of_a_window_longer_than_the_buffer_its_end_is_read(machine: PlayedMachine) -> None:
    value, count, _ = read(machine.play([dataclasses.replace(A100, utilization_pct=50)]), 3600.0)
    assert value == 0.5
    assert count in (99, 100)  # the oldest sample may leave the buffer between two calls


def test_the_gpu_is_found_by_uuid_whatever_cuda_sees(machine: PlayedMachine) -> None:
    machine.play([dataclasses.replace(A100, utilization_pct=10 * i) for i in range(8)])
    assert read(machine, 1.0, uuid=uuid_of(7), CUDA_VISIBLE_DEVICES="7,6")[0] == pytest.approx(0.7)
    assert read(machine, 1.0, uuid=uuid_of(6), CUDA_VISIBLE_DEVICES="7,6")[0] == pytest.approx(0.6)


def test_torchs_bare_uuid_will_do(machine: PlayedMachine) -> None:
    machine.play([A100, dataclasses.replace(A100, utilization_pct=30)])
    assert read(machine, 1.0, uuid=uuid_of(1).removeprefix("GPU-"))[0] == pytest.approx(0.3)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND])
def test_a_driver_without_samples_gives_one_reading(machine: PlayedMachine, code: int) -> None:
    machine.play([dataclasses.replace(A100, utilization_pct=88, failures={SAMPLES: code})])
    assert read(machine, 2.0) == [0.88, 1, None]


def test_a_driver_with_neither_gives_none(machine: PlayedMachine) -> None:
    machine.play([dataclasses.replace(A100, failures={SAMPLES: NOT_SUPPORTED, RATES: NOT_SUPPORTED})])
    assert read(machine, 2.0)[:2] == [None, 0]


def test_a_window_without_samples_gives_none(machine: PlayedMachine) -> None:
    machine.play([A100])
    future = read(machine, -5.0, -6.0)
    past = read(machine, 3600.0, 3599.0)
    backwards = read(machine, 1.0, 2.0)
    assert [future, past, backwards] == [[None, 0, "no sample in the window"]] * 3


def test_impossible_values_are_left_out(machine: PlayedMachine) -> None:
    machine.play([dataclasses.replace(A100, utilization_pct=1000)])
    assert read(machine, 2.0)[:2] == [None, 0]


def test_a_gpu_lost_while_it_is_watched_costs_the_value_not_the_run(machine: PlayedMachine) -> None:
    lost = machine_text([dataclasses.replace(A100, failures={ANY_FUNCTION: GPU_IS_LOST})], {}, "570.86.15")
    program = """
import json, os, sys, time
from pathlib import Path
from pytest_ddpscale.telemetry.nvml import UtilizationReader
reader = UtilizationReader(sys.argv[1])
now = time.time()
before = reader.read(now - 1, now)
Path(os.environ["NVML_STAND_IN"]).write_text(sys.argv[2])
after = reader.read(now - 1, now)
print(json.dumps([before, after, reader.why_unreadable]))
reader.close()
"""
    machine.play([dataclasses.replace(A100, utilization_pct=40)])
    before, after, why = json.loads(machine.run_python(program, uuid_of(0), lost))
    assert before[0] == pytest.approx(0.4)
    assert after == [None, 0]
    assert "GpuIsLost" in why


def test_an_unknown_gpu_reads_none_and_says_why(machine: PlayedMachine) -> None:
    value, count, why = read(machine.play([A100]), 1.0, uuid="GPU-none")
    assert (value, count) == (None, 0)
    assert "NotFound" in why


def test_no_driver_reads_none_and_says_why(machine: PlayedMachine) -> None:
    value, count, why = read(machine.play([A100], {"nvmlInit": DRIVER_NOT_LOADED}), 1.0)
    assert (value, count) == (None, 0)
    assert "DriverNotLoaded" in why


def test_a_closed_reader_reads_none_and_closes_again(machine: PlayedMachine) -> None:
    program = """
import sys
from pytest_ddpscale.telemetry.nvml import UtilizationReader
reader = UtilizationReader(sys.argv[1])
reader.close()
reader.close()
print(reader.read(0, 4e9))
"""
    assert machine.play([A100]).run_python(program, uuid_of(0)) == "(None, 0)\n"


def test_the_module_imports_nothing_but_the_standard_library_until_it_is_used() -> None:
    program = """
import sys
import pytest_ddpscale
before = set(sys.modules)
import pytest_ddpscale.telemetry.nvml
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(sorted(new))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['pytest_ddpscale']\n"
