"""Records of telemetry are read strictly: what was not measured stays None, and an impossible number is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pytest_ddpscale.results.records import parse_strict_json, strict_json
from pytest_ddpscale.results.telemetry_record import Spread, Telemetry, telemetry_of

EMPTY = Telemetry("weak/r", "ddp@8", 2, 9, 1, "n2", "GPU-a", 1000.0, 1002.5)
FULL = dataclasses.replace(
    EMPTY, polls=2, utilization=Spread(0.97, 0.9, 1.0, 15), power_w=Spread(410.5, 380, 430, 120), power_limit_w=500.0,
    idle_power_w=71, sm_clock_mhz=Spread(1700, 1650, 1755, 30), sm_clock_max_mhz=1980.0,
    memory_used_bytes=Spread(7e10, 7e10, 7e10, 2), energy_j=1026.0, throttle_reasons={"sw_power_cap": 0.5},
    ecc_corrected=0, pcie_generation=5, pcie_width=16, nvlink_errors=0, nvlink_tx_bytes_per_s=1.5e11,
    sm_activity=Spread(0.6, 0.5, 0.7, 3), sources={"energy_j": "counter"}, unreadable={"pcie_replays": "Not Supported"},
)  # fmt: skip


@pytest.mark.parametrize("telemetry", [EMPTY, FULL], ids=["empty", "full"])
def test_telemetry_survives_json(telemetry: Telemetry) -> None:
    data = parse_strict_json(strict_json(telemetry.as_json()))
    assert data["kind"] == "telemetry"
    assert Telemetry.from_json(data) == telemetry


def test_what_was_not_read_is_none_and_never_zero() -> None:
    values = EMPTY.as_json()
    unknown = {key for key, value in values.items() if value is None}
    assert {"utilization", "throttle_reasons", "ecc_uncorrected", "energy_j", "nvlink_errors"} <= unknown


def test_telemetry_is_found_among_other_records_in_order() -> None:
    records = [EMPTY.as_json() | {"round": 1}, {"kind": "startup"}, EMPTY.as_json() | {"round": 0}]
    assert [one.round for one in telemetry_of(records)] == [1, 0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("device", None),
        ("round", True),
        ("rank", 1.0),
        ("started_unix_s", "1000"),
        ("utilization", 0.97),
        ("utilization", {"mean": "high", "minimum": 0.0, "maximum": 1.0, "samples": 3}),
        ("utilization", {"mean": 0.5, "minimum": 0.0, "maximum": 1.0}),
        ("utilization", {"mean": 0.5, "minimum": 0.0, "maximum": 1.0, "samples": 3, "sd": 0.1}),
        ("utilization", {"mean": 0.5, "minimum": 0.0, "maximum": 1.0, "samples": 3.0}),
        ("energy_j", "12"),
        ("energy_j", True),
        ("ecc_corrected", 1.0),
        ("throttle_reasons", ["sw_power_cap"]),
        ("throttle_reasons", {"sw_power_cap": True}),
        ("unreadable", {"energy_j": None}),
        ("speed", 1),
    ],
)
def test_a_value_of_another_type_is_refused(key: str, value: Any) -> None:
    with pytest.raises(TypeError):
        Telemetry.from_json(FULL.as_json() | {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("round", -1),
        ("polls", -1),
        ("ended_unix_s", 1000.0),
        ("ended_unix_s", float("inf")),
        ("utilization", {"mean": 50.0, "minimum": 0.0, "maximum": 97.0, "samples": 3}),
        ("utilization", {"mean": 0.5, "minimum": 0.6, "maximum": 1.0, "samples": 3}),
        ("power_w", {"mean": 0.5, "minimum": 0.0, "maximum": 1.0, "samples": 0}),
        ("power_w", {"mean": float("nan"), "minimum": 0.0, "maximum": 1.0, "samples": 1}),
        ("energy_j", -0.1),
        ("energy_j", float("inf")),
        ("ecc_corrected", -1),
        ("throttle_reasons", {"sw_power_cap": 1.5}),
    ],
)
def test_an_impossible_number_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        Telemetry.from_json(FULL.as_json() | {key: value})


@pytest.mark.parametrize("key", ["study", "device", "ended_unix_s"])
def test_a_missing_key_is_refused(key: str) -> None:
    with pytest.raises(TypeError, match=key):
        Telemetry.from_json({name: value for name, value in FULL.as_json().items() if name != key})
