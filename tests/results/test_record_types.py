"""Measurements whose JSON is sound and whose values are of another type than this program writes."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpscale.results.records import Measurement

SOUND = Measurement(
    study="weak/r", arm="ddp@2", round=3, rank=1, local_rank=1, host="node7", device="cpu", batch_size=4, steps=3,
    block_s=1.5, started_unix_s=10.0, step_s=(0.5, 0.5, 0.5), step_stdev_s=0.0, utilization=0.9, peak_memory_bytes=7,
).as_json()  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("study", 7),
        ("host", None),
        ("device", ["cpu"]),
        ("rank", "0"),
        ("rank", None),
        ("round", 1.5),
        ("steps", True),
        ("steps", "20"),
        ("batch_size", 4.0),
        ("block_s", None),
        ("block_s", "1.5"),
        ("started_unix_s", "now"),
        ("step_s", 3),
        ("step_s", ["0.5"]),
        ("step_s", [True]),
        ("step_stdev_s", "wide"),
        ("utilization", "high"),
        ("utilization", False),
        ("peak_memory_bytes", "much"),
        ("peak_memory_bytes", 1.5),
        ("single_sample", 1),
    ],
)
def test_a_value_of_another_type_is_refused(key: str, value: Any) -> None:
    with pytest.raises(TypeError):
        Measurement.from_json(SOUND | {key: value})


@pytest.mark.parametrize(
    ("key", "value"), [("block_s", 2), ("utilization", 1), ("utilization", None), ("step_s", []), ("step_s", [1, 0.5])]
)
def test_numbers_may_be_written_as_json_likes(key: str, value: Any) -> None:
    read = Measurement.from_json(SOUND | {key: value})
    assert getattr(read, key) == (tuple(value) if isinstance(value, list) else value)
