"""Records of NCCL's transports are read strictly."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpscale.results.records import parse_strict_json, strict_json
from pytest_ddpscale.results.transport_record import Transport, transports_of

SOUND = Transport(
    host="n1", rank=9, local_rank=1, device="GPU-a", network="IB",
    channels={"P2P/CUMEM": 24, "NET/IB/GDRDMA": 8, "NET/IB": 3}, channels_within_node={"P2P/CUMEM": 24},
    channels_between_nodes={"NET/IB/GDRDMA": 8}, nvls=True, nccl_version="2.27.3+cuda12.9", unreadable=("a line",),
)  # fmt: skip


def test_a_transport_survives_json() -> None:
    data = parse_strict_json(strict_json(SOUND.as_json()))
    assert data["kind"] == "transport"
    assert Transport.from_json(data) == SOUND


def test_connections_that_lead_nobody_knows_where_are_what_is_left() -> None:
    assert SOUND.channels_somewhere == {"NET/IB": 3}


def test_the_last_record_of_each_rank_counts() -> None:
    other = SOUND.as_json() | {"rank": 2}
    found = transports_of([SOUND.as_json() | {"network": "Socket"}, {"kind": "startup"}, other, SOUND.as_json()])
    assert [(transport.rank, transport.network) for transport in found] == [(2, "IB"), (9, "IB")]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("host", None),
        ("rank", "9"),
        ("rank", True),
        ("network", 3),
        ("channels", ["P2P/CUMEM"]),
        ("channels", {"P2P/CUMEM": "24"}),
        ("channels_within_node", None),
        ("channels_between_nodes", {"NET/IB/GDRDMA": 0.5}),
        ("nvls", 1),
        ("nccl_version", 22703),
        ("problem", None),
        ("unreadable", "a line"),
        ("unreadable", [7]),
    ],
)
def test_a_value_of_another_type_is_refused(key: str, value: Any) -> None:
    with pytest.raises(TypeError, match=key):
        Transport.from_json(SOUND.as_json() | {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rank", -1),
        ("local_rank", -1),
        ("channels", {}),
        ("channels", {"P2P/CUMEM": 23, "NET/IB/GDRDMA": 8}),
        ("channels", {"P2P/CUMEM": 24, "NET/IB/GDRDMA": 8, "SHM": -1}),
        ("channels_within_node", {"P2P/CUMEM": 25}),
        ("channels_between_nodes", {"NET/Socket": 0}),
    ],
)
def test_an_impossible_number_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key.partition("_")[0]):
        Transport.from_json(SOUND.as_json() | {key: value})


@pytest.mark.parametrize("data", [{"rank": 0}, SOUND.as_json() | {"speed": 1}])
def test_missing_and_unknown_keys_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Transport.from_json(data)
