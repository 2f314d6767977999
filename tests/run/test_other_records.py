"""Transports, telemetry and profiles are read as strictly as blocks, and come apart rank by rank."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_ddpscale.run.column_record import joined
from pytest_ddpscale.run.record_lines import RecordReader, line_of
from pytest_ddpscale.run.telemetry import GpuReadings, TelemetryBlock
from pytest_ddpscale.run.transport_record import GangTransport, RankTransport, transports_of
from tests.builders.profiles import profile
from tests.builders.records import gang_on
from tests.builders.telemetry import telemetry_of
from tests.rows import rows

WHO = gang_on(["n1", "n2"], 2, "GPU-{}")
TRANSPORT: dict[str, Any] = {
    "kind": "transport", "study": "weak/r", "gang": 0, "ranks": [
        {
            "rank": 0, "network": "IB", "nvls": True, "channels": {"P2P/CUMEM": 24, "NET/IB/GDRDMA": 8, "NET/IB": 3},
            "channels_within_node": {"P2P/CUMEM": 24}, "channels_between_nodes": {"NET/IB/GDRDMA": 8},
            "unreadable": ["a line"],
        },
        {"rank": 2, "network": "IB"},
    ],
}  # fmt: skip
EMPTY = GpuReadings(started_unix_s=1000.0, ended_unix_s=1002.5)
FULL = GpuReadings(
    started_unix_s=1000.0, ended_unix_s=1002.0, polls=2, utilization=0.97,
    power_w=410.5, power_limit_w=500.0, idle_power_w=71.0, energy_j=1026.0, ecc_corrected=0,
    throttle_reasons={"sw_power_cap": 0.5}, pcie_generation=5,
    unreadable={"ecc_corrected": "Not Supported"},
)  # fmt: skip
TELEMETRY: dict[str, Any] = json.loads(
    line_of(joined(TelemetryBlock, [FULL, EMPTY], study="weak/r", arm="ddp@4", round=0, gang=0, ranks=(1, 0)))
)
PROFILE: dict[str, Any] = json.loads(line_of(profile("weak/r", "ddp@2", [(100, 60, 30)], [(40, 10)])))


def read(data: dict[str, Any]) -> Any:
    reader = RecordReader()
    reader.read(line_of(WHO))
    return reader.read(json.dumps(data).encode())


def refusal(data: dict[str, Any]) -> str:
    with pytest.raises(ValueError) as raised:
        read(data)
    return str(raised.value)


def connected(**changes: Any) -> dict[str, Any]:
    return {"ranks": [TRANSPORT["ranks"][0] | changes]}


def test_transports_come_apart_and_the_last_one_of_a_rank_counts() -> None:
    again = GangTransport(study="weak/r", gang=0, ranks=(RankTransport(rank=2, network="Socket"),))
    found = transports_of([WHO, read(TRANSPORT), again])
    assert [place.uuid for place in found] == ["GPU-0", "GPU-2"]
    first, second = found.values()
    assert (first.network, first.unreadable, first.channels_somewhere) == ("IB", ("a line",), {"NET/IB"})
    assert second is again.ranks[0]


def test_telemetry_comes_apart() -> None:
    found = telemetry_of([read(TELEMETRY)], {0: WHO})
    assert [(one.rank, one.host, one.local_rank, one.device) for one in found] == [
        (1, "n1", 1, "GPU-1"),
        (0, "n1", 0, "GPU-0"),
    ]
    for one, told in zip(found, (FULL, EMPTY), strict=True):
        assert {name: getattr(one, name) for name in told.__struct_fields__} == {
            name: getattr(told, name) for name in told.__struct_fields__
        }
    assert (found[1].utilization, found[1].throttle_reasons, found[1].ecc_corrected) == (None, None, None), "never zero"


@rows(
    ("data", "changes", "found"),
    [
        (TRANSPORT, connected(network=3), "got `int`"),
        (TRANSPORT, connected(channels={"P2P/CUMEM": 24, "SHM": -1}), "Expected `int` >= 0"),
        (TRANSPORT, connected(channels_within_node={"P2P/CUMEM": 25}), "expected at most the 24 that there are"),
        (TRANSPORT, {"ranks": [{"rank": 2}, {"rank": 2}]}, "expected each rank once"),
        (TRANSPORT, {"ranks": [{"rank": 4}]}, "rank 4 is named, but gang 0 has 4 ranks"),
        (TELEMETRY, {"round": -1}, "Expected `int` >= 0"),
        (TELEMETRY, {"ended_unix_s": 1000.0}, "a window ends before it began"),
        (TELEMETRY, {"energy_j": -0.1}, "Expected `float` >= 0.0"),
        (TELEMETRY, {"energy_j": [1.0]}, "energy_j has 1 values; expected 2"),
        (TELEMETRY, {"throttle_reasons": {"sw_power_cap": 1.5}}, "Expected `float` <= 1.0"),
        (TELEMETRY, {"utilization": [50.0, None]}, "Expected `float` <= 1.0"),
        (TELEMETRY, {"power_w": {"mean": 0.5}}, "Expected `float | array | null`, got `object`"),
        (TELEMETRY, {"ranks": [1, 4]}, "rank 4 is named, but gang 0 has 4 ranks"),
        (TELEMETRY, {"speed": 1}, "unknown field `speed`"),
        (PROFILE, {"speed": 1}, "unknown field"),
        (PROFILE, {"gang": 1}, "gang 1 was not announced before"),
        (PROFILE, {"rank": 4}, "rank 4 is named, but gang 0 has 4 ranks"),
        (PROFILE, {"compute_ms": [1.0, 2.0]}, "compute_ms has 2 values"),
        (PROFILE, {"compute_ms": [70.0]}, "expected them to add up"),
        (PROFILE, {"hidden_ms": [41.0]}, "expected no more"),
        (PROFILE, {"step_ms": [-1.0]}, ">= 0"),
        (PROFILE, {"problem": "none"}, "expected one of the two"),
        (PROFILE, {"buckets": [{"bytes": 0, "begins_ms": 1, "took_ms": 1, "hidden_ms": 1}]}, ">= 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(data: dict[str, Any], changes: dict[str, Any], found: str) -> None:
    read(data)
    assert found in refusal(data | changes)
