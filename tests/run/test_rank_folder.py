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
    read_message,
    read_status,
    write_message,
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
def test_what_is_told_is_read_with_the_steps_since_the_phase_began(status: RankStatus, steps: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        writer = StatusWriter(Path(name), 1)
        assert read_status(Path(name), 1) is None
        for told in (STATUS, status):
            writer.tell(told)
            for _ in range(steps):
                writer.count_step()
            assert read_status(Path(name), 1) == replace(told, steps=steps)


def test_ranks_do_not_meet_and_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    assert read_status(tmp_path / "missing", 0) is None
    for local_rank in (0, 1):
        writer = StatusWriter(tmp_path, local_rank)
        assert read_message(tmp_path, RankFailure, local_rank) is None
        writer.tell(replace(STATUS, local_rank=local_rank))
        write_message(tmp_path, RankFailure(local_rank=local_rank))
    assert [read_status(tmp_path, n) for n in (0, 1)] == [replace(STATUS, local_rank=n) for n in (0, 1)]
    assert [read_message(tmp_path, RankFailure, n) for n in (0, 1)] == [RankFailure(local_rank=n) for n in (0, 1)]
    names = {f"{n}{ending}" for n in (0, 1) for ending in (".json", ".steps", ".error.json")}
    assert {path.name for path in tmp_path.iterdir()} == names


WRITTEN = msgspec.json.encode(STATUS)


@rows(
    "content",
    [
        *(WRITTEN[:cut] for cut in range(len(WRITTEN))),
        b"[]",
        b"7",
        b"{}",
        b"\xff",
        b'{"pid": 1}',
        b'{"mood": "good"}',
        b"null",
    ],
)
def test_a_torn_file_or_another_one_says_nothing(tmp_path: Path, content: bytes) -> None:
    StatusWriter(tmp_path, 1).tell(STATUS)
    (tmp_path / "1.json").write_bytes(content)
    assert read_status(tmp_path, 1) is None


def test_a_rank_whose_agent_is_gone_is_told_and_does_not_wait_for_it(tmp_path: Path) -> None:
    os.close(open_records(tmp_path))
    with pytest.raises(OSError, match="No such device"):
        RecordSink(tmp_path).append_record(StudyEnd("weak/r", "rounds"))
