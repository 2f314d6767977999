"""What a rank writes about itself is what its agent reads, whatever happens to either."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_ddpscale.run.rank_folder import (
    RankFailure,
    RankStatus,
    RecordSink,
    StatusWriter,
    open_records,
    read_failure,
    read_status,
)
from pytest_ddpscale.run.records import StudyEnd
from tests.rows import rows

STATUS = RankStatus(
    pid=4711, rank=5, local_rank=1, phase="timed block", study="weak/r", arm="ddp@2", round=3, entered=12
)
NAME = st.text(max_size=20)
STATUSES = st.builds(
    RankStatus,
    pid=st.integers(1, 2**22),
    rank=st.integers(-1, 2**20),
    local_rank=st.just(1),
    phase=NAME,
    study=st.none() | NAME,
    arm=st.none() | NAME,
    round=st.none() | st.integers(0, 1000),
    entered=st.integers(0, 2**31),
)


@given(STATUSES, st.integers(0, 50))
def test_what_is_told_is_read_with_the_steps_since(status: RankStatus, steps: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        writer = StatusWriter(Path(name), 1)
        writer.tell(status)
        for _ in range(steps):
            writer.count_step()
        assert read_status(Path(name), 1) == replace(status, steps=steps)


def test_steps_are_counted_from_the_beginning_of_a_phase(tmp_path: Path) -> None:
    """A rank that takes part in more arms than another is not ahead of it by their steps."""
    writer = StatusWriter(tmp_path, 1)
    writer.tell(STATUS)
    writer.count_step()
    writer.tell(replace(STATUS, entered=13))
    assert read_status(tmp_path, 1) == replace(STATUS, entered=13, steps=0)
    writer.count_step()
    assert read_status(tmp_path, 1) == replace(STATUS, entered=13, steps=1)


def test_ranks_do_not_meet_and_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    for local_rank in (0, 1):
        writer = StatusWriter(tmp_path, local_rank)
        writer.tell(replace(STATUS, local_rank=local_rank))
        writer.tell_failure(RankFailure(local_rank=local_rank))
    assert [read_status(tmp_path, n) for n in (0, 1)] == [replace(STATUS, local_rank=n) for n in (0, 1)]
    assert [read_failure(tmp_path, n) for n in (0, 1)] == [RankFailure(local_rank=n) for n in (0, 1)]
    names = {f"{n}{ending}" for n in (0, 1) for ending in (".json", ".steps", ".error.json")}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_rank_that_has_said_nothing(tmp_path: Path) -> None:
    assert read_status(tmp_path / "missing", 0) is None
    StatusWriter(tmp_path, 0)
    assert read_status(tmp_path, 0) is None
    assert read_failure(tmp_path, 0) is None


@given(st.integers(0, len(msgspec.json.encode(STATUS)) - 1))
def test_a_torn_file_says_nothing(cut: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        StatusWriter(Path(name), 1).tell(STATUS)
        path = Path(name) / "1.json"
        path.write_bytes(path.read_bytes()[:cut])
        assert read_status(Path(name), 1) is None


@rows("text", [b"", b"[]", b"7", b"{}", b"\xff", b'{"pid": 1}', b'{"mood": "good"}', b"null"])
def test_another_file_says_nothing(tmp_path: Path, text: bytes) -> None:
    StatusWriter(tmp_path, 1)
    (tmp_path / "1.json").write_bytes(text)
    assert read_status(tmp_path, 1) is None


@rows("counter", [b"", b"1234567", b"123456789"])
def test_a_torn_counter_says_nothing(tmp_path: Path, counter: bytes) -> None:
    StatusWriter(tmp_path, 1).tell(STATUS)
    (tmp_path / "1.steps").write_bytes(counter)
    assert read_status(tmp_path, 1) is None


def test_a_rank_whose_agent_is_gone_is_told_and_does_not_wait_for_it(tmp_path: Path) -> None:
    os.close(open_records(tmp_path))
    with pytest.raises(OSError, match="No such device"):
        RecordSink(tmp_path).append_record(StudyEnd("weak/r", "rounds"))
