"""The sampler on played machines: GPUs with something of their own each in one window of load, and its ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.telemetry.windows import LATE_S, Sampler
from tests.nvml_stand_in.gpus import HW_THERMAL_SLOWDOWN, Ecc
from tests.nvml_stand_in.machine import (
    A100,
    B200,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    HANG,
    NOT_SUPPORTED,
    RTX_PRO_6000_SERVER,
    UNKNOWN_ERROR,
    V100,
    Changing,
    Failing,
    PlayedGpu,
    PlayedMachine,
    at_work,
    uuid_of,
)
from tests.rows import rows
from tests.telemetry.sampled import cut, ends_within, sampler_on, wait_until

WINDOW_S = 1.2
HANGING = replace(A100, failures={"any": HANG})
OLD_DRIVER = {
    "nvmlDeviceGetCurrentClocksEventReasons": FUNCTION_NOT_FOUND,
    "nvmlDeviceGetTotalEnergyConsumption": NOT_SUPPORTED,
    "nvmlDeviceGetUtilizationRates": NOT_SUPPORTED,
}
NO = "Not Supported"


def node(start: float) -> list[tuple[PlayedGpu, dict[str, Any]]]:
    """What the GPUs do from then on, and what is read of it: without a value the reason."""
    busy, middle = at_work(B200, (start, start + 60)), start + WINDOW_S / 2
    hot = Changing(0, [(start, HW_THERMAL_SLOWDOWN)])
    errors = Ecc(corrected_volatile=Changing(5, [(middle, 8)]), uncorrected_volatile=Changing(0, [(middle, 1)]))
    return [
        (busy, {"utilization": 0.99, "power_w": 880, "idle_power_w": 190, "throttle_reasons": {"sw_power_cap": 1},
                "energy_j": 880 * WINDOW_S, "sm_activity": 0.85, "ecc_corrected": 0, "ecc_uncorrected": 0,
                "unreadable": {}, "lost": "", "power_limit_w": 1000, "pcie_width": 16, "temperature_c": 60}),
        (replace(at_work(A100), sample_buffers=()), {"power_w": 390, "sm_clock_mhz": 1350, "utilization": 0.99}),
        (replace(at_work(V100), failures=OLD_DRIVER, sample_buffers=(0, 5)),
         {"utilization": NO, "sm_activity": NO, "energy_j": NO, "power_w": 265, "throttle_reasons": {}}),
        (replace(at_work(RTX_PRO_6000_SERVER), utilization_pct=1000),
         {"utilization": "the driver says 1000 %, which is impossible", "sm_clock_mhz": 2200, "power_limit_w": 600}),
        (replace(busy, clock_event_reasons=hot, ecc=errors, pcie=replace(busy.pcie, width=8, generation=5)),
         {"throttle_reasons": {"hw_thermal_slowdown": 1}, "ecc_corrected": 3, "ecc_uncorrected": 1,
          "pcie_width": 8, "pcie_generation": 5}),
        (replace(at_work(A100), failures={"any": Failing(UNKNOWN_ERROR, middle)}),
         {"utilization": 0.99, "ecc_uncorrected": "Unknown Error", "lost": ""}),
        (replace(at_work(A100), failures={"any": GPU_IS_LOST}),
         {"unreadable": {"device": "GPU is lost"}, "lost": "GPU is lost"}),
    ]  # fmt: skip


def test_each_gpu_is_read_as_it_was_in_the_window(machine: PlayedMachine) -> None:
    machine.play([gpu for gpu, _ in node(time.time() + 3600)])
    uuids = [uuid_of(i) for i in range(7)]
    with ExitStack() as stack:
        samplers = [stack.enter_context(sampler_on(machine, uuid, poll_s=0.1)) for uuid in uuids]
        start = round(time.time() + 0.3, 1)
        expected = node(start)
        machine.play([gpu for gpu, _ in expected])
        wait_until(start + WINDOW_S)
        found = [cut(sampler, start, start + WINDOW_S) for sampler in samplers]
    for gpu, (_, readings) in zip(found, expected, strict=True):
        for name, value in readings.items():
            told = gpu.unreadable[name] if getattr(gpu, name) is None else getattr(gpu, name)
            assert told == (pytest.approx(value, rel=0.02) if isinstance(value, float | int) else value), name


def test_between_rare_polls_no_sample_is_lost_nor_taken_twice(machine: PlayedMachine) -> None:
    start = round(time.time() + 0.5, 1)
    machine.play([replace(A100, utilization_changes=[(start + 0.35, 80), (start + 0.65, 0)])])
    bare = uuid_of(0).removeprefix("GPU-")  # as torch has it
    with sampler_on(machine, bare, poll_s=0.7) as sampler:
        wait_until(start + 1.01)
        windows = [(start, start + 0.5), (start + 0.5, start + 1.0), (start, start + 1.0)]
        busy = [cut(sampler, *window).utilization for window in windows]
    assert busy == pytest.approx([2 * 0.8 / 5, 0.8 / 5, 3 * 0.8 / 10])


def test_without_a_driver_the_reason_is_its_own(machine: PlayedMachine) -> None:
    machine.play([A100], {"nvmlInit": DRIVER_NOT_LOADED})
    with sampler_on(machine) as sampler:
        found = cut(sampler, time.time() - 1, time.time())
    assert found.unreadable == {"device": "Driver Not Loaded"}


def test_nobody_waits_while_a_driver_hangs(machine: PlayedMachine) -> None:
    machine.play([A100])
    with sampler_on(machine) as sampler:
        machine.play([HANGING])
        hung_s = time.time()
        wait_until(hung_s + LATE_S + 1)
        began_s = time.monotonic()
        before, after = sampler.cut(hung_s - 0.5, hung_s + 0.5), sampler.cut(hung_s, time.time())
        assert time.monotonic() - began_s < 0.2
    assert "device" not in before.unreadable
    assert "may hang" in after.unreadable["device"]
    assert sampler.process is not None
    assert sampler.process.returncode == -9


@rows(("program", "why"), [("/nowhere/python", "did not start: [Errno 2]"), ("false", "ended with exit code 1")])
def test_a_sampler_that_is_not_there_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with closing(Sampler(uuid_of(0), tmp_path / "lines")) as sampler:
        sampler.wait_for_first_poll()
        found = sampler.cut(1, 2)
    assert why in found.unreadable["device"]


def test_the_file_does_not_grow_without_end(machine: PlayedMachine, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.touch()
    program = "import sys; from pytest_ddpscale.telemetry import sampler; sampler.MOST_BYTES = 1; sampler.main()"
    command = [sys.executable, "-c", program, uuid_of(0), str(path), "0.01", str(os.getpid())]
    files, most, deadline_s = [0], 0, time.monotonic() + 10
    with subprocess.Popen(command, env=machine.environment()) as sampler:
        while len(files) < 5 and time.monotonic() < deadline_s:
            files += {path.stat().st_ino} - {files[-1]}
            most = max(most, path.read_bytes().count(b"\n"))
        sampler.kill()
    assert len(files) == 5
    assert most <= 1


def test_a_sampler_in_a_driver_that_hangs_ends_with_its_parent(machine: PlayedMachine, tmp_path: Path) -> None:
    machine.play([HANGING])
    program = """
