"""`ddpscale suite convergence`: how long a model trains until its loss is reached.

It asks the questions of Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs":
how more ranks (and a larger global batch) and more parameters affect the iterations, epochs and seconds to a loss.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import CLASSIFIER
from pytest_ddpscale.judge.stats import Estimate
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.suites.engine import MeasuredSuite, Suite, SuiteNodes, mean_estimate
from pytest_ddpscale.suites.factors import by_factor
from pytest_ddpscale.suites.options import (
    above_zero,
    add_feature_weights,
    image_model,
    number,
    on_features,
    one_factor,
    several,
)
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows, cell_with_ends
from pytest_ddpscale.suites.training_runs import (
    Trained,
    add_training,
    made_set,
    notes_of,
    planned_runs,
    problems_of,
    read_set,
    sizes_of,
    trained_runs,
)
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

MOST_POINTS = 300  # of a drawn curve, means of neighbours
_REACHED = "Reached: by the mean of ten losses. Seconds: training, with waiting for data."
_COLUMNS = (
    Column("factor", "Factor"), Column("value", "Value", "{:,}"), Column("reached", "Reached"),
    Column("iterations", "Iterations"), Column("epochs", "Epochs", "{:.3g}"), Column("seconds", "Seconds"),
    Column("accuracy", "Accuracy", "{:.1%}"), Column("trained_parameters", "Parameters", "{:,}"),
    Column("global_batch", "Global batch"), Column("learning_rate", "Learning rate"),
)  # fmt: skip
_OF_CURVES = (Column("value", "Value"), Column("iteration", "Iteration"), Column("loss", "Loss"))


class Convergence(Suite):
    """Iterations, epochs and seconds to a loss."""

    name = "convergence"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model, data and loss."""
        add, explanation = adder(parser), "the first is the centre, where others stay"
        add("--loss", "LOSS", above_zero, "cross entropy to reach", 0.5)
        add("--model", "M,M", several(image_model), f"torchvision models, {explanation}; default: three linear layers")
        parser.add_argument("--frozen", action="store_true",
            help="train a classifier with hidden layers of --hidden on the features of --model")  # fmt: skip
        add_feature_weights(parser)
        add("--hidden", "N,N", several(number), f"units of the hidden layers, {explanation}", "256")
        add("--batches", "N,N", several(number), "further images per rank, beside --batch, the centre")
        add("--samples", "N", number, "images made in memory", 4096)
        add("--mnist", "FOLDER", Path, "train on MNIST's idx files instead")
        add("--global-batch", "N", number, "images of all ranks together, instead of --batch per rank")
        add_training(parser, pixels=None, epochs=20, batch=32)

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a run for each world size at the centre, then one for each other value of a factor."""
        is_frozen = bool(arguments.frozen or arguments.feature_weights)
        if is_frozen and not arguments.model:
            raise OptionError("--model", "found none", "the models to freeze")
        if arguments.global_batch and arguments.batches:
            raise OptionError("--global-batch", "found beside --batches", "one of them")
        arguments.image_size = arguments.image_size or (64 if arguments.model else 28)
        samples = made_set(arguments.samples) if arguments.mnist is None else read_set("mnist", arguments.mnist)
        sizes, runs = sizes_of(arguments, nodes), dict[str, TrainingRun]()
        batches, models = [arguments.batch, *(arguments.batches or ())], arguments.model or [CLASSIFIER]
        for batch, model, width in one_factor(batches, models, arguments.hidden):
            model = f"{model}{width}" if model == CLASSIFIER else model
            of = on_features(arguments, model, width) if is_frozen else {}
            name = model + f"-h{of.get('classifier_hidden')}" * is_frozen + f"-batch-{batch}" * (len(batches) > 1)
            arguments.batch, of_cell = batch, sizes[-1:] if runs else sizes
            planned = planned_runs(arguments, nodes, model, samples, name, of_cell, of, loss_threshold=arguments.loss)
            runs |= {run.id: run for run in planned}
        return nodes.plan((), training_runs=tuple(runs.values()), launches=arguments.launches)

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each factor and value, over its launches; losses by iteration, the mean of the launches."""
        runs = trained_runs(measured)
        of_cell = [[*same] for _, same in groupby(runs, lambda trained: (trained.run.name, trained.run.world_size))]
        cells = [_cell(launches, measured.confidence) for launches in of_cell]
        curve_of = {row["run"]: [*_curve(launches)] for row, launches in zip(cells, of_cell, strict=True)}
        rows = by_factor(sorted(cells, key=lambda row: -row["world_size"]))  # the centre first
        of = runs[0].run
        missed = [
            f"{trained.run.id}: a loss of {of.loss_threshold:g} was not reached in {of.epochs} epochs; the mean of the "
            f"last one is {trained.row['loss']:.4g}"
            for trained in runs if trained.row["is_complete"] and "iterations" not in trained.row
        ]  # fmt: skip
        failures = [*chain(*(trained.wrongs for trained in runs)), *missed, *filter(None, map(_without_meaning, runs))]
        reached = [
            f"{row['run']} in {cell_with_ends(row['iterations'])} iterations" for row in cells if row["iterations"]
        ]
        findings = [first_few(reached)] * bool(reached)
        findings += [f"{len(missed)} of {len(runs)} did not reach it"] * bool(missed)
        drawn = Drawn("Epochs to the loss", "factor", ("epochs",))
        table = Rows("convergence", "To the loss", _COLUMNS, rows, 2, [*notes_of(runs), _REACHED], drawn)
        losses = Rows("losses", "", _OF_CURVES, [
            {key: row[key] for key in ("run", "factor", "value")} | point
            for row in rows for point in curve_of[row["run"]]
        ], 2)  # fmt: skip
        curves = [
            replace(losses, name=f"losses-by-{factor.replace(' ', '-')}", rows=[*same], drawn=Drawn(
                f"Loss by iteration and {factor}", "iteration", ("loss",), "value", axes={"x_is_log": False}
            ))
            for factor, same in groupby(losses.rows, itemgetter("factor"))
        ]  # fmt: skip
        every = Rows("runs", "", [Column("run", "Run")], [trained.row for trained in runs])
        return Results(
            f"Convergence to a loss of {of.loss_threshold:g} on {of.samples.name}", findings, [table, losses, every],
            [*problems_of(measured, runs)], failures, pictures=curves,
        )  # fmt: skip


