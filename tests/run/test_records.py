"""Lines of measurements.jsonl are read as they were written, and what cannot be is refused with a sentence."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.run.block import MOST_SAMPLES_PER_S, READINGS, SERIES, Block, RankBlock, joined, step_bytes
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.record_lines import AnyRecord, RecordReader, line_of
from pytest_ddpscale.run.records import GangTransport, RankTransport, StudyEnd
from pytest_ddpscale.run.survey_record import (
    GpuProcess,
    InfiniBandPort,
    PostMortem,
    RemappedRows,
    Survey,
    SurveyedGpu,
    surveys_of,
)
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.run.telemetry import GpuReadings, joined_readings
from tests.builders.profiles import profile
from tests.builders.records import gang_on
from tests.builders.telemetry import telemetry_of
from tests.rows import rows
from tests.run.sound_run import PLAN

RANKS = 3
WHO = gang_on(["n1", "n2"], 2, "GPU-{}")
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
BLOCK: dict[str, Any] = {
    "kind": "timed", "study": "weak/r", "arm": "ddp@3", "round": 3, "turn": 1, "gang": 0, "ranks": [0, 1, 2],
    "groups": [0, 0, 1], "count": 4, "work": 32, "began_unix_s": 10.0, "seconds": [4.0, 4.1, 4.2],
    "readings": {"utilization": [0.9, None, 1], "peak_memory_bytes": 2**30, "energy_j": 7, "is_correct": True},
    "series": {"step_s": "AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/"},
    "digests": f"{10:016x}{10:016x}{11:016x}",
}  # fmt: skip
RANK: dict[str, Any] = {
    "rank": 0, "network": "IB", "channels": {"P2P/CUMEM": 24, "NET/IB/GDRDMA": 8, "NET/IB": 3}, "nvls": True,
    "channels_within_node": {"P2P/CUMEM": 24}, "channels_between_nodes": {"NET/IB/GDRDMA": 8}, "unreadable": ["what?"],
}  # fmt: skip
TRANSPORT = {"kind": "transport", "study": "weak/r", "gang": 0, "ranks": [RANK, {"rank": 2, "network": "IB"}]}
EMPTY = GpuReadings(started_unix_s=1000.0, ended_unix_s=1002.5)
FULL = GpuReadings(
    started_unix_s=1000.0, ended_unix_s=1002.0, polls=2, utilization=0.97, power_w=410.5, energy_j=1026.0,
    ecc_corrected=0, throttle_reasons={"sw_power_cap": 0.5}, unreadable={"ecc_corrected": "Not Supported"},
)  # fmt: skip
TELEMETRY: dict[str, Any] = json.loads(
    line_of(joined_readings([FULL, EMPTY], study="weak/r", arm="ddp@4", round=0, gang=0, ranks=(1, 0)))
)
GANG: dict[str, Any] = json.loads(line_of(gang_on(["n1"], 1, number=1)))
PROFILE: dict[str, Any] = json.loads(line_of(profile("weak/r", "ddp@2", [(100, 60, 30)], [(40, 10)])))
GPU = SurveyedGpu(
    index=3, uuid="GPU-1", name="NVIDIA A100-SXM4-80GB", pci_bus_id="00000000:17:00.0", pci_device_id="20b2",
    compute_capability="8.0", memory_bytes=8 * 10**10, remapped_rows=RemappedRows(0, pending=True, failed=False),
    processes=(GpuProcess(7, "python", None),), unreadable={"retired_pages_pending": "Not Supported"},
)  # fmt: skip
SURVEY = Survey(
    "n1", 1.5, has_driver=True, gpus=(GPU, SurveyedGpu(4, "", "", "", "", problem="GPU is lost")),
    versions={"driver": "570.86.15", "nccl": None},
    infiniband=(InfiniBandPort("mlx5_0", 1, "ACTIVE", "InfiniBand", 400.0),),
)  # fmt: skip
END: dict[str, Any] = {"kind": "study_end", "study": "weak/r", "reason": "budget"}
NODE: dict[str, Any] = json.loads(line_of(SURVEY))


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
    block = joined(said, study="weak/r", arm="ddp@3", round=0, gang=0, count=4)
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


def test_why_a_rank_lacks_a_reading_is_joined_and_kept() -> None:
    said: dict[str, Any] = {"work": 4.0, "began_unix_s": 1.0, "seconds": 2.0}
    parts = [
        RankBlock(rank=0, readings={"forward_s": 0.5}, **said), RankBlock(rank=1, unread={"forward_s": "why"}, **said)
    ]  # fmt: skip
    block = joined(parts, study="weak/r", arm="ddp@2", round=0, gang=0, count=4)
    assert block.each("forward_s")[0] == 0.5
    assert read(line_of(block)).unread == block.unread == {"forward_s": ("", "why")}


def test_transports_have_places_and_the_last_one_of_a_rank_counts() -> None:
    again = GangTransport(study="weak/r", gang=0, ranks=(RankTransport(rank=2, network="Socket"),))
    found = evidence_of(PLAN, Columns(), [WHO, read(TRANSPORT), again]).transports
    assert [(place.uuid, one.network) for place, one in found.items()] == [("GPU-0", "IB"), ("GPU-2", "Socket")]


def test_telemetry_comes_apart() -> None:
    found = telemetry_of([read(TELEMETRY)], {0: WHO})
    assert [(one.rank, one.host, one.local_rank, one.device) for one in found] == [
        (1, "n1", 1, "GPU-1"),
        (0, "n1", 0, "GPU-0"),
    ]
    for one, told in zip(found, (FULL, EMPTY), strict=True):
        assert [getattr(one, name) for name in told.__struct_fields__] == [*msgspec.structs.astuple(told)]


def test_surveys_are_read_by_their_node_too_and_the_last_one_counts() -> None:
    assert read(line_of(SURVEY)) == SURVEY
    assert read(line_of(PostMortem(SURVEY))) == PostMortem(SURVEY)
    records: list[AnyRecord] = [Survey("n1", 1.0), PostMortem(SURVEY), Survey("n2", 1.0), Survey("n1", 2.0)]
    assert {host: survey.unix_s for host, survey in surveys_of(records).items()} == {"n1": 2.0, "n2": 1.0}
    assert evidence_of(PLAN, Columns(), records).post_mortems == [SURVEY]


@rows("change", [{"work": MOST_SAMPLES_PER_S}, {"work": 1e18, "arm": "all-reduce-32mib@2"}])
def test_the_fastest_pace_that_may_be_is_taken(change: dict[str, Any]) -> None:
    assert isinstance(read(BLOCK | {"seconds": 4} | change), Block)


def test_a_record_says_its_kind() -> None:
    assert json.loads(line_of(StudyEnd("weak/r", "budget"))) == END


def test_why_a_study_ended_is_read_as_it_was_written() -> None:
    for why in ("of an earlier version", because("quoted", (because("rank-left", "rank 3 on n2"),), ("lines",), ())):
        end = StudyEnd("weak/r", "error", why)
        assert RecordReader().read(line_of(end)) == end


def read_as(name: str, value: Any, why: str = "of a rank is out of range") -> tuple[Any, Any, str]:
    return BLOCK, {"readings": {name: value}}, f"{name} {why}"


def waits(seconds: float) -> dict[str, Any]:
    """Of three ranks with four steps."""
    return {"series": {"waited_s": base64.b64encode(step_bytes([seconds] * 12)).decode()}}


@rows(
    ("line", "changes", "found"),
    [
        (BLOCK, {"count": 0}, "Expected `int` >= 1 - at `$.count`"),
        (BLOCK, {"count": [4, 4, 4]}, "48 bytes of step_s; expected 4 for each of 3 x 4"),
        (BLOCK, {"seconds": [4.0, 4.0, 0.0]}, "Expected `float` > 0.0 - at `$.seconds[2]`"),
        (BLOCK, {"seconds": [4.0, 4.0]}, "seconds has 2 values; expected 3, one for each rank"),
        (BLOCK, {"seconds": 5e-324}, "has inf samples per second"),
        (BLOCK, {"seconds": [1.0, 1.0, 1e-7]}, "has 1.28e+09 samples per second"),
        (BLOCK, {"work": 0}, "Expected `float` > 0.0"),
        (BLOCK, {"work": 1e15}, "samples per second; expected at most 1e+09"),
        (BLOCK, {"work": 1e20, "arm": "matmul-bf16"}, "per second; expected at most 1e+18"),
        (BLOCK, {"series": {"waited_s": "AACAPw=="}}, "4 bytes of waited_s; expected 4 for each of 3 x 4"),
        (BLOCK, {"series": {"paused_s": "AACAPw=="}}, "unknown name 'paused_s'; expected one of step_s, waited_s"),
        (BLOCK, waits(float("nan")), "a wait for data (waited_s) is negative or not finite"),
        (BLOCK, waits(-0.5), "a wait for data (waited_s) is negative or not finite"),
        read_as("utilization", [0.5, -1, 0.5], "of a rank is out of range; expected 0 to 1"),
        read_as("energy_j", -0.5, "of a rank is out of range; expected 0 to 1e+12 J"),
        read_as("energy_j", [1, 2, 3, 4], "has 4 values; expected 3"),
        read_as("peak_memory_bytes", 2**50),
        read_as("skipped_steps", [0, None, 1]),
        read_as("is_correct", 1, "of a rank is out of range; expected 0 to 1 (true or false)"),
        read_as("is_correct", [True, None, True]),
        (BLOCK, {"readings": {"mood": 1}}, "unknown name 'mood'; expected one of utilization, energy_j"),
        (BLOCK, {"unread": {"colour": "none"}}, "unknown name 'colour'; expected one of utilization, energy_j"),
        (BLOCK, {"unread": {"forward_s": ["", "why"]}}, "forward_s has 2 values; expected 3"),
        (BLOCK, {"digests": "c0ffee"}, "at `$.digests`"),
        (BLOCK, {"digests": "0" * 32}, "digests has 32 digits; expected 16 for each of 3 ranks"),
        (BLOCK, {"ranks": []}, "Expected `array` of length >= 1"),
        (BLOCK, {"ranks": [0, 1, 1]}, "ranks has 3 values; expected each rank once"),
        (BLOCK, {"ranks": [0, 1, 4]}, "rank 4 is named, but gang 0 has 4 ranks"),
        (BLOCK, {"gang": 1}, "gang 1 was not announced before"),
        (BLOCK, {"colour": "red"}, "unknown field `colour`"),
        (GANG, {"gang": 0}, "a second gang 0"),
        (GANG, {"ranks": [{"place": {"host": "n", "uuid": "GPU-0"}}]}, "place has no local rank or no device (uuid)"),
        (GANG, {"ranks": [{"place": {"host": "n", "local_rank": 0}}]}, "device (uuid) - at `$.ranks[0]`"),
        (TELEMETRY, {"ended_unix_s": 1000.0}, "a window ends before it began"),
        (TELEMETRY, {"energy_j": [1.0]}, "energy_j has 1 values; expected 2"),
        (TELEMETRY, {"throttle_reasons": {"sw_power_cap": 1.5}}, "Expected `float` <= 1.0"),
        (TELEMETRY, {"ranks": [1, 4]}, "rank 4 is named, but gang 0 has 4 ranks"),
        (PROFILE, {"rank": 4}, "rank 4 is named, but gang 0 has 4 ranks"),
        (PROFILE, {"problem": "none"}, "expected either"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(line: dict[str, Any], changes: dict[str, Any], found: str) -> None:
    read(line)
    assert found in refusal(line | changes)


@rows(
    "line",
    [b"", b"[]", b"3", b"null", b'"timed"', b"{", b"\xff", b'{"kind":"timed"', b"[" * 100_000, b'{"a":' * 100_000],
)
def test_a_line_that_is_no_record_is_refused(line: bytes) -> None:
    assert refusal(line)


@rows("word", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 5000])
def test_numbers_that_are_none_are_refused(word: str) -> None:
    assert refusal(json.dumps(BLOCK | {"work": "WORD"}).replace('"WORD"', word).encode())
