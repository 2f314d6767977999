"""A GPU is flagged for what its readings show, and never for what could not be read."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pytest_ddpscale.judge.device_flags import mean_power_w
from pytest_ddpscale.run.telemetry import Spread
from tests.builders.telemetry import Telemetry, columns_of_telemetry, flags_of
from tests.rows import rows


def steady(value: float) -> Spread[float]:
    return Spread(value, value, value, 10)


NOTHING = Telemetry("weak/r", "ddp@8", 0, 0, 0, "n", "GPU-a", started_unix_s=1000.0, ended_unix_s=1002.0)
HEALTHY = replace(
    NOTHING, utilization=steady(0.98), power_w=steady(480.0), power_limit_w=700.0, idle_power_w=70.0,
    sm_clock_mhz=steady(1700.0), sm_clock_max_mhz=1980.0, throttle_reasons={"sw_power_cap": 1.0},
)  # fmt: skip


def flags_with(**changes: Any) -> tuple[str, ...]:
    return flags_of(replace(HEALTHY, **changes))


def power_of(window: Telemetry) -> float:
    return float(mean_power_w(columns_of_telemetry([window]))[0])


def test_a_gpu_at_its_power_limit_is_healthy() -> None:
    assert flags_of(HEALTHY) == ()


def test_what_cannot_be_read_raises_no_flag() -> None:
    assert flags_of(NOTHING) == ()
    assert flags_of(replace(NOTHING, utilization=steady(1.0))) == ()


@rows(("power_w", "expected"), [(130.0, ("stalled",)), (220.0, ("stalled",)), (235.0, ())])
def test_busy_at_nearly_idle_power_is_stalled(power_w: float, expected: tuple[str, ...]) -> None:
    assert flags_with(utilization=steady(1.0), power_w=steady(power_w)) == expected


@rows(("power_w", "expected"), [(205.0, ("stalled",)), (215.0, ())])
def test_without_a_known_idle_power_the_limit_decides(power_w: float, expected: tuple[str, ...]) -> None:
    assert flags_with(power_w=steady(power_w), idle_power_w=None) == expected


def test_idle_power_that_cannot_be_is_not_divided_by() -> None:
    assert flags_with(power_w=steady(120.0), idle_power_w=700.0) == ("stalled",)


def test_working_sms_are_no_stall_whatever_the_power() -> None:
    assert flags_with(power_w=steady(130.0), sm_activity=steady(0.7)) == ()
    assert flags_with(power_w=steady(130.0), sm_activity=steady(0.1)) == ("stalled",)


def test_a_low_clock_explains_low_power() -> None:
    assert flags_with(power_w=steady(130.0), sm_clock_mhz=steady(345.0)) == ("slow_clock",)


def test_power_comes_from_the_energy_counter_where_there_is_one() -> None:
    # Samples still show the second before the block.
    lagging = replace(HEALTHY, power_w=steady(150.0), energy_j=960.0, sources={"energy_j": "counter"})
    assert power_of(lagging) == 480.0
    assert flags_of(lagging) == ()
    assert power_of(replace(lagging, sources={"energy_j": "power"})) == 150.0


@rows(("utilization", "expected"), [(0.79, ("idle",)), (0.8, ()), (0.0, ("idle",))])
def test_under_80_per_cent_is_idle(utilization: float, expected: tuple[str, ...]) -> None:
    assert flags_with(utilization=steady(utilization)) == expected


def test_a_gpu_that_idles_is_not_said_to_stall_or_to_be_slow() -> None:
    assert flags_with(utilization=steady(0.1), power_w=steady(72.0), sm_clock_mhz=steady(345.0)) == ("idle",)


@rows("reason", ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"])
def test_hardware_and_heat_throttle(reason: str) -> None:
    assert flags_with(throttle_reasons={reason: 0.1}) == ("throttled",)
    assert flags_with(throttle_reasons={reason: 0.05}) == ()


@rows("reason", ["sw_power_cap", "gpu_idle", "applications_clocks_setting", "sync_boost"])
def test_other_reasons_are_no_fault(reason: str) -> None:
    assert flags_with(throttle_reasons={reason: 1.0}) == ()


@rows(("clock_mhz", "expected"), [(980.0, ("slow_clock",)), (1000.0, ())])
def test_half_the_clock_under_load_is_slow(clock_mhz: float, expected: tuple[str, ...]) -> None:
    assert flags_with(sm_clock_mhz=steady(clock_mhz)) == expected


def test_several_flags_come_in_one_order() -> None:
    changes = {"sm_clock_mhz": steady(345.0), "throttle_reasons": {"hw_power_brake_slowdown": 1.0}}
    assert flags_with(**changes) == ("throttled", "slow_clock")