import sys, time
from pathlib import Path
from pytest_ddpscale.telemetry.windows import Sampler
sampler = Sampler(sys.argv[1], Path(sys.argv[2]))
sampler.wait_for_first_poll(0.7)
print(sampler.process.pid, flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", program, uuid_of(0), str(tmp_path / "lines")]
    with subprocess.Popen(command, env=machine.environment(), stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        pid = int(rank.stdout.readline())
        assert not ends_within(pid, 0.1)
        rank.kill()
    assert ends_within(pid, 10)


def test_a_sampler_whose_parent_ended_before_it_began_ends_at_once(machine: PlayedMachine, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest_ddpscale.telemetry.sampler", uuid_of(0), str(tmp_path / "lines"), "1", "1"]
    assert subprocess.run(command, env=machine.environment(), check=False, timeout=10).returncode == 0


def test_energy_is_counted_from_the_first_poll_while_there_are_new_ones(machine: PlayedMachine) -> None:
    machine.play([at_work(B200), replace(at_work(V100), failures=OLD_DRIVER)])
    with sampler_on(machine, poll_s=0.1) as known, sampler_on(machine, uuid_of(1)) as unknown:
        began_s = known.log.newest.unix_s
        time.sleep(WINDOW_S)
        used_j = known.energy_j()
        assert used_j == pytest.approx(880 * (known.log.newest.unix_s - began_s), rel=0.05)
        assert unknown.energy_j() is None
        assert known.process is not None
        known.process.kill()
        known.process.wait()
        assert known.energy_j() is None
