from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.results.records import MOST_IMG_PER_S, Measurement, StudyEnd, parse_strict_json, strict_json

# Half a surrogate pair cannot be written as UTF-8, and no host is called so.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
POSITIVE = st.floats(min_value=1e-9, max_value=1e9)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
MEASUREMENTS = st.builds(
    Measurement,
    study=TEXT,
    arm=st.sampled_from(["alone", "ddp@2", "ddp@8"]),
    round=st.integers(0, 1000),
    rank=st.integers(0, 4096),
    local_rank=st.integers(0, 16),
    host=TEXT,
    device=TEXT,
    batch_size=st.integers(1, 1 << 16),
    steps=st.integers(1, 1 << 20),
    block_s=st.floats(min_value=100.0, max_value=1e9),  # no more than 1e9 img/s whatever the batch and steps
    started_unix_s=st.floats(0, 1e11),
    step_s=st.lists(POSITIVE, max_size=5).map(tuple),
    step_stdev_s=st.none() | POSITIVE,
    utilization=st.none() | st.floats(0, 1),
    peak_memory_bytes=st.none() | st.integers(0, 1 << 40),
    energy_j=st.none() | st.floats(0, 1e12),
    single_sample=st.booleans(),
)


def measurement(**changes: Any) -> Measurement:
    fields: dict[str, Any] = {
        "study": "weak/r", "arm": "alone", "round": 0, "rank": 0, "local_rank": 0, "host": "n1", "device": "cpu",
        "batch_size": 32, "steps": 10, "block_s": 4.0, "started_unix_s": 1.0,
    }  # fmt: skip
    return Measurement(**(fields | changes))


@given(MEASUREMENTS)
def test_a_measurement_survives_its_json_line(original: Measurement) -> None:
    line = strict_json(original.as_json())
    assert "\n" not in line
    assert Measurement.from_json(parse_strict_json(line)) == original


@given(MEASUREMENTS)
def test_throughput_is_images_over_time(original: Measurement) -> None:
    assert original.throughput_img_per_s * original.block_s == pytest.approx(original.batch_size * original.steps)


def test_a_record_says_its_kind() -> None:
    assert measurement().as_json()["kind"] == "measurement"
    assert StudyEnd("weak/r", "budget").as_json() == {
        "kind": "study_end", "study": "weak/r", "reason": "budget", "message": ""
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"steps": 0}, {"steps": -1}, {"block_s": 0.0}, {"block_s": -1.0}, {"block_s": math.nan}, {"block_s": math.inf}],
)
def test_an_impossible_block_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected both positive and finite"):
        measurement(**change)


@pytest.mark.parametrize("energy_j", [-0.5, math.nan, math.inf, -math.inf])
def test_an_impossible_energy_is_refused(energy_j: float) -> None:
    with pytest.raises(ValueError, match=r"^energy_j=.*; expected none or a finite number from 0 up$"):
        measurement(energy_j=energy_j)


@pytest.mark.parametrize("energy_j", ["12", True, [1.0]])
def test_energy_of_another_type_is_refused(energy_j: Any) -> None:
    with pytest.raises(TypeError):
        Measurement.from_json(measurement().as_json() | {"energy_j": energy_j})


def test_a_measurement_of_an_earlier_version_has_no_energy() -> None:
    data = measurement(energy_j=3.0).as_json()
    del data["energy_j"]
    assert Measurement.from_json(data).energy_j is None


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"block_s": 5e-324}, "are inf img/s"),
        ({"block_s": 1e-300}, "are 3.2e+302 img/s"),
        ({"block_s": 3.1e-7}, "are 1.03226e+09 img/s"),
        ({"steps": 10**40}, "are 8e+40 img/s"),
        ({"batch_size": 10**40}, "are 2.5e+40 img/s"),
    ],
)
def test_an_absurd_throughput_is_refused(change: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=re.escape(found) + r"; expected at most 1e\+09$"):
        measurement(**change)


def test_the_fastest_throughput_that_may_be_is_taken() -> None:
    assert measurement(batch_size=10**6, steps=10**3, block_s=1.0).throughput_img_per_s == MOST_IMG_PER_S


def test_an_unknown_or_missing_key_is_refused() -> None:
    data = measurement().as_json()
    with pytest.raises(TypeError, match="colour"):
        Measurement.from_json(data | {"colour": "red"})
    with pytest.raises(TypeError, match="block_s"):
        Measurement.from_json({key: value for key, value in data.items() if key != "block_s"})


@given(JSON_VALUES)
def test_strict_json_is_one_line_that_reads_back_the_same(value: Any) -> None:
    text = strict_json(value)
    assert "\n" not in text
    assert parse_strict_json(text) == value == json.loads(text)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_word_for_is_not_written(number: float) -> None:
    with pytest.raises(ValueError):
        strict_json({"value": [number]})


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_json_has_no_word_for_is_not_read(word: str) -> None:
    with pytest.raises(ValueError, match=f"{word} is not JSON"):
        parse_strict_json(f'{{"value": [{word}]}}')
