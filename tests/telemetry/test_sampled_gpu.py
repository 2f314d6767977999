"""Eight GPUs of one node, each with something of its own, sampled by one process for one window of load.

All of a driver's own samples are taken, once, and of the right GPU, if there are any.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_ddpscale.telemetry.link import Sampler
from tests.builders.telemetry import Telemetry, flags_of
from tests.nvml_stand_in.gpus import HW_THERMAL_SLOWDOWN, Ecc
from tests.nvml_stand_in.machine import (
    A100,
    B200,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
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
from tests.telemetry.sampled import cut, sampler_on, wait_until

REST_S, WINDOW_S = 0.3, 1.2
HALF_BUSY, NOTHING = 1, "no sample in the window"
HEALTHY, NO_BUFFERS, OLD, IMPOSSIBLE, FAULTY, DIES, LOST, STALLED = range(8)


def node(start: float, end: float) -> list[PlayedGpu]:
    """What the GPUs do in the window."""
    middle = (start + end) / 2
    busy = at_work(B200, (start, end + 60))
    faulty = dataclasses.replace(
        busy,
        clock_event_reasons=Changing(0, [(start, HW_THERMAL_SLOWDOWN)]),
        sm_clock_mhz=Changing(120, [(start, 600)]),
        ecc=Ecc(corrected_volatile=Changing(5, [(middle, 8)]), uncorrected_volatile=Changing(0, [(middle, 1)])),
        pcie=dataclasses.replace(busy.pcie, width=8, generation=5),
    )
    old_driver = {
        "nvmlDeviceGetCurrentClocksEventReasons": FUNCTION_NOT_FOUND,
        "nvmlDeviceGetTotalEnergyConsumption": NOT_SUPPORTED,
        "nvmlDeviceGetUtilizationRates": NOT_SUPPORTED,
    }
    return [
        busy,
        dataclasses.replace(at_work(A100), sample_buffers=()),
        dataclasses.replace(at_work(V100), failures=old_driver, sample_buffers=(0, 5)),
        dataclasses.replace(at_work(RTX_PRO_6000_SERVER), utilization_pct=1000),
        faulty,
        dataclasses.replace(at_work(A100), failures={"any": Failing(UNKNOWN_ERROR, middle)}),
        dataclasses.replace(at_work(A100), failures={"any": GPU_IS_LOST}),
        dataclasses.replace(A100, power_w=Changing(62, [(start, 90)]), utilization_pct=Changing(0, [(start, 100)]),
                            sm_clock_mhz=1410),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def gpus(nvml_library_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Telemetry]:
    """The window begins once the sampler has polled, however long that took."""
    machine = PlayedMachine(nvml_library_directory, tmp_path_factory.mktemp("node") / "machine.json")
    machine.play(node(time.time() + 3600, time.time() + 3601))
    uuids = [uuid_of(i) for i in range(8)]
    # In an order that is not NVML's, as CUDA_VISIBLE_DEVICES may have it.
    with sampler_on(machine, uuids[::-1]) as sampler:
        start = round(time.time() + REST_S, 1)
        machine.play(node(start, start + WINDOW_S))
        wait_until(start - 0.02)
        sampler.mark()
        wait_until(start + WINDOW_S)
        return cut(sampler, [(uuid, start, start + WINDOW_S) for uuid in uuids])


def test_gpus_are_told_apart_by_uuid(gpus: list[Telemetry]) -> None:
    assert [gpu.device for gpu in gpus] == [uuid_of(i) for i in range(8)]
    assert [gpu.power_limit_w for gpu in gpus] == [1000, 400, 300, 600, 1000, 400, None, 400]


def test_a_healthy_gpu_at_work_is_read_completely(gpus: list[Telemetry]) -> None:
    gpu = gpus[HEALTHY]
    assert [name for name in gpu.__struct_fields__ if getattr(gpu, name) is None] == []
    assert gpu.unreadable == {}
    assert gpu.utilization == pytest.approx(0.99)
    assert gpu.power_w == 880  # of the window only
    assert gpu.idle_power_w == 190
    assert gpu.throttle_reasons == {"sw_power_cap": 1.0}
    assert flags_of(gpu) == ()


def test_running_totals_are_cut_to_the_window(gpus: list[Telemetry]) -> None:
    gpu = gpus[HEALTHY]
    assert gpu.energy_j == pytest.approx(880 * WINDOW_S, rel=0.02)
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected) == (0, 0)


def test_gpm_says_what_the_sms_did(gpus: list[Telemetry]) -> None:
    gpu = gpus[HEALTHY]
    assert gpu.sm_activity == pytest.approx(0.85, abs=0.02)
    assert "NotSupported" in gpus[OLD].unreadable["sm_activity"]


def test_a_driver_without_buffers_is_polled(gpus: list[Telemetry]) -> None:
    gpu = gpus[NO_BUFFERS]
    assert (gpu.power_w, gpu.sm_clock_mhz) == (390, 1350)
    assert gpu.utilization == pytest.approx(0.99)


def test_a_driver_with_neither_buffer_nor_value_says_nothing(gpus: list[Telemetry]) -> None:
    assert gpus[OLD].utilization is None
    assert "NotSupported" in gpus[OLD].unreadable["utilization"]
    assert gpus[OLD].power_w is not None


def test_impossible_values_are_left_out(gpus: list[Telemetry]) -> None:
    assert gpus[IMPOSSIBLE].utilization is None
    assert gpus[IMPOSSIBLE].sm_clock_mhz is not None


def test_an_old_driver_is_asked_for_throttling_by_the_old_name(gpus: list[Telemetry]) -> None:
    assert gpus[OLD].throttle_reasons == {}


def test_errors_are_those_new_in_the_window(gpus: list[Telemetry]) -> None:
    gpu = gpus[FAULTY]
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected) == (3, 1)
    assert (gpu.pcie_width, gpu.pcie_generation) == (8, 5)


def test_throttling_under_load_is_seen_and_flagged(gpus: list[Telemetry]) -> None:
    assert gpus[FAULTY].throttle_reasons == {"hw_thermal_slowdown": 1.0}
    assert flags_of(gpus[FAULTY]) == ("throttled", "slow_clock")


def test_a_gpu_that_dies_in_the_window_keeps_what_was_read_and_has_no_totals(gpus: list[Telemetry]) -> None:
    gpu = gpus[DIES]
    assert gpu.utilization is not None
    assert gpu.ecc_uncorrected is None
    assert "Unknown" in gpu.unreadable["ecc_uncorrected"]


def test_a_lost_gpu_says_so_and_costs_the_others_nothing(gpus: list[Telemetry]) -> None:
    assert "GpuIsLost" in gpus[LOST].unreadable["device"]
    assert gpus[LOST].lost == "GPU is lost"
    assert [gpu.lost for gpu in gpus].count("") == len(gpus) - 1
    assert gpus[LOST].utilization is None


def test_busy_at_idle_power_is_a_stall(gpus: list[Telemetry]) -> None:
    gpu = gpus[STALLED]
    assert gpu.idle_power_w == 62
    assert gpu.utilization == 1.0
    assert flags_of(gpu) == ("stalled",)


@pytest.fixture(scope="module")
def sampler(nvml_library_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sampler]:
    machine = PlayedMachine(nvml_library_directory, tmp_path_factory.mktemp("node") / "machine.json").play(
        [A100, dataclasses.replace(A100, utilization_pct=50)]
    )
    # NVML does not heed the variable: whoever went by its indices would mix up the GPUs.
    environment = machine.environment(CUDA_VISIBLE_DEVICES="1,0")
    with closing(Sampler([uuid_of(0), uuid_of(1)], 60, environment)) as running:
        yield running


def lately(sampler: Sampler, gpu: int) -> Telemetry:
    """What the last two seconds were."""
    now = time.time()
    return cut(sampler, [(uuid_of(gpu), now - 2, now)])[0]


def test_what_the_driver_sampled_before_it_was_first_asked_is_there(sampler: Sampler) -> None:
    before = time.time() - 3  # a driver keeps a hundred samples, one each 100 ms
    lately(sampler, HALF_BUSY)  # it takes a while to start
    (found,) = cut(sampler, [(uuid_of(HALF_BUSY), before - 1, before)])
    assert found.utilization == pytest.approx(0.5)


def test_a_driver_with_nothing_newer_is_no_driver_that_fails(sampler: Sampler) -> None:
    # Asked thrice within the time of a sample, NVML says "Not Found".
    for _ in range(3):
        now = time.time()
        before, after = cut(
            sampler, [(uuid_of(HALF_BUSY), now - 3600, now - 3599), (uuid_of(HALF_BUSY), now + 5, now + 6)]
        )
        for one in (before, after):
            assert one.utilization is None
            assert one.unreadable["utilization"] == NOTHING
    assert lately(sampler, HALF_BUSY).utilization is not None
