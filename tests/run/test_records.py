"""Records of measurements.jsonl read themselves: what cannot be is refused as it is read, with a sentence."""

from __future__ import annotations

import base64
import json
import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.run.record_lines import RecordReader, line_of
from pytest_ddpscale.run.records import (
    MOST_SAMPLES_PER_S,
    Block,
    GangRecord,
    RankBlock,
    StudyEnd,
    joined_block,
    step_bytes,
)
from tests.builders.measurements import Measurement, measurements_of
from tests.rows import rows

# Half a surrogate pair cannot be written as UTF-8, and no host is called so.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
RANKS = 3
WHO = GangRecord(gang=2, hosts=("n1", "n1", "n2"), local_ranks=(0, 1, 0), devices=("GPU-0", "GPU-1", "GPU-2"))
STEPS = st.lists(st.floats(2**-20, 2**20, width=32), min_size=4, max_size=4)
PARTS = st.builds(
    RankBlock,
    rank=st.just(0),
    started_unix_s=st.floats(0, 1e11),
    block_s=st.floats(min_value=100.0, max_value=1e7),  # no more than 1e9 samples/s whatever the batch
    step_s=STEPS.map(step_bytes),
    utilization=st.none() | st.floats(0, 1),
    peak_memory_bytes=st.none() | st.integers(2**20, 2**40),
    skipped_steps=st.integers(0, 4),
    parameters_checksum=st.none() | st.text("0123456789abcdef", min_size=16, max_size=16),
    energy_j=st.none() | st.floats(0, 1e12),
)
SOUND: dict[str, Any] = {
    "kind": "block", "study": "weak/r", "arm": "ddp@3", "round": 3, "gang": 2, "batch_size": 32, "steps": 4,
    "ranks": [0, 1, 2], "started_unix_s": 10.0, "block_s": [4.0, 4.1, 4.2], "utilization": [0.9, None, 1],
    "step_s": "AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/", "peak_memory_bytes": 2**30,
    "energy_j": 7, "parameters_checksum": f"{10:016x}{10:016x}{11:016x}",
}  # fmt: skip


def read(data: Any) -> Any:
    """A line, as a run's own reader takes it once the gang has announced itself."""
    reader = RecordReader()
    reader.read(line_of(WHO))
    return reader.read(data if isinstance(data, bytes) else json.dumps(data).encode())


def refusal(data: Any) -> str:
    with pytest.raises(ValueError) as raised:
        read(data)
    return str(raised.value)


@given(st.lists(PARTS, min_size=RANKS, max_size=RANKS))
def test_what_ranks_say_survives_its_line(parts: list[RankBlock]) -> None:
    said = [msgspec.structs.replace(part, rank=rank) for rank, part in enumerate(parts)]
    block = joined_block(said, study="weak/r", arm="ddp@3", round=0, gang=2, batch_size=4, steps=4)
    line = line_of(block)
    assert line.count(b"\n") == 1
    again = read(line)
    assert again == block
    for one, part in zip(measurements_of([WHO, again]), said, strict=True):
        assert (one.rank, one.device) == (part.rank, WHO.devices[part.rank])
        assert step_bytes(one.step_s) == part.step_s
        for name in ("block_s", "started_unix_s", "utilization", "peak_memory_bytes", "skipped_steps", "energy_j"):
            assert getattr(one, name) == getattr(part, name)


def test_what_all_ranks_have_alike_stands_there_once() -> None:
    block = read(SOUND)
    assert (block.peak_memory_bytes, block.skipped_steps) == (2**30, 0)
    assert [one.peak_memory_bytes for one in measurements_of([WHO, block])] == [2**30] * RANKS


def test_the_deviation_of_steps_is_that_of_a_sample() -> None:
    steps = step_bytes([1.0, 2.0, 3.0, 4.0])
    block = msgspec.structs.replace(
        read(SOUND), ranks=(1,), block_s=10.0, step_s=steps, utilization=0.5, parameters_checksum=None
    )
    (one,) = measurements_of([WHO, block])
    assert one.step_stdev_s == pytest.approx(math.sqrt(5 / 3))


def test_throughput_is_images_over_time() -> None:
    one = Measurement("s", "alone", 0, 0, 0, "n", "cpu", 32, 10, 4.0, 1.0)
    assert one.throughput_samples_per_s == 80.0


def waits(seconds: float) -> str:
    """Of three ranks with four steps."""
    return base64.b64encode(step_bytes([seconds] * 12)).decode()


