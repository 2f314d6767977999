"""Bounds of whole runs, from options, and verdicts on them. plan.json stores the bounds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.settings import read_value
from pytest_ddpscale.suites.training_options import above_zero

if TYPE_CHECKING:
    from pytest_ddpscale.suites.trained_run import RunRecords

TIME, ACCURACY = "time_to_train", "validation_accuracy"
_FEWEST_LAUNCHES = 3  # needed for an interval
Outcome = Literal["passed", "failed", "inconclusive", "not_measured"]


def add_bound_options(parser: argparse.ArgumentParser) -> None:
    """Add options for bounds on the largest world size."""
    add = parser.add_argument
    add("--at-most-time-to-train", metavar="S", help="most seconds of complete time for the largest world size")
    add("--at-least-accuracy", metavar="SHARE", help="least accuracy of its last validation, such as 0.4")


def bounded(runs: Sequence[TrainingRun], arguments: argparse.Namespace) -> list[TrainingRun]:
    """Runs with their bounds. Raises OptionError."""
    time, accuracy = arguments.at_most_time_to_train, arguments.at_least_accuracy
    most_s = None if time is None else read_value("--at-most-time-to-train", time, above_zero)
    least = None if accuracy is None else read_value("--at-least-accuracy", accuracy, _share)
    largest = max(run.world_size for run in runs)
    return [replace(run, most_s=most_s, least_accuracy=least) if run.world_size == largest else run for run in runs]


@dataclass(frozen=True)
class RunVerdict:
    """One metric of one world size on one data set.

    Attributes:
        run: id of its run in the first launch.
        value: mean over the launches; None if one of them is incomplete or invalid.
        interval: of the mean, over launches; None with fewer than three.
        asked_by: source of the bound.
    """

    run: str
    metric: str
    value: float | None
    interval: tuple[float, float] | None
    bound: float
    asked_by: str
    outcome: Outcome


def run_verdicts(runs: Sequence[RunRecords], worthless: Sequence[str], confidence: float) -> list[RunVerdict]:
    """Verdicts on all bounds: one for each world size, data set and metric, over all launches.

    Args:
        runs: all runs, complete or not.
        worthless: ids of complete runs that are invalid.
        confidence: of the intervals, 0 … 1.
    """
    launches: dict[tuple[str, int], list[RunRecords]] = {}
    for one in runs:
        launches.setdefault((one.run.name, one.run.world_size), []).append(one)
    found = []
    for group in launches.values():
        first = group[0].run
        sound = all(one.is_complete and one.run.id not in worthless for one in group)
        if first.most_s is not None:
            values = [one.complete_s for one in group] if sound else []
            found.append(_verdict(first.id, TIME, values, first.most_s, "--at-most-time-to-train", confidence))
        if first.least_accuracy is not None:
            values = [one.epochs[-1].accuracy for one in group] if sound else []
            found.append(_verdict(first.id, ACCURACY, values, first.least_accuracy, "--at-least-accuracy", confidence))
    return found


def _verdict(
    run: str, metric: str, values: Sequence[float], bound: float, asked_by: str, confidence: float
) -> RunVerdict:
    if not values:
        return RunVerdict(run, metric, None, None, bound, asked_by, "not_measured")
    value, interval = sum(values) / len(values), None
    if len(values) >= _FEWEST_LAUNCHES:
        from pytest_ddpscale.suites.pace import mean_estimate

        interval = mean_estimate(values, confidence).interval
    return RunVerdict(
        run, metric, value, interval, bound, asked_by, _outcome(metric, interval or (value, value), bound)
    )


def _outcome(metric: str, interval: tuple[float, float], bound: float) -> Outcome:
    """The outcome; a pass needs the whole interval on the right side of the bound."""
    sides = [end <= bound if metric == TIME else end >= bound for end in interval]
    return "passed" if all(sides) else "inconclusive" if any(sides) else "failed"


def _share(text: str) -> float:
    share = above_zero(text)
    if share > 1:
        raise ValueError("a share above 0 and at most 1")
    return share
