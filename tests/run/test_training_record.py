"""Whole runs: their lines are read as they were written, what they add up to, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.run.column_record import joined
from pytest_ddpscale.run.record_lines import AnyRecord, RecordReader, checked_line
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.training_record import (
    LaunchTime,
    RankEpoch,
    RunRecords,
    TrainedEpoch,
    TrainedRun,
    trained_runs,
)
from tests.builders.whole_runs import (
    EPOCHS,
    OUTER_REST_S,
    START_UP_S,
    VALIDATION_S,
    WAITING_S,
    end_of,
    epoch_of,
    gang_of,
    plan_of,
    records_of,
    training_run,
)
from tests.rows import rows

RUN = training_run()


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


def found(lines: list[AnyRecord], run: TrainingRun = RUN) -> RunRecords:
    return trained_runs(plan_of([run]), lines)[run.id]


def of_kind(lines: list[AnyRecord], kind: type) -> int:
    return next(place for place, line in enumerate(lines) if isinstance(line, kind))


def test_complete_time_is_the_sum_of_the_spans_and_the_rest_is_unexplained() -> None:
    one = found(records_of(RUN))
    assert one.is_complete
    assert dict(one.spans_s) == pytest.approx({
        "start_up_s": START_UP_S, "compile_s": 0, "training_s": EPOCHS * (2 - WAITING_S),
        "validation_s": EPOCHS * VALIDATION_S, "waiting_s": EPOCHS * WAITING_S,
    })  # fmt: skip
    assert one.complete_s == pytest.approx(START_UP_S + EPOCHS * (2 + VALIDATION_S))
    assert one.unexplained == pytest.approx(OUTER_REST_S / (one.complete_s + OUTER_REST_S))


def test_mean_throughput_leaves_the_first_epoch_out() -> None:
    lines = records_of(RUN)
    lines[1] = epoch_of(RUN, 0, samples_per_s=1.0)
    assert found(lines).samples_per_s == pytest.approx(32)
    one_epoch = training_run(epochs=1)
    assert found(records_of(one_epoch), one_epoch).samples_per_s is None


def test_throughput_is_at_the_slowest_ranks_pace_and_counts_waiting() -> None:
    epoch = epoch_of(RUN, training_s=(1.0, 3.0), waiting_s=(0.0, 1.0))
    assert epoch.samples_per_s == pytest.approx(64 / 4)


def test_accuracy_weighs_ranks_by_their_images() -> None:
    run = training_run(ranks=3, images=84)  # 21 to validate: 7 each
    epoch = epoch_of(run, validated=(19, 1, 1), correct=(19, 0, 0))
    assert epoch.accuracy == pytest.approx(19 / 21), "not the mean of 1, 0 and 0"


def test_a_run_that_died_is_not_complete() -> None:
    lines = records_of(RUN)
    for without in (TrainedRun, StudyEnd, LaunchTime):
        some = [line for line in lines if not isinstance(line, without)]
        if without is TrainedRun:
            some = [line for line in some if not isinstance(line, TrainedEpoch) or line.epoch < 2]
        assert not found(some).is_complete, without
    assert not found([*lines[:-2], StudyEnd(study=RUN.id, reason="error", message="rank 1 died")]).is_complete
    assert not found([*lines[:-2], StudyEnd(study=RUN.id, reason="budget"), lines[-1]]).is_complete


Change = Callable[[list[AnyRecord]], object]


def changed(place: int, **fields: object) -> Change:
    def change(lines: list[AnyRecord]) -> None:
        lines[place] = replace(lines[place], **fields)

    return change


@rows(
    ("change", "message"),
    [
        (lambda lines: lines.pop(2), "line 3 is of epoch 2 of train/small@2; expected epoch 1 of 3"),
        (lambda lines: lines.insert(2, lines[1]), "line 3 is of epoch 0 of train/small@2; expected epoch 1"),
        (lambda lines: lines.pop(3), "line 4 ends train/small@2 after 2 epochs; expected 3"),
        (changed(2, trained=24), r"line 3 trained \[24, 24\] images; expected 32 on each rank"),
        (changed(2, trained=(32, 24)), r"line 3 trained \[32, 24\] images; expected 32 on each rank"),
        (changed(2, validated=(8, 9)), "line 3 validated 17 images; expected 16, each once"),
        (changed(2, validated=(8, 7)), "line 3 validated 15 images; expected 16, each once"),
        (changed(2, losses=b"\0" * 12), "line 3 has 3 losses .*; expected one for each of 4 iterations"),
        (changed(2, losses=np.array([1, 1, 1, np.nan], "<f4").tobytes()), "line 3 has a loss of nan"),
        (changed(2, training_s=0.0), r"line 3 took no time \(training_s\)"),
        (changed(3, gang=1), "line 4 is of epoch 2 of train/small@2 by gang 1; expected gang 0"),
        (changed(2, ranks=(0,), validated=16, correct=1), r"line 3 has ranks \[0\] of 2; expected 0 to 1"),
        (changed(4, gang=1), "line 5 ends train/small@2 by gang 1"),
        (changed(6, gang=1), "line 7 times gang 1; expected 0, which trained train/small@2"),
        (lambda lines: lines.append(lines[-1]), "line 8 times train/small@2, which line 7 timed"),
        (lambda lines: lines.insert(5, lines[4]), "line 6 ends train/small@2, which line 5 ended"),
        (changed(6, study="train/other@2"), "line 7 is of train/other@2, which plan.json does not plan"),
        (changed(5, reason="decided"), "line 5 ends train/small@2, whose loss has not reached None"),
    ],
)  # fmt: skip
def test_lines_that_cannot_be_so_are_refused(change: Change, message: str) -> None:
    lines = records_of(RUN)
    change(lines)
    lines.append(gang_of(RUN, 1))  # that lines may name
    with pytest.raises(ValueError, match=message):
        found(lines)


def test_a_run_that_reached_its_loss_needs_no_further_epochs() -> None:
    run = training_run(ranks=1, images=96, loss_threshold=1.6)  # 12 iterations an epoch
    lines = records_of(run)
    shortened = [line for line in lines if not isinstance(line, TrainedEpoch) or line.epoch < 2]
    shortened[of_kind(shortened, StudyEnd)] = StudyEnd(study=run.id, reason="decided")
    assert found(shortened, run).is_complete
    with pytest.raises(ValueError, match="after 1 epochs; expected 3"):
        found([line for line in shortened if not isinstance(line, TrainedEpoch) or line.epoch < 1], run)