@rows(
    ("changes", "found"),
    [
        ({"steps": 0}, "Expected `int` >= 1 - at `$.steps`"),
        ({"steps": True}, "got `bool` - at `$.steps`"),
        ({"steps": 10**40}, "Expected `int` <= 9007199254740992"),
        ({"block_s": 0.0}, "Expected `float` > 0.0"),
        ({"block_s": [4.0, 4.0, -1e300]}, "Expected `float` > 0.0 - at `$.block_s[2]`"),
        ({"block_s": [4.0, 4.0]}, "block_s has 2 values; expected 3, one for each rank"),
        ({"block_s": 1e308}, "Expected `float` <= 10000000.0"),
        ({"started_unix_s": -1.0}, "Expected `float` >= 0.0"),
        ({"step_s": [1.0, 2.0]}, "Expected `bytes`, got `array` - at `$.step_s`"),
        ({"step_s": "!!"}, "Invalid base64"),
        ({"step_s": "AACAPw=="}, "4 bytes of step times (step_s); expected 4 for each of 3 x 4"),
        ({"waited_s": "AACAPw=="}, "4 bytes of seconds waited for data (waited_s); expected as many as of step times"),
        ({"waited_s": waits(float("nan"))}, "a wait for data (waited_s) is negative or not finite"),
        ({"waited_s": waits(-0.5)}, "a wait for data (waited_s) is negative or not finite"),
        ({"waited_s": waits(1e3)}, "a rank waited longer for data (waited_s) than its block lasted (block_s)"),
        ({"utilization": 5.0}, "Expected `float` <= 1.0 - at `$.utilization`"),
        ({"utilization": [0.5, -1, 0.5]}, "Expected `float` >= 0.0 - at `$.utilization[1]`"),
        ({"energy_j": -0.5}, "Expected `float` >= 0.0"),
        ({"energy_j": [1, 2, 3, 4]}, "energy_j has 4 values; expected 3"),
        ({"peak_memory_bytes": 1}, "Expected `float` >= 1048576"),
        ({"peak_memory_bytes": 2**50}, "Expected `float` <= 140737488355328"),
        ({"skipped_steps": 5}, "skipped_steps=5; expected at most 4 steps"),
        ({"skipped_steps": [0, 0, -1]}, "Expected `int` >= 0"),
        ({"ranks": []}, "Expected `array` of length >= 1"),
        ({"ranks": [0, 1, 1]}, "ranks has 3 values, but 2 different ones; expected each rank once"),
        ({"ranks": [0, 1, 3]}, "rank 3 is named, but gang 2 has 3 ranks"),
        ({"gang": 1}, "gang 1 was not announced before"),
        ({"round": -1}, "Expected `int` >= 0"),
        ({"study": 7}, "Expected `str`, got `int` - at `$.study`"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"kind": "blok"}, "Invalid value 'blok' - at `$.kind`"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused(changes: dict[str, Any], found: str) -> None:
    assert found in refusal(SOUND | changes)


OPTIONAL = {"step_s", "utilization", "peak_memory_bytes", "energy_j", "parameters_checksum"}


@rows("key", sorted(set(SOUND) - OPTIONAL))
def test_a_missing_field_is_refused(key: str) -> None:
    assert f"missing required field `{key}`" in refusal({name: value for name, value in SOUND.items() if name != key})


@rows(
    ("change", "found"),
    [
        ({"block_s": 5e-324}, "are inf samples/s"),
        ({"block_s": 1e-300}, "are 1.28e+302 samples/s"),
        ({"block_s": [1.0, 1.0, 1e-7]}, "block_s=1e-07 are 1.28e+09 samples/s"),
        ({"batch_size": 10**15}, "samples/s; expected at most 1e+09"),
    ],
)
def test_an_absurd_throughput_is_refused(change: dict[str, Any], found: str) -> None:
    assert found in refusal(SOUND | change)


def test_the_fastest_throughput_that_may_be_is_taken() -> None:
    assert isinstance(read(SOUND | {"batch_size": round(MOST_SAMPLES_PER_S), "block_s": 4}), Block)


@rows(
    "line",
    [b"", b"[]", b"3", b"null", b'"block"', b"{", b"\xff", b'{"kind":"block"', b"[" * 100_000, b'{"a":' * 100_000],
)
def test_a_line_that_is_no_record_is_refused(line: bytes) -> None:
    assert refusal(line)


@rows("word", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 5000])
def test_numbers_that_are_none_are_refused(word: str) -> None:
    assert refusal(json.dumps(SOUND | {"energy_j": "WORD"}).replace('"WORD"', word).encode())


@rows("reason", ["", "done", "Error", None, 3])
def test_a_study_ends_for_a_reason_that_is_known(reason: Any) -> None:
    assert "at `$.reason`" in refusal({"kind": "study_end", "study": "weak/r", "reason": reason})
    assert "missing required field `reason`" in refusal({"kind": "study_end", "study": "weak/r"})


def test_a_record_says_its_kind() -> None:
    assert line_of(StudyEnd("weak/r", "budget")) == b'{"kind":"study_end","study":"weak/r","reason":"budget"}\n'


def test_a_gang_announces_itself_once() -> None:
    assert refusal(line_of(WHO)) == "a second gang 2"


def test_columns_of_a_gang_are_as_long_as_its_hosts() -> None:
    line = re.sub(rb'"gang":2', b'"gang":3', line_of(WHO)).replace(b',"GPU-2"', b"")
    assert refusal(line) == "devices has 2 values; expected 3, one for each rank"
