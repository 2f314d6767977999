"""What nvidia-ml-py reads of whole machines: each kind of GPU, at rest and at work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.nvml_stand_in.gpus import PlayedGpu
from tests.nvml_stand_in.machine import (
    A100,
    B200,
    PROFILES,
    RTX_PRO_6000_SERVER,
    V100,
    PlayedMachine,
    at_work,
    node_of,
    uuid_of,
)

READ_EVERYTHING = "from tests.nvml_stand_in.everything import main; main()"
MIB = 2**20
UNSUPPORTED = "NotSupported"


def read(machine: PlayedMachine) -> Any:
    return json.loads(machine.run_python(READ_EVERYTHING))


def own_name(value: object) -> str | None:
    return value.name if isinstance(value, PlayedGpu) else None


@pytest.mark.parametrize(
    ("gpu", "own"),
    [
        (V100, {
            "capability": [7, 0], "max_clocks": [1530, 1530, 877], "power_limits_mw": [300_000, 300_000],
            "pcie": [3, 16, 3, 16, 3], "nvlinks": [1] * 6 + ["InvalidArgument"], "gpm": "no",
            "retired_pages_pending": 0, "remapped_rows": UNSUPPORTED, "mig": UNSUPPORTED,
        }),
        (A100, {
            "capability": [8, 0], "max_clocks": [1410, 1410, 1593], "power_limits_mw": [400_000, 400_000],
            "pcie": [4, 16, 4, 16, 4], "nvlinks": [1] * 12 + ["InvalidArgument"], "gpm": "no",
            "retired_pages_pending": UNSUPPORTED, "remapped_rows": [0, 0, 0, 0], "mig": [0, 0],
        }),
        (B200, {
            "capability": [10, 0], "max_clocks": [1965, 1965, 3996], "power_limits_mw": [1_000_000, 1_000_000],
            "pcie": [5, 16, 5, 16, 5], "nvlinks": [1] * 18 + ["InvalidArgument"], "gpm": [0, "error 3"],
            "retired_pages_pending": UNSUPPORTED, "remapped_rows": [0, 0, 0, 0], "mig": [0, 0],
        }),
        (RTX_PRO_6000_SERVER, {
            "capability": [12, 0], "max_clocks": [2430, 2430, 12481], "power_limits_mw": [600_000, 600_000],
            "pcie": [1, 16, 5, 16, 5], "nvlinks": [UNSUPPORTED], "gpm": [0, "error 3"],
            "retired_pages_pending": UNSUPPORTED, "remapped_rows": [0, 0, 0, 0], "mig": [0, 0],
        }),
    ],
    ids=own_name,
)  # fmt: skip
def test_eight_healthy_gpus_at_rest(machine: PlayedMachine, gpu: PlayedGpu, own: dict[str, Any]) -> None:
    said = read(machine.play(node_of(gpu), driver_version="580.95.05", cuda_driver_version=13000))
    assert (said["driver"], said["nvml"], said["cuda"]) == ("580.95.05", "13.580.95.05", [13000, 13000])
    assert [one["uuid"] for one in said["gpus"]] == [uuid_of(i) for i in range(8)]
    for one in said["gpus"]:
        assert {key: one[key] for key in own} == own
        assert one["name"] == gpu.name
        total, reserved, used, free = one["memory"]
        assert (total, used) == (gpu.memory_mib * MIB, 4 * MIB)
        assert total == reserved + used + free
        assert one["utilization"] == [0, 0]
        assert one["power_mw"] == gpu.power_w * 1000  # type: ignore[operator]
        assert one["clocks"] == [gpu.sm_clock_mhz, gpu.sm_clock_mhz, gpu.memory_clock_mhz]
        assert one["samples"] == [one["power_mw"], 0, gpu.sm_clock_mhz, UNSUPPORTED]
        assert one["temperature"] == gpu.temperature_c
        assert one["reasons"] == [1, 1]  # idle
        assert (one["ecc"], one["ecc_errors"]) == ([1, 1], [0, 0, 0, 0])
        assert one["processes"] == []


def test_gpus_at_work(machine: PlayedMachine) -> None:
    said = read(machine.play([at_work(gpu) for gpu in PROFILES]))
    for gpu, one in zip(PROFILES, said["gpus"], strict=True):
        work = gpu.work
        assert one["utilization"] == [99, 60]
        assert one["power_mw"] == work.power_w * 1000
        assert one["clocks"][1:] == [work.sm_clock_mhz, work.memory_clock_mhz]
        assert one["temperature"] == work.temperature_c
        assert one["reasons"] == [work.clock_event_reasons] * 2
        assert one["pcie"][0] == work.pcie_generation
        assert gpu.gpm is None or one["gpm"] == [pytest.approx(85), "error 3"]
