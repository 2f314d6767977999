"""Records of probes are read strictly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpscale.results.probe_record import ProbeMeasurement, probes_of
from pytest_ddpscale.results.records import parse_strict_json, strict_json

SOUND = ProbeMeasurement(
    study="probes", probe="send-recv-256mib", world_size=8, round=2, rank=9, local_rank=1, host="n1", device="GPU-a",
    work=256.0 * 2**20, iterations=20, seconds=0.25, started_unix_s=1.7e9, is_correct=True, peer_rank=12,
)  # fmt: skip


def test_a_measurement_survives_json() -> None:
    data = parse_strict_json(strict_json(SOUND.as_json()))
    assert data["kind"] == "probe"
    assert ProbeMeasurement.from_json(data) == SOUND


def test_probes_are_found_among_other_records_in_order() -> None:
    other = SOUND.as_json() | {"round": 0}
    found = probes_of([SOUND.as_json(), {"kind": "startup", "rank": 0}, other])
    assert [one.round for one in found] == [2, 0]


def test_work_per_second_counts_all_iterations() -> None:
    assert SOUND.per_second == 256 * 2**20 * 20 / 0.25


def test_a_probe_without_a_peer_is_as_sound() -> None:
    alone = replace(SOUND, probe="matmul-bf16", world_size=1, peer_rank=None)
    data = {key: value for key, value in alone.as_json().items() if key != "peer_rank"}
    assert ProbeMeasurement.from_json(data) == alone


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("study", 7),
        ("host", None),
        ("device", 0),
        ("round", 1.0),
        ("rank", True),
        ("work", "much"),
        ("iterations", None),
        ("started_unix_s", "now"),
        ("is_correct", 1),
        ("is_correct", None),
        ("peer_rank", 2.0),
    ],
)
def test_a_value_of_another_type_is_refused(key: str, value: Any) -> None:
    with pytest.raises(TypeError):
        ProbeMeasurement.from_json(SOUND.as_json() | {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("probe", "sleep"),
        ("world_size", 1),
        ("round", -1),
        ("rank", -1),
        ("local_rank", -1),
        ("work", 0),
        ("work", float("inf")),
        ("iterations", 0),
        ("seconds", 0.0),
        ("seconds", float("nan")),
        ("peer_rank", 9),
        ("peer_rank", -1),
        ("peer_rank", None),
    ],
)
def test_an_impossible_value_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|takes at least"):
        ProbeMeasurement.from_json(SOUND.as_json() | {key: value})


def test_only_a_send_recv_has_a_peer() -> None:
    with pytest.raises(ValueError, match="peer_rank=12"):
        replace(SOUND, probe="all-reduce-32mib")


@pytest.mark.parametrize("key", ["probe", "seconds", "is_correct"])
def test_a_missing_key_is_refused(key: str) -> None:
    with pytest.raises(TypeError, match=key):
        ProbeMeasurement.from_json({name: value for name, value in SOUND.as_json().items() if name != key})


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(TypeError, match="speed"):
        ProbeMeasurement.from_json(SOUND.as_json() | {"speed": 1})