def _cell(launches: Sequence[Trained], confidence: float) -> Row:
    """What launches of one size and model have in common, and means, if all that were measured have a value."""
    first, complete = launches[0].run, [trained.row for trained in launches if trained.row["is_complete"]]
    model, row = first.workload.family.model, dict[str, Any]()
    for key in ("iterations", "epochs", "seconds", "accuracy"):
        values = [row[key] for row in complete if key in row]
        row[key] = None
        if complete and len(values) == len(complete):
            mean, ends = mean_estimate(values, confidence)
            most = 1.0 if key == "accuracy" else math.inf
            row[key] = Estimate(mean, (max(0.0, ends[0]), min(most, ends[1]))) if ends else mean
    return row | {
        "run": first.id, "name": first.name, "world_size": first.world_size, "batch": first.workload.batch_size,
        "model": "linear layers" if model.startswith(CLASSIFIER) else model,
        "trained_parameters": launches[0].row.get("trainable_parameters"),
        "reached": f"{sum('iterations' in trained.row for trained in launches)} of {len(launches)}",
        "global_batch": first.global_batch, "learning_rate": first.learning_rate,
    }  # fmt: skip


def _curve(launches: Sequence[Trained]) -> Iterator[dict[str, Any]]:
    """The mean loss of the launches that trained, by iteration of those that all of them made."""
    by_launch = ([loss for epoch in trained.epochs for loss in epoch.losses] for trained in launches if trained.epochs)
    losses = [*map(fmean, zip(*by_launch, strict=False))]
    width = len(losses) // MOST_POINTS + 1
    for first in range(0, len(losses), width):
        yield {"iteration": first + 1, "loss": fmean(losses[first : first + width])}


def _without_meaning(one: Trained) -> str:
    """What is wrong with pretrained features whose classifier guesses; empty if nothing is.

    Three standard deviations of a guesser's accuracy are its reach.
    """
    chance, samples, share = 1 / one.run.samples.classes, one.run.samples.validation_samples, one.row.get("accuracy")
    reach, weights = chance + 3 * math.sqrt(chance * (1 - chance) / samples), one.run.workload.family.feature_weights
    if weights is None or share is None or share > reach:
        return ""
    return f"{one.run.id}: guessing reaches up to {percent(reach, 1)}, the accuracy is {percent(share, 1)}: {weights}"
