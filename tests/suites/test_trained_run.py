"""What the lines of a whole training run add up to, and when it is complete."""

from __future__ import annotations

import pytest

from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import LaunchTime, StudyEnd, TrainedEpoch, TrainedRun
from pytest_ddpscale.suites.trained_run import RunRecords, trained_runs
from tests.builders.whole_runs import (
    EPOCHS,
    START_UP_S,
    VALIDATION_S,
    WAITING_S,
    epoch_of,
    records_of,
    suite_of,
    training_run,
)

RUN = training_run()


def of(lines: list[AnyRecord], run: TrainingRun = RUN) -> RunRecords:
    (found,) = trained_runs(suite_of([run], lines).evidence)
    return found


def test_complete_time_is_the_sum_of_the_spans_and_the_rest_is_unexplained() -> None:
    lines = records_of(RUN, outer_s=100.0)
    lines[2] = epoch_of(RUN, 1, validation_waiting_s=20.0)
    one = of(lines)
    assert one.is_complete
    assert dict(one.spans_s) == pytest.approx({
        "start_up_s": START_UP_S, "compile_s": 0, "training_s": EPOCHS * (2 - WAITING_S),
        "validation_s": EPOCHS * VALIDATION_S, "waiting_s": EPOCHS * WAITING_S + 20,
    })  # fmt: skip
    complete_s = START_UP_S + EPOCHS * (2 + VALIDATION_S) + 20
    assert (one.complete_s, one.unexplained) == pytest.approx((complete_s, 1 - complete_s / 100))


def test_mean_throughput_leaves_the_first_epoch_out() -> None:
    lines = records_of(RUN)
    lines[1] = epoch_of(RUN, 0, samples_per_s=1.0)
    assert of(lines).samples_per_s == pytest.approx(32)
    one_epoch = training_run(epochs=1)
    assert of(records_of(one_epoch), one_epoch).samples_per_s is None


def test_a_run_that_died_is_not_complete() -> None:
    lines = records_of(RUN)
    for without in (TrainedRun, StudyEnd, LaunchTime):
        some = [line for line in lines if not isinstance(line, without)]
        if without is TrainedRun:
            some = [line for line in some if not isinstance(line, TrainedEpoch) or line.epoch < 2]
        assert not of(some).is_complete, without
    assert not of([*lines[:-2], StudyEnd(study=RUN.id, reason="error", message="rank 1 died")]).is_complete
    assert not of([*lines[:-2], StudyEnd(study=RUN.id, reason="budget"), lines[-1]]).is_complete


def test_a_run_that_reached_its_loss_is_complete() -> None:
    lines = [line for line in records_of(RUN) if not isinstance(line, TrainedEpoch) or line.epoch < 2]
    lines[-2] = StudyEnd(study=RUN.id, reason="decided")
    assert of(lines).is_complete
