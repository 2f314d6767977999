"""Records of node pairs are read strictly."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpscale.results.pair_record import PairMeasurement, pairs_of
from pytest_ddpscale.results.records import parse_strict_json, strict_json

SOUND = PairMeasurement(
    study="pairs", round=2, ranks=(1, 9), hosts=("n1", "n2"), local_ranks=(1, 1), devices=("GPU-a", "GPU-b"),
    message_bytes=32 * 2**20, iterations=20, busbw_gbps=41.5,
)  # fmt: skip


def test_a_pair_survives_json() -> None:
    data = parse_strict_json(strict_json(SOUND.as_json()))
    assert data["kind"] == "pair"
    assert PairMeasurement.from_json(data) == SOUND


def test_pairs_are_found_among_other_records_in_order() -> None:
    other = SOUND.as_json() | {"round": 0}
    found = pairs_of([SOUND.as_json(), {"kind": "startup", "rank": 0}, other])
    assert [pair.round for pair in found] == [2, 0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("study", 7),
        ("round", 1.0),
        ("round", True),
        ("ranks", [1]),
        ("ranks", [1, 2, 3]),
        ("ranks", [1, "2"]),
        ("ranks", [False, True]),
        ("ranks", 12),
        ("hosts", "n1"),
        ("hosts", ["n1", None]),
        ("local_ranks", [0, 0.0]),
        ("devices", ["cpu", 0]),
        ("message_bytes", "1024"),
        ("iterations", None),
        ("busbw_gbps", "fast"),
        ("busbw_gbps", True),
    ],
)
def test_a_value_of_another_type_is_refused(key: str, value: Any) -> None:
    with pytest.raises(TypeError, match=key):
        PairMeasurement.from_json(SOUND.as_json() | {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("round", -1),
        ("ranks", [-1, 3]),
        ("ranks", [3, 3]),
        ("local_ranks", [0, -1]),
        ("message_bytes", 0),
        ("iterations", 0),
        ("busbw_gbps", 0),
        ("busbw_gbps", -1.0),
        ("busbw_gbps", 1e7),
        ("busbw_gbps", float("nan")),
    ],
)
def test_an_impossible_number_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        PairMeasurement.from_json(SOUND.as_json() | {key: value})


def test_whole_numbers_are_bandwidths_too() -> None:
    assert PairMeasurement.from_json(SOUND.as_json() | {"busbw_gbps": 41}).busbw_gbps == 41


@pytest.mark.parametrize("key", ["ranks", "hosts", "busbw_gbps"])
def test_a_missing_key_is_refused(key: str) -> None:
    with pytest.raises(TypeError, match=key):
        PairMeasurement.from_json({name: value for name, value in SOUND.as_json().items() if name != key})


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(TypeError, match="speed"):
        PairMeasurement.from_json(SOUND.as_json() | {"speed": 1})
