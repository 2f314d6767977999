"""Whole runs: their lines are read as they were written, what an epoch adds up to, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.run.consistent import refuse_contradictions
from pytest_ddpscale.run.record_lines import AnyRecord, RecordReader, checked_line
from pytest_ddpscale.run.records import (
    StudyEnd,
    TrainedEpoch,
)
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.builders.whole_runs import (
    end_of,
    epoch_of,
    gang_of,
    plan_of,
    records_of,
    training_run,
)
from tests.rows import rows

RUN = training_run()


def read_again(record: AnyRecord) -> AnyRecord:
    reader = RecordReader()
    reader.read(checked_line(gang_of(RUN)))
    return reader.read(checked_line(record))


def test_every_line_is_read_as_it_was_written() -> None:
    for record in records_of(RUN)[1:]:
        assert read_again(record) == record


@rows(
    ("make", "message"),
    [
        (lambda: epoch_of(RUN, losses=()), "Expected `array` of length >= 1 - at `\\$.losses`"),
        (lambda: epoch_of(RUN, losses=(1.0, np.nan, 1.0, 1.0)), "Expected `float`, got `null` - at `\\$.losses"),
        (lambda: epoch_of(RUN, training_s=(1.0, -1.0)), r">= 0.0 - at `\$.ranks\[1\].training_s`"),
        (lambda: epoch_of(RUN, trained=0), ">= 1"),
        (lambda: epoch_of(RUN, 0, 1), "gang 1 was not announced before"),
        (lambda: epoch_of(training_run(4)), "rank 3 is named, but gang 0 has 2 ranks"),
        (lambda: end_of(RUN, parameters_checksum="c0ffee"), "matching regex"),
    ],
)
def test_a_line_that_contradicts_itself_is_refused(make: Callable[[], AnyRecord], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_again(make())


def refuse(lines: list[AnyRecord], run: TrainingRun = RUN) -> None:
    plan = plan_of([run])
    refuse_contradictions(RunDirectory(Path("run")), plan, lines, is_imported=False, is_simulated=False)


Change = Callable[[list[AnyRecord]], object]


def changed(place: int, **fields: object) -> Change:
    return lambda lines: lines.__setitem__(place, replace(lines[place], **fields))


def after_a_gang_of(ranks: int) -> Change:
    """All lines of a larger gang."""
    larger = training_run(ranks)
    return lambda lines: lines.__setitem__(slice(None), [gang_of(larger), replace(epoch_of(larger), study=RUN.id)])


def epoch(**fields: Any) -> Change:
    """Another second epoch."""
    return lambda lines: lines.__setitem__(2, epoch_of(RUN, 1, **fields))


def test_throughput_is_at_the_slowest_ranks_pace_and_counts_waiting() -> None:
    epoch = epoch_of(RUN, training_s=(1.0, 3.0), waiting_s=(0.0, 1.0))
    assert epoch.samples_per_s == pytest.approx(64 / 4)
    assert epoch_of(RUN, validation_waiting_s=(1.0, 3.0)).validation_samples_per_s == pytest.approx(16 / 4)


def test_accuracy_weighs_ranks_by_their_images() -> None:
    run = training_run(ranks=3, images=84)  # 21 to validate: 7 each
    epoch = epoch_of(run, validated=(19, 1, 1), correct=(19, 0, 0))
    assert epoch.accuracy == pytest.approx(19 / 21), "not the mean of 1, 0 and 0"


@rows(
    ("change", "message"),
    [
        (lambda lines: lines.pop(2), "line 3 is of epoch 2 of train/small@2; expected epoch 1 of 3"),
        (lambda lines: lines.insert(2, lines[1]), "line 3 is of epoch 0 of train/small@2; expected epoch 1"),
        (lambda lines: lines.insert(3, lines.pop(4)), "line 4 ends train/small@2 after 2 epochs; expected 3"),
        (lambda lines: lines.insert(4, epoch_of(RUN, 3)), "line 5 is of epoch 3 of .*; expected epoch 3 of 3"),
        (lambda lines: lines.pop(3), "line 4 ends train/small@2 after 2 epochs; expected 3"),
        (epoch(trained=24), r"line 3 trained \[24, 24\] images of epoch 1 of train/small@2; expected 32 on each rank"),
        (epoch(trained=(40, 24)), r"line 3 trained \[40, 24\] images .*; expected 32 on each rank"),
        (epoch(validated=(8, 9)), "line 3 validated 17 images .*; expected 16, each once"),
        (epoch(validated=(8, 7)), "line 3 validated 15 images .*; expected 16, each once"),
        (changed(3, gang=1), "line 4 has train/small@2 measured by gang 1, as well as by gang 0"),
        (changed(2, ranks=epoch_of(RUN).ranks[:1]), r"line 3 has ranks \[0\] of 2; expected 0 to 1"),
        (changed(2, ranks=epoch_of(RUN).ranks[:1] * 2), r"line 3 has ranks \[0, 0\] of 2"),
        (changed(4, ranks=end_of(RUN).ranks[::-1]), r"line 5 has ranks \[1, 0\] of 2"),
        (after_a_gang_of(3), r"line 2 has ranks \[0, 1, 2\] of 3; expected 0 to 1"),
        (changed(4, gang=1), "line 5 has train/small@2 measured by gang 1, as well as by gang 0"),
        (changed(6, gang=1), "line 7 has train/small@2 measured by gang 1, as well as by gang 0"),
        (lambda lines: lines.append(replace(lines[-1])), "line 8 is another time of the launch 0 of train"),
        (lambda lines: lines.insert(5, replace(lines[4])), "line 6 is another end 0 of train/small@2 than"),
        (changed(6, study="train/other@2"), "line 7 is of train/other@2, which plan.json does not plan"),
    ],
)  # fmt: skip
def test_lines_that_cannot_be_so_are_refused(change: Change, message: str) -> None:
    lines = records_of(RUN)
    change(lines)
    lines.append(gang_of(RUN, 1))  # that lines may name
    with pytest.raises(RunDirectoryError, match=message):
        refuse(lines)


def test_a_run_that_reached_its_loss_needs_no_further_epochs() -> None:
    run = training_run(ranks=1, images=96, epochs=5, loss_threshold=1.6)  # 12 iterations an epoch
    told = [line for line in records_of(run) if not isinstance(line, TrainedEpoch) or line.epoch < 2]
    shortened = [replace(line, reason="decided") if isinstance(line, StudyEnd) else line for line in told]
    refuse(shortened, run)
    for number in (2, 3):
        with pytest.raises(RunDirectoryError, match=f"line 5 is of epoch {number} of train/small@1; expected"):
            refuse([*shortened[:4], epoch_of(run, number), *shortened[4:]], run)
    with pytest.raises(RunDirectoryError, match="after 1 epochs; expected 5"):
        refuse([line for line in shortened if not isinstance(line, TrainedEpoch) or line.epoch < 1], run)
