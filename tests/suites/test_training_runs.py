"""Whole runs and convergence: what their lines add up to, what is concluded, what passes, and real runs of both."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.report.scaling import sweet_spots
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import LaunchTime, StudyEnd, TrainedEpoch, TrainedRun
from pytest_ddpscale.suites.convergence import Convergence
from pytest_ddpscale.suites.results import cell, ends
from pytest_ddpscale.suites.training_runs import SPANS, WholeRun, sizes_of_set, trained_runs
from tests.approved import assert_approved
from tests.builders.whole_runs import complete_suite, epoch_of, records_of, suite_of, training_run
from tests.suites.planned import A6000, TWO_NODES, planned, text_of
from tests.suites.published_whole_runs import DATA_SETS

Lines = list[AnyRecord]


def test_reports_are_as_approved_and_complete_time_is_the_sum_of_its_spans() -> None:
    """Of two data sets, of a run that broke, and each number of a row; the rest of the time is unexplained."""
    runs = [training_run(ranks, name, images) for name, images in (("small", 64), ("large", 640)) for ranks in (1, 2)]
    good, bad = training_run(1), training_run(2)
    died = StudyEnd(study=bad.id, reason="error", message="rank 1 on n1 failed: RuntimeError: no.")
    whole = WholeRun().results(complete_suite(*runs))
    broken = WholeRun().results(suite_of([good, bad], [*records_of(good, 0), *records_of(bad, 1)[:3], died]))
    told = [text_of(whole, broken)]
    for run in (bad, training_run(epochs=1)):
        lines = records_of(run, outer_s=100.0, reserved_bytes=(2 * 10**9, 3 * 10**9))
        lines[1] = epoch_of(run, samples_per_s=1.0, validation_waiting_s=20.0)
        ((_, _, row, _),) = trained_runs(suite_of([run], lines))
        assert row["complete_s"] == pytest.approx(sum(row[name] for name in SPANS))
        told += [*(f"{name}: {cell(value)}" for name, value in row.items()), ""]
    assert_approved("suite-whole-run.txt", "\n".join(told))


SPOILT: list[dict[str, Any]] = [
    {}, {"samples_per_s": 4.0}, {"epoch": 1}, {"outer_s": 26.0, "epoch": 1, "reason": "decided"},
    {"without": TrainedRun}, {"without": StudyEnd}, {"without": LaunchTime}, {"reason": "error"}, {"reason": "budget"},
    {"parameters_checksum": ("0" * 16, "1" * 16)}, {"outer_s": 29.7}, {"outer_s": 28.0}, {"skipped_steps": 1},
]  # fmt: skip


def spoilt(
    run: TrainingRun, epoch: int = 9, without: Any = None, reason: Any = "rounds", losses: Any = (), **fields: Any
) -> Lines:
    """Other numbers, losses of iterations or end, without later epochs, or lines of a kind."""
    lines = Lines()
    for line in records_of(run, **fields):
        if isinstance(line, StudyEnd):
            line = replace(line, reason=reason)
        if isinstance(line, TrainedEpoch) and losses:
            line = replace(line, losses=losses[line.epoch * run.iterations :][: run.iterations])
        if type(line) is not without and not (isinstance(line, TrainedEpoch) and line.epoch > epoch):
            lines.append(line)
    return lines


def test_bounds_need_whole_and_valid_runs_and_of_launches_the_whole_interval() -> None:
    launches = [training_run(launch=launch, most_s=30.0, least_accuracy=0.5) for launch in (1, 2, 3)]
    run, long = launches[0], training_run(images=640, most_s=100.0)
    cases = [(f"{change}", [run], spoilt(run, **change)) for change in SPOILT]
    cases.append(("few of many steps skipped", [long], records_of(long, skipped_steps=(5, 6), outer_s=84.0)))
    for paces in ((30.0, 31.0, 32.0), (64.0, 32.0, 16.0), (30.0, 31.0)):
        of = (records_of(*one) for one in zip(launches, range(3), paces, strict=False))
        cases.append((f"{paces}", launches, [line for lines in of for line in lines]))
    told = list[str]()
    for name, runs, records in cases:
        report = WholeRun().results(suite_of(runs, records))
        required, sizes, *_ = report.tables
        told += [f"{name}:", *(" ".join([*map(cell, row.values()), ends(row["value"])]) for row in required.rows)]
        told += [*(f"size of {cell(row['complete_s'])} s" for row in sizes.rows), *report.failures, ""]
    assert_approved("suite-whole-run-bounds.txt", "\n".join(told))


# Chapter 12 of Jordi Torres' "Supercomputing for AI": from the measured columns of its tables we compute the others,
# which may differ by the rounding of both.
UNITS, ROUNDING = (100, 1, 100, 1, 100, 100), (0.36, 0, 1.11, 0, 0.66, 0.66)


def test_columns_and_conclusions_are_those_of_the_chapter() -> None:
    concluded = list[str]()
    for name, of in DATA_SETS.items():
        measured = [
            {"ranks": gpus, "complete_s": seconds, "samples_per_s": rate, "memory_gb": None}
            for gpus, (seconds, rate, *_) in of.items()
        ]
        sizes = sizes_of_set(measured)
        concluded += [f"{name}: {said}" for said in sweet_spots(sizes, "GPU", 500) if "hours" not in said]
        for row in sizes:
            gpus, seconds = row["ranks"], row["complete_s"]
            more = [row.get(key) for key in ("more_samples_per_s", "gain", "saved_s", "saved_share")]
            own = row["efficiency"], *more, 1 - seconds / sizes[0]["complete_s"]
            for value, printed, unit, rounding in zip(own, of[gpus][2:], UNITS, ROUNDING, strict=False):
                assert printed is None or unit * value == pytest.approx(printed, abs=rounding), (gpus, own)
    assert concluded == [
        "micro-224: sweet spot for a deadline of 500 s: 2 GPUs", "micro-224: sweet spot for efficiency of 90 %: 4 GPUs",
        "micro-224: saturated at 8 GPUs: a doubling saves less than 5 % of the time",
        "tiny-224: sweet spot for a deadline of 500 s: 16 GPUs", "tiny-224: sweet spot for efficiency of 90 %: 16 GPUs",
    ]  # fmt: skip


def test_sizes_learning_rates_and_bounds_are_planned_as_asked() -> None:
    lines = list[str]()
    for suite, sku, options in (
        (Convergence(), A6000, "--lr-rule=linear"),
        (Convergence(), A6000, "--lr-rule=sqrt --ranks=1,4 --optimizer=adam"),
        (Convergence(), TWO_NODES, "--lr-rule=linear --global-batch=64 --lr=1"),
        (Convergence(), TWO_NODES, "--ranks=1,8 --launches=2 --hidden=8,16 --batch=7"),
        (WholeRun(), A6000, "--at-most-time-to-train=9 --at-least-accuracy=40% --made=512,1024 --batch=2"),
    ):
        lines += [options, *(
            f"{run.id}: {run.nodes} x {run.ranks_per_node} ranks of {run.workload.batch_size}, rate "
            f"{run.learning_rate:g}, {run.samples.train_samples} images, bounds {run.most_s}, {run.least_accuracy}"
            for run in planned(suite, *options.split(), sku=sku).training_runs
        ), ""]  # fmt: skip
    assert_approved("suite-training-plans.txt", "\n".join(lines))


def test_iterations_epochs_and_seconds_are_compared_and_a_loss_that_is_not_reached_is_not_as_required() -> None:
    runs = [training_run(ranks, images=96, loss_threshold=1.0, rule="linear") for ranks in (1, 2)]
    alone = spoilt(runs[0], losses=(2.0,) * 13 + (0.0,) * 23)
    results = Convergence().results
    both = results(suite_of(runs, [*alone, *spoilt(runs[1], losses=(2.0,) * 7 + (0.0,) * 11, gang=1)]))
    missed = results(suite_of(runs[:1], spoilt(runs[0], losses=(1.5,) * 36)))
    differing = results(suite_of(runs[1:], spoilt(runs[1], **SPOILT[9])))
    assert_approved("suite-convergence.txt", text_of(both, missed, differing))


def test_an_interval_of_accuracies_ends_at_one() -> None:
    launches = [training_run(launch=launch, loss_threshold=1.0) for launch in (1, 2)]
    validated = launches[0].samples.validation_samples // 2
    records = [
        replace(line, ranks=tuple(replace(rank, correct=validated - gang) for rank in line.ranks))
        if isinstance(line, TrainedEpoch) else line
        for gang, run in enumerate(launches) for line in records_of(run, gang)
    ]  # fmt: skip
    ((row,), *_) = (table.rows for table in Convergence().results(suite_of(launches, records)).tables)
    low, high = row["accuracy"].interval
    assert 0 <= low < row["accuracy"].value < high == 1


def test_energy_and_prices_are_of_all_ranks_and_a_checkpoint_that_failed_costs_only_its_time() -> None:
    """Two GPUs use half a kWh each. Without the energy of one there is no price that has it."""
    priced = training_run(gpu_hour_price=2.0, kwh_price=0.5, deadline_s=30.0, most_s=30.0, least_accuracy=0.5)
    by_hour = training_run(gpu_hour_price=2.0)
    told = list[str]()
    for run, end in (
        (priced, {"energy_j": 1.8e6}), (priced, {"energy_j": (1.8e6, None)}), (by_hour, {}),
        (priced, {"problem": "OSError: No space left on device"}), (priced, {"problem": None}),
    ):  # fmt: skip
        results = WholeRun().results(suite_of([run], records_of(run, reserved_bytes=2 * 10**9, **end)))
        required, sizes, *_ = results.tables
        (size,) = sizes.rows
        told += [*(f"{key}: {cell(size.get(key))}" for key in ("complete_s", "memory_gb", "gpu_hours", "kwh", "price"))]
        told += [
            *sizes.notes[3:],
            *(f"{row['metric']} {row['outcome']}" for row in required.rows),
            *results.problems,
            "",
        ]
    assert_approved("suite-whole-run-costs.txt", "\n".join(told))
