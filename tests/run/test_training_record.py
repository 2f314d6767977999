"""Lines of whole runs: written and read again, and refused where one contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pytest_ddpscale.run.column_record import joined
from pytest_ddpscale.run.record_lines import RecordReader, checked_line
from pytest_ddpscale.run.training_record import RankEpoch, TrainedEpoch
from tests.builders.whole_runs import end_of, epoch_of, gang_of, records_of, training_run
from tests.rows import rows

RUN = training_run(2)


def test_every_line_is_read_as_it_was_written() -> None:
    reader = RecordReader()
    for record in records_of(RUN):
        assert reader.read(checked_line(record)) == record


def test_what_all_ranks_have_alike_stands_there_once() -> None:
    parts = [
        RankEpoch(
            rank=rank, trained=32, validated=8, correct=4 + rank, compile_s=0.0, training_s=1.5, waiting_s=0.5,
            validation_s=1.0, validation_waiting_s=0.0,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    found = joined(TrainedEpoch, parts, study=RUN.id, gang=0, epoch=0, losses=b"\0" * 16)
    assert (found.trained, found.correct) == (32, (4, 5))
    assert found.of_ranks("trained").tolist() == [32, 32]


@rows(
    ("fields", "message"),
    [
        ({"correct": (5, 9)}, "correct=9 of validated=8; expected at most as many"),
        ({"trained": (32, 32, 32)}, "trained has 3 values; expected 2, one for each rank"),
        ({"losses": b""}, "losses has 0 bytes; expected 4 for each iteration"),
        ({"losses": b"\0" * 6}, "losses has 6 bytes"),
    ],
)
def test_an_epoch_that_contradicts_itself_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        epoch_of(RUN, **fields)


def test_a_rank_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="expected each rank once"):
        replace(epoch_of(RUN), ranks=(0, 0))


def test_more_parameters_cannot_change_than_there_are() -> None:
    with pytest.raises(ValueError, match="trainable_parameters=1001; expected at most 1000"):
        end_of(RUN, trainable_parameters=1001)


def test_a_line_of_a_gang_or_a_rank_that_is_not_there_is_refused() -> None:
    line = checked_line(epoch_of(RUN))
    with pytest.raises(ValueError, match="gang 0 was not announced before"):
        RecordReader().read(line)
    reader = RecordReader()
    reader.read(checked_line(gang_of(training_run(1))))
    with pytest.raises(ValueError, match="rank 1 is named, but gang 0 has 1 ranks"):
        reader.read(line)


@rows("name", ["training_s", "waiting_s", "validation_s"])
def test_time_does_not_run_backwards(name: str) -> None:
    broken = checked_line(epoch_of(RUN)).replace(f'"{name}":'.encode(), f'"{name}":-'.encode(), 1)
    reader = RecordReader()
    reader.read(checked_line(gang_of(RUN)))
    with pytest.raises(ValueError, match=r">= 0"):
        reader.read(broken)
    assert isinstance(reader.read(checked_line(epoch_of(RUN))), TrainedEpoch)
