"""Records of measurements.jsonl read themselves: what cannot be is refused as it is read, with a sentence."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.run.block import MOST_SAMPLES_PER_S, Block, RankBlock, step_bytes
from pytest_ddpscale.run.column_record import joined
from pytest_ddpscale.run.readings import READINGS, SERIES
from pytest_ddpscale.run.record_lines import RecordReader, line_of
from pytest_ddpscale.run.records import StudyEnd
from tests.builders.measurements import measurements_of
from tests.builders.records import gang_on
from tests.rows import rows

RANKS = 3
WHO = gang_on(["n1"], 3, "GPU-{}", 2)
STEPS = st.lists(st.floats(2**-20, 2**20, width=32), min_size=4, max_size=4)
PARTS = st.builds(
    RankBlock,
    rank=st.just(0),
    group=st.integers(0, 9),
    work=st.just(4.0),
    began_unix_s=st.floats(0, 7.3e9),
    seconds=st.floats(min_value=100.0, max_value=1e7),
    readings=st.fixed_dictionaries(
        {"skipped_steps": st.integers(0, 4)},
        optional={
            "utilization": st.none() | st.floats(0, 1),
            "peak_memory_bytes": st.none() | st.integers(2**20, 2**40),
            "energy_j": st.none() | st.floats(0, 1e12),
        },
    ),
    series=STEPS.map(lambda steps: {"step_s": step_bytes(steps)}),
    digest=st.none() | st.text("0123456789abcdef", min_size=16, max_size=16),
)
SOUND: dict[str, Any] = {
    "kind": "timed", "study": "weak/r", "arm": "ddp@3", "round": 3, "turn": 1, "gang": 2, "ranks": [0, 1, 2],
    "groups": [0, 0, 1], "count": 4, "work": 32, "began_unix_s": 10.0, "seconds": [4.0, 4.1, 4.2],
    "readings": {"utilization": [0.9, None, 1], "peak_memory_bytes": 2**30, "energy_j": 7, "is_correct": True},
    "series": {"step_s": "AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/"},
    "digests": f"{10:016x}{10:016x}{11:016x}",
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
    block = joined(Block, said, study="weak/r", arm="ddp@3", round=0, gang=2, count=4)
    line = line_of(block)
    assert line.count(b"\n") == 1
    again = read(line)
    assert line_of(again) == line
    assert again.each("ranks").tolist() == [part.rank for part in said]
    for name in READINGS:
        known = [part.readings.get(name) for part in said]
        assert [None if value != value else value for value in again.each(name).tolist()] == known
    for name in SERIES:
        assert again.each(name).tobytes() == b"".join(part.series.get(name, b"") for part in said)
    assert [f"{one & (2**64 - 1):016x}" for one in again.each("digest").tolist()] == [
        one.digest or "0" * 16 for one in said
    ]


def test_what_all_ranks_have_alike_stands_there_once() -> None:
    block = read(SOUND)
    assert block.readings["peak_memory_bytes"] == 2**30
    assert [one.peak_memory_bytes for one in measurements_of([WHO, block])] == [2**30] * RANKS


def test_the_deviation_of_steps_is_that_of_a_sample() -> None:
    steps = step_bytes([1.0, 2.0, 3.0, 4.0])
    block = msgspec.structs.replace(
        read(SOUND), ranks=(1,), groups=0, seconds=10.0, series={"step_s": steps}, readings={}, digests=None
    )
    (one,) = measurements_of([WHO, block])
    assert one.step_stdev_s == pytest.approx(math.sqrt(5 / 3))


def waits(seconds: float) -> dict[str, Any]:
    """Of three ranks with four steps."""
    return {"series": {"waited_s": base64.b64encode(step_bytes([seconds] * 12)).decode()}}


@rows(
    ("changes", "found"),
    [
        ({"count": 0}, "Expected `int` >= 1 - at `$.count`"),
        ({"count": True}, "got `bool` - at `$.count`"),
        ({"count": 10**40}, "Expected `int` <= 9007199254740992"),
        ({"seconds": 0.0}, "Expected `float` > 0.0"),
        ({"seconds": [4.0, 4.0, -1e300]}, "Expected `float` > 0.0 - at `$.seconds[2]`"),
        ({"seconds": [4.0, 4.0]}, "seconds has 2 values; expected 3, one for each rank"),
        ({"seconds": 1e308}, "Expected `float` <= 10000000.0"),
        ({"work": 0}, "Expected `float` > 0.0"),
        ({"began_unix_s": -1.0}, "Expected `float` >= 0.0"),
        ({"groups": [0, 0]}, "groups has 2 values; expected 3, one for each rank"),
        ({"groups": -1}, "Expected `int` >= 0"),
        ({"turn": -1}, "Expected `int` >= 0"),
        ({"series": {"step_s": [1.0, 2.0]}}, "Expected `bytes`, got `array` - at `$.series[...]`"),
        ({"series": {"step_s": "!!"}}, "Invalid base64"),
        ({"series": {"step_s": "AACAPw=="}}, "4 bytes of step_s; expected 4 for each of 3 x 4"),
        ({"series": {"waited_s": "AACAPw=="}}, "4 bytes of waited_s; expected 4 for each of 3 x 4"),
        ({"series": {"paused_s": "AACAPw=="}}, "unknown name 'paused_s'; expected one of step_s, waited_s"),
        ({"count": [4, 4, 4]}, "48 bytes of step_s; expected 4 for each of 3 x 4"),
        (waits(float("nan")), "a wait for data (waited_s) is negative or not finite"),
        (waits(-0.5), "a wait for data (waited_s) is negative or not finite"),
        ({"readings": {"utilization": 5.0}}, "utilization of a rank is out of range; expected 0 to 1"),
        ({"readings": {"utilization": [0.5, -1, 0.5]}}, "utilization of a rank is out of range"),
        ({"readings": {"utilization": "all"}}, "got `str`"),
        ({"readings": {"energy_j": -0.5}}, "energy_j of a rank is out of range; expected 0 to 1e+12 J"),
        ({"readings": {"energy_j": [1, 2, 3, 4]}}, "energy_j has 4 values; expected 3"),
        ({"readings": {"peak_memory_bytes": 1}}, "peak_memory_bytes of a rank is out of range"),
        ({"readings": {"peak_memory_bytes": 2**50}}, "peak_memory_bytes of a rank is out of range"),
        ({"readings": {"utilization": 10**400}}, "Expected `int` <="),
        ({"readings": {"energy_j": [1.0, 2**53 + 1, 1.0]}}, "Expected `int` <="),
        ({"readings": {"forward_s": -0.5}}, "forward_s of a rank is out of range; expected 0 to 1e+07 s"),
        ({"unread": {"colour": "none"}}, "unknown name 'colour'; expected one of utilization, energy_j"),
        ({"unread": {"forward_s": ["", "why"]}}, "forward_s has 2 values; expected 3"),
        ({"unread": {"forward_s": "x" * 1001}}, "length <= 1000"),
        ({"readings": {"skipped_steps": 5}}, "skipped_steps=5; expected at most 4 steps"),
        ({"readings": {"skipped_steps": [0, 0, -1]}}, "skipped_steps of a rank is out of range"),
        ({"readings": {"skipped_steps": [0, None, 1]}}, "skipped_steps of a rank is out of range"),
        ({"readings": {"skipped_steps": 0.5}}, "skipped_steps of a rank is out of range"),
        ({"readings": {"is_correct": 1}}, "is_correct of a rank is out of range; expected 0 to 1 (true or false)"),
        ({"readings": {"is_correct": [True, None, True]}}, "is_correct of a rank is out of range"),
        ({"readings": {"mood": 1}}, "unknown name 'mood'; expected one of utilization, energy_j"),
        ({"digests": "c0ffee"}, "at `$.digests`"),
        ({"digests": "0" * 32}, "digests has 32 digits; expected 16 for each of 3 ranks"),
        ({"ranks": []}, "Expected `array` of length >= 1"),
        ({"ranks": [0, 1, 1]}, "ranks has 3 values, but 2 different ones; expected each rank once"),
        ({"ranks": [0, 1, 3]}, "rank 3 is named, but gang 2 has 3 ranks"),
        ({"gang": 1}, "gang 1 was not announced before"),
        ({"round": -1}, "Expected `int` >= 0"),
        ({"study": 7}, "Expected `str`, got `int` - at `$.study`"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"kind": "timde"}, "Invalid value 'timde' - at `$.kind`"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused(changes: dict[str, Any], found: str) -> None:
    assert found in refusal(SOUND | changes)


OPTIONAL = {"turn", "groups", "readings", "series", "digests"}


@rows("key", sorted(set(SOUND) - OPTIONAL))
def test_a_missing_field_is_refused(key: str) -> None:
    assert f"missing required field `{key}`" in refusal({name: value for name, value in SOUND.items() if name != key})


@rows(
    ("change", "found"),
    [
        ({"seconds": 5e-324}, "are inf samples per second"),
        ({"seconds": 1e-300}, "are 1.28e+302 samples per second"),
        ({"seconds": [1.0, 1.0, 1e-7]}, "seconds=1e-07 are 1.28e+09 samples per second"),
        ({"work": 1e15}, "samples per second; expected at most 1e+09"),
        ({"work": 1e20, "arm": "matmul-bf16"}, "per second; expected at most 1e+18"),
    ],
)
def test_an_absurd_pace_is_refused(change: dict[str, Any], found: str) -> None:
    assert found in refusal(SOUND | change)


@rows("change", [{"work": MOST_SAMPLES_PER_S}, {"work": 1e18, "arm": "all-reduce-32mib@2"}])
def test_the_fastest_pace_that_may_be_is_taken(change: dict[str, Any]) -> None:
    assert isinstance(read(SOUND | {"seconds": 4} | change), Block)


@rows(
    "line",
    [b"", b"[]", b"3", b"null", b'"timed"', b"{", b"\xff", b'{"kind":"timed"', b"[" * 100_000, b'{"a":' * 100_000],
)
def test_a_line_that_is_no_record_is_refused(line: bytes) -> None:
    assert refusal(line)


@rows("word", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 5000])
def test_numbers_that_are_none_are_refused(word: str) -> None:
    assert refusal(json.dumps(SOUND | {"work": "WORD"}).replace('"WORD"', word).encode())


@rows("reason", ["", "done", "Error", None, 3])
def test_a_study_ends_for_a_reason_that_is_known(reason: Any) -> None:
    assert "at `$.reason`" in refusal({"kind": "study_end", "study": "weak/r", "reason": reason})
    assert "missing required field `reason`" in refusal({"kind": "study_end", "study": "weak/r"})


def test_a_record_says_its_kind() -> None:
    assert line_of(StudyEnd("weak/r", "budget")) == b'{"kind":"study_end","study":"weak/r","reason":"budget"}\n'


def test_a_gang_announces_itself_once() -> None:
    assert refusal(line_of(WHO)) == "a second gang 2"


@rows("place", [{"host": "n1", "uuid": "GPU-0"}, {"host": "n1", "local_rank": 0}])
def test_a_rank_has_a_local_rank_and_a_device(place: dict[str, Any]) -> None:
    said = {"kind": "gang", "gang": 3, "ranks": [{"place": place}]}
    assert "place has no local rank or no device (uuid) - at `$.ranks[0]`" in refusal(said)


def test_why_a_rank_lacks_a_reading_is_joined_and_kept() -> None:
    def part(rank: int, **said: Any) -> RankBlock:
        return RankBlock(rank=rank, work=4.0, began_unix_s=1.0, seconds=2.0, **said)

    parts = [part(0, readings={"forward_s": 0.5}), part(1, unread={"forward_s": "no hooks"})]
    block = joined(Block, parts, study="weak/r", arm="ddp@2", round=0, gang=2, count=4)
    assert block.each("forward_s")[0] == 0.5
    assert block.unread == {"forward_s": ("", "no hooks")}
    again = read(line_of(block))
    assert again.unread == block.unread
    usual = joined(Block, parts[:1], study="weak/r", arm="ddp@1", round=0, gang=2, count=4)
    assert b"unread" not in line_of(usual)
