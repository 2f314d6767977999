"""Report of convergence: time to the loss, loss curves, and epochs by number of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddpscale.plan.training_run import LOSS_WINDOW, loss_reached
from pytest_ddpscale.report.charts import About, Curve, LineAxes, Point, curves
from pytest_ddpscale.suites.suite import MeasuredSuite
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable
from pytest_ddpscale.suites.trained_run import RunRecords, trained_runs
from pytest_ddpscale.suites.whole_run_report import differing_replicas, problem_of, samples_text, skipped_text
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Picture

_MOST_POINTS = 300  # of a drawn curve
_RULES = {
    "constant": "the same at every global batch",
    "linear": "proportional to the global batch",
    "sqrt": "proportional to the square root of the global batch",
}
_REACHED = (
    f"The loss is reached at the first iteration at which the mean of the last {LOSS_WINDOW} losses is no higher than "
    "the threshold; each loss is the mean over the ranks' batches. Epochs are iterations divided by iterations per "
    "epoch. Seconds are rank 0's training time with waiting for data, without start-up and validation; all iterations "
    "of an epoch are taken as equally long."
)


@dataclass(frozen=True)
class TimeToLoss:
    """When a run reached its loss: iterations from 1, epochs, seconds of training."""

    iterations: int
    epochs: float
    seconds: float


def time_to_loss(one: RunRecords) -> TimeToLoss | None:
    """When a run reached its loss; None if it did not."""
    assert one.run.loss_threshold is not None
    reached = loss_reached(one.losses, one.run.loss_threshold)
    if reached is None:
        return None
    per_epoch = one.run.iterations
    whole, rest = divmod(reached, per_epoch)
    epochs_s = [epoch.ranks[0].trained_s for epoch in one.epochs]
    seconds = sum(epochs_s[:whole]) + (epochs_s[whole] * rest / per_epoch if rest else 0.0)
    return TimeToLoss(reached, reached / per_epoch, seconds)


def lowest_mean(one: RunRecords) -> float | None:
    """The lowest mean of `LOSS_WINDOW` consecutive losses; None if there are fewer."""
    losses = one.losses
    means = [sum(losses[end - LOSS_WINDOW : end]) / LOSS_WINDOW for end in range(LOSS_WINDOW, len(losses) + 1)]
    return min(means, default=None)


def convergence_report(measured: MeasuredSuite) -> SuiteReport:
    """The whole report."""
    runs = trained_runs(measured.evidence)
    complete = [one for one in runs if one.is_complete]
    problems = [f"{one.run.id}: {problem}" for one in runs if (problem := problem_of(one, measured))]
    failures = [f"{one.run.id}: {_not_reached(one)}" for one in complete if time_to_loss(one) is None]
    failures += [f"{one.run.id}: {wrong}" for one in complete for wrong in differing_replicas(one)]
    sections = [SuiteSection("What was trained", _configuration(runs))]
    if complete:
        skipped = [f"{one.run.id}: {skipped_text(one)}." for one in complete if one.skipped_steps]
        sections.append(SuiteSection("To the loss", [_REACHED, *skipped, *_comparison(complete)], [_table(complete)]))
        sections.append(SuiteSection("Loss curves", figures=_curves(complete)))
        by_parameters = _by_parameters(complete)
        if len(by_parameters) > 1:
            sections.append(_parameters(by_parameters))
    values = {"runs": [_values(one) for one in runs]}
    return SuiteReport(_headline(runs, complete), sections, problems, values, failures=failures)


def _headline(runs: Sequence[RunRecords], complete: Sequence[RunRecords]) -> str:
    of = runs[0].run
    found = [(one, time) for one in complete if (time := time_to_loss(one)) is not None]
    parts = [f"{one.run.name}@{one.run.world_size} in {time.iterations} iterations" for one, time in found]
    missing = len(runs) - len(found)
    parts += [f"{missing} of {len(runs)} did not reach it"] if missing else []
    return f"Convergence to a loss of {of.loss_threshold:g} on {of.samples.name}: {', '.join(parts)}"


def _not_reached(one: RunRecords) -> str:
    lowest = lowest_mean(one)
    said = f"; the lowest mean of {LOSS_WINDOW} iterations is {lowest:.4g}" if lowest is not None else ""
    return f"a loss of {one.run.loss_threshold:g} was not reached in {one.run.epochs} epochs{said}"


def _configuration(runs: Sequence[RunRecords]) -> list[str]:
    of = runs[0].run
    batches = {one.run.global_batch for one in runs}
    batch = f"a global batch of {of.global_batch}, split among the ranks" if len(batches) == 1 and len(runs) > 1 else (
        f"{of.workload.batch_size} images per rank")  # fmt: skip
    return [
        samples_text(of),
        f"{of.optimizer}, {batch}; at most {of.epochs} epochs; {of.workload.precision}, "
        f"{of.workload.family.image_size} pixels; seed {of.seed}: weights and the order of the images are the same at "
        "every world size.",
        f"Learning-rate rule: {of.rule}: {_RULES[of.rule]}.",
    ]


def _table(complete: Sequence[RunRecords]) -> SuiteTable:
    columns = ("Run", "Ranks", "Parameters", "Global batch", "Learning rate", "Iterations", "Epochs", "Seconds",
               "Last accuracy")  # fmt: skip
    rows = []
    for one in complete:
        time, run = time_to_loss(one), one.run
        cells = (
            (str(time.iterations), f"{time.epochs:.2f}", f"{time.seconds:.2f}")
            if time is not None
            else (f"not reached in {len(one.losses)}", f"not in {run.epochs}", "–")
        )
        parameters = f"{one.end.trainable_parameters:,}" if one.end is not None else "–"
        rows.append((run.id, str(run.world_size), parameters, str(run.global_batch), f"{run.learning_rate:.4g}", *cells,
                     percent(one.epochs[-1].accuracy, 1)))  # fmt: skip
    return SuiteTable(columns, rows)


def _comparison(complete: Sequence[RunRecords]) -> list[str]:
    """Effect of more ranks on iterations and epochs of the first model."""
    first = complete[0].run
    times = {
        one.run.world_size: time
        for one in complete
        if one.run.name == first.name and one.run.launch == 1 and (time := time_to_loss(one)) is not None
    }
    if len(times) < 2:
        return []
    few, many = min(times), max(times)
    one, other = times[few], times[many]
    return [
        f"From {few} to {many} ranks: {one.iterations} → {other.iterations} iterations "
        f"({other.iterations / one.iterations:.2f}x), {one.epochs:.2f} → {other.epochs:.2f} epochs "
        f"({other.epochs / one.epochs:.2f}x), {one.seconds:.3g} → {other.seconds:.3g} s "
        f"({other.seconds / one.seconds:.2f}x)."
    ]


def _curves(complete: Sequence[RunRecords]) -> list[Picture | None]:
    first = [one for one in complete if one.run.launch == 1]
    by_iteration = [Curve(_named(one), _thinned(one.losses, 1.0)) for one in first]
    by_epoch = [Curve(_named(one), _thinned(one.losses, 1 / one.run.iterations)) for one in first]
    return [
        curves(About("loss", "Loss by iteration"), LineAxes("iteration", "loss"), {"": by_iteration}),
        curves(About("loss-epochs", "Loss by epoch"), LineAxes("epoch", "loss"), {"": by_epoch}),
    ]


def _named(one: RunRecords) -> str:
    return f"{one.run.name}, {one.run.world_size} ranks, batch {one.run.global_batch}"


def _thinned(losses: Sequence[float], step: float) -> list[Point]:
    """Means over neighbours, so that at most `_MOST_POINTS` points remain."""
    width = -(-len(losses) // _MOST_POINTS)
    chunks = [losses[first : first + width] for first in range(0, len(losses), width)]
    return [Point((place + 0.5) * width * step, sum(chunk) / len(chunk)) for place, chunk in enumerate(chunks)]


def _by_parameters(complete: Sequence[RunRecords]) -> list[tuple[RunRecords, TimeToLoss]]:
    """Runs of the first launch at the largest world size that reached the loss, by trainable parameters."""
    largest = max(one.run.world_size for one in complete)
    found = [
        (one, time)
        for one in complete
        if one.run.world_size == largest and one.run.launch == 1 and (time := time_to_loss(one)) is not None
    ]
    return sorted(found, key=lambda pair: pair[0].end.trainable_parameters if pair[0].end else 0)


def _parameters(found: Sequence[tuple[RunRecords, TimeToLoss]]) -> SuiteSection:
    ranks = found[0][0].run.world_size
    points = [Point(float(one.end.trainable_parameters), time.epochs) for one, time in found if one.end is not None]
    rows = [(f"{int(point.x):,}", one.run.name, f"{time.epochs:.2f}", str(time.iterations), f"{time.seconds:.2f}")
            for point, (one, time) in zip(points, found, strict=True)]  # fmt: skip
    axes = LineAxes("trainable parameters", "epochs", x_is_log=True, x_name="{:,.0f}".format)
    about = About("parameters", "Epochs to the loss by trainable parameters")
    chart = curves(about, axes, {"": [Curve(f"{ranks} ranks", points)]})
    columns = ("Trainable parameters", "Model", "Epochs", "Iterations", "Seconds")
    return SuiteSection("By number of parameters", [], [SuiteTable(columns, rows)], figures=[chart])


def _values(one: RunRecords) -> dict[str, Any]:
    time = time_to_loss(one) if one.is_complete else None
    return {
        "run": one.run.id, "world_size": one.run.world_size, "is_complete": one.is_complete,
        "global_batch": one.run.global_batch, "learning_rate": one.run.learning_rate, "rule": one.run.rule,
        "loss_threshold": one.run.loss_threshold,
        "trainable_parameters": one.end.trainable_parameters if one.end is not None else None,
        "skipped_steps": one.skipped_steps if one.end is not None else None,
        "iterations": time.iterations if time else None, "epochs": time.epochs if time else None,
        "seconds": time.seconds if time else None, "lowest_mean_loss": lowest_mean(one), "losses": one.losses,
    }  # fmt: skip
