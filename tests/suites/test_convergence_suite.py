"""Iterations and epochs to a loss: what is counted, what is said where it is not reached, and a real run of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from pytest_ddpscale.plan.training_run import TrainingRun, loss_reached
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import TrainedEpoch
from pytest_ddpscale.suites.convergence_report import convergence_report, time_to_loss
from pytest_ddpscale.suites.trained_run import trained_runs
from pytest_ddpscale.suites.training_options import learning_rate_at
from tests.approved import assert_approved
from tests.builders.whole_runs import records_of, suite_of, training_run
from tests.suites.conftest import MeasuredAndTold
from tests.suites.run_records import text_of

SMALL = ("suite", "convergence", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--samples=1024", "--hidden=32")


def with_losses(run: TrainingRun, losses: Sequence[float], gang: int = 0, **end: Any) -> list[AnyRecord]:
    """A complete run whose iterations have these."""
    told = np.array(losses, "<f4").reshape(run.epochs, run.iterations)
    return [
        replace(line, losses=tuple(told[line.epoch].tolist())) if isinstance(line, TrainedEpoch) else line
        for line in records_of(run, gang, **end)
    ]


def falling(run: TrainingRun, at: int) -> list[float]:
    """2 up to an iteration, from 1, and 0 after it."""
    return [2.0] * at + [0.0] * (run.epochs * run.iterations - at)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [([1.0] * 10, 10), ([2.0] * 5 + [0.0] * 5, 10), ([2.0] * 6 + [0.0] * 5, 11), ([1.0] * 9, None), ([1.1] * 30, None),
     ([2.0] * 29 + [0.0], None)],
)  # fmt: skip
def test_a_loss_is_reached_by_the_mean_of_ten_iterations_and_not_by_a_lucky_one(
    losses: list[float], expected: int | None
) -> None:
    assert loss_reached(losses, 1.0) == expected


@pytest.mark.parametrize(("rule", "rate"), [("constant", 0.01), ("linear", 0.04), ("sqrt", 0.02)])
def test_the_learning_rate_follows_its_rule(rule: Any, rate: float) -> None:
    assert learning_rate_at(0.01, rule, 128, 32) == pytest.approx(rate)


def test_iterations_epochs_and_seconds_are_counted_to_the_loss() -> None:
    run = training_run(1, images=96, loss_threshold=1.0)  # 12 iterations, 3 s, an epoch
    lines = with_losses(run, falling(run, 13))
    time = time_to_loss(trained_runs(suite_of([run], lines).evidence)[0])
    assert time is not None
    assert (time.iterations, time.epochs) == (18, 1.5)
    assert time.seconds == pytest.approx(4.5)


def test_the_report_compares_world_sizes_and_names_the_rule() -> None:
    runs = [training_run(ranks, images=96, loss_threshold=1.0, rule="linear") for ranks in (1, 2)]
    lines = [*with_losses(runs[0], falling(runs[0], 13)), *with_losses(runs[1], falling(runs[1], 7), 1)]
    report = convergence_report(suite_of(runs, lines))
    assert not report.failures
    assert_approved("suite-convergence.txt", text_of(report))


def test_a_loss_that_is_not_reached_is_not_as_required() -> None:
    run = training_run(1, images=96, loss_threshold=1.0)
    (failure,) = convergence_report(suite_of([run], with_losses(run, [1.5] * 36))).failures
    assert failure.startswith("train/small@1: a loss of 1 was not reached in 3 epochs")


@pytest.mark.lab
def test_one_and_two_ranks_get_to_a_loss(measured_and_told: MeasuredAndTold) -> None:
    run, told = measured_and_told(*SMALL, "--ranks=1,2", "--global-batch=64", "--loss=0.8", "--lr=0.05")
    alone, both = json.loads(run.suite_json.read_text())["runs"]
    assert alone["iterations"] == both["iterations"], "the same global batches of the same images"
    assert both["losses"] == pytest.approx(alone["losses"], rel=1e-2)
    assert "Learning-rate rule: constant: the same at every global batch." in told
