"""`ddpscale suite whole-run`: a model trained for some epochs at several world sizes. `convergence` trains likewise.

As in chapter 12 of Jordi Torres' "Supercomputing for AI", not only images per second are measured but also the complete
time from the start of the processes to the last validation, and where it goes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, get_args

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.judge.judged import MOST_SKIPPED_STEPS
from pytest_ddpscale.plan.arm import CompileMode
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.training_run import (
    DataKind,
    LearningRateRule,
    Optimizer,
    SampleSet,
    TrainingRun,
    loss_reached,
)
from pytest_ddpscale.plan.workload import MOST_LOADER_WORKERS, Split
from pytest_ddpscale.report.scaling import scaling_rows, sweet_spots
from pytest_ddpscale.run.records import Checkpoint, LaunchTime, StudyEnd, TrainedEpoch, TrainedRun
from pytest_ddpscale.settings import share_between, whole
from pytest_ddpscale.suites.engine import MeasuredSuite, Suite, SuiteNodes, mean_estimate
from pytest_ddpscale.suites.options import (
    above_zero,
    add_images,
    at_most,
    image_model,
    image_workload,
    number,
    numbers,
)
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows, cell
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

# Default for the batch of one rank: SGD's is Banerjee and Shah's, the others are torch's defaults.
LEARNING_RATES: dict[Optimizer, float] = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001}
MOST_UNEXPLAINED = 0.02  # of the outer clock's time, in either direction
CLASSES = 10  # of images made in memory, as of MNIST
# Parts of the complete time on rank 0's clock, in order, and titles; training and validation wait for data.
SPANS = {
    "start_up_s": "start", "compile_s": "compile", "waiting_s": "data", "training_s": "training",
    "validation_s": "validation", "checkpoint_s": "checkpoint",
}  # fmt: skip
# The learning rate is that of one rank times the number of ranks to the power of this: linear by Goyal et al.
# (arXiv:1706.02677), sqrt by Krizhevsky (arXiv:1404.5997).
RULES: dict[LearningRateRule, float] = {"constant": 0, "sqrt": 0.5, "linear": 1}
_SEEDS = 1000  # between launches, as an epoch's order is drawn from the seed and the epoch
_SIZES = (
    "Seconds of the complete time and its parts. Throughput: without the first epoch. Efficiency: relative to the "
    "smallest size; above 100 % if that was slower than its share, as by data that fits no cache. Gain: of throughput, "
    "per doubling. Saved: of the next smaller size's time. kWh, and its price: from the first poll of the GPUs' "
    "sampler on; unknown if one cannot be read, as on a CPU."
)
_OF_BOUNDS = [Column(name, name.capitalize()) for name in ("run", "metric", "value", "bound", "outcome")]


class WholeRun(Suite):
    """Complete time, throughput and accuracy by world size."""

    name = "whole-run"
    takes = ("confidence",)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model, data, training and bounds."""
        add = adder(parser)
        add("--model", "MODEL", image_model, "torchvision model", "vit_b_16")
        parser.add_argument("--folder", action="append", type=Path, default=[], metavar="FOLDER",
            help="images in train/CLASS and val/CLASS; may be given twice, to compare two data sets")  # fmt: skip
        add("--workers", "N", whole(MOST_LOADER_WORKERS, 0), "loader processes per rank", 4)
        add("--made", "N,N", numbers, "without --folder: images of data sets made in memory", "1024,8192")
        parser.add_argument("--compile", choices=get_args(CompileMode), default="no",
            help="mode of torch.compile; default: %(default)s")  # fmt: skip
        add_training(parser, pixels=224, epochs=5, batch=64)
        add("--at-most-time-to-train", "S", above_zero, "most seconds of complete time for the largest world size")
        add("--at-least-accuracy", "SHARE", share_between(0, 1), "least accuracy of its last validation, such as 0.4")
        add("--deadline", "S", above_zero, "complete time wanted; default: --at-most-time-to-train")
        add("--gpu-hour-price", "PRICE", above_zero, "of a GPU for an hour")
        add("--kwh-price", "PRICE", above_zero, "of a kWh, for the GPUs' energy")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a run for each data set and world size, one data set after the other."""
        sets = [*(read_set("folder", folder) for folder in arguments.folder)] or [*map(made_set, arguments.made)]
        if len({samples.name for samples in sets}) < len(sets):
            raise OptionError("--folder", "two data sets have the same name", "another name for each")
        sizes, options = sizes_of(arguments, nodes), {
            "compile_mode": arguments.compile, "loader_workers": arguments.workers,
            "deadline_s": arguments.deadline or arguments.at_most_time_to_train,
            "gpu_hour_price": arguments.gpu_hour_price, "kwh_price": arguments.kwh_price,
            # Of the largest size.
            "most_s": arguments.at_most_time_to_train, "least_accuracy": arguments.at_least_accuracy,
        }  # fmt: skip
        runs = (
            planned_runs(arguments, nodes, arguments.model, samples, samples.name, sizes, {}, **options)
            for samples in sets
        )
        return nodes.plan((), training_runs=tuple(chain(*runs)), launches=arguments.launches)

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each data set and size, for each run, for each epoch, and for each bound."""
        runs, rate, device = trained_runs(measured), f"{measured.plan.unit}/s", measured.plan.device
        of, notes = runs[0].run, [_SIZES, *notes_of(runs)]
        required, sizes, best = list[Row](), list[Row](), list[str]()
        for name, same in groupby(runs, lambda trained: trained.run.name):
            of_name = [*same]
            if rows := sizes_of_set(trained.row for trained in of_name):
                sizes += rows
                notes += [f"{name}: {sentence}." for sentence in sweet_spots(rows, device, of.deadline_s)]
                fastest = min(rows, key=itemgetter("complete_s"))
                best.append(f"{name} {cell(fastest['complete_s'])} s on {fastest['ranks']}")
            required += _required(of_name, measured.confidence)
        epochs = [
            {
                "run": trained.run.id, "epoch": epoch.epoch + 1, "samples_per_s": epoch.samples_per_s,
                "loss": epoch.mean_loss, "accuracy": epoch.accuracy,
                "validation_samples_per_s": epoch.validation_samples_per_s,
            }
            for trained in runs for epoch in trained.epochs
        ]  # fmt: skip
        run, accuracy = Column("run", "Run"), Column("accuracy", "Accuracy", "{:.1%}")
        complete, per_s = Column("complete_s", "Complete s"), Column("samples_per_s", rate)
        parts = {name: title for name, title in SPANS.items() if any(row[name] for row in sizes)}
        speed_up = Drawn("Speed-up of throughput", "ranks", ("speedup",), "data_set", {"scale": "log", "ideal": float})
        scaling = Rows("sizes", "Scaling", [
            Column("data_set", "Data set"), Column("ranks", f"{device}s"), complete,
            *(Column(*one, "{:.1f}") for one in parts.items()), per_s, accuracy,
            Column("memory_gb", "GB", "{:.3g}"), Column("speedup", "Speed-up"),
            Column("efficiency", "Efficiency", "{:.1%}"),
            Column("gain", "Gain", "{:+.0%}"), Column("saved_share", "Saved", "{:.1%}"),
            Column("gpu_hours", f"{device}-hours"), Column("kwh", "kWh"), Column("price", "Price"),
        ], sizes, 2, notes, speed_up)  # fmt: skip
        spent = replace(
            scaling, name="complete-time", drawn=Drawn("Complete time and its parts in s", "data_set", tuple(parts))
        )
        tables = [
            Rows("required", "Requirements", _OF_BOUNDS, required, 2),
            scaling,
            # Shown only if the table above lacks some, such as of one epoch or of further launches.
            Rows("runs", "Runs" * (len(sizes) < len(runs)), [
                run, complete, Column("unexplained", "Unexplained", "{:.2%}"), per_s, accuracy,
            ], [trained.row for trained in runs]),
            Rows("epochs", "Epochs", [
                run, Column("epoch", "Epoch"), Column("samples_per_s", f"Training {rate}"),
                Column("loss", "Mean loss"), accuracy, Column("validation_samples_per_s", f"Validation {rate}"),
            ], epochs, 2),
        ]  # fmt: skip
        failures = [wrong for trained in runs for wrong in trained.wrongs] + [
            f"{row['run']}: {row['metric']} {cell(row['value'])}, {row['outcome']}; the bound is {row['bound']:g}"
            for row in required if row["outcome"] != "passed"
        ]  # fmt: skip
        title = f"Whole runs of {of.workload.family.model} in {of.workload.precision}, {of.epochs} epochs"
        findings = [f"complete time at best {first_few(best)}"] * bool(best)
        return Results(title, findings, tables, [*problems_of(measured, runs)], failures, pictures=[spent])


def sizes_of_set(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """A row for each size of a data set with a throughput, of launches the median by complete time."""
    measured = sorted((row for row in rows if row.get("samples_per_s")), key=itemgetter("ranks", "complete_s"))
    of_size = ([*same] for _, same in groupby(measured, itemgetter("ranks")))
    return scaling_rows(launches[(len(launches) - 1) // 2] for launches in of_size)


def _required(runs: Sequence[Trained], confidence: float) -> Iterator[Row]:
    """A row for each bound of a data set's largest size: the mean over launches, with an interval of several.

    A pass needs all launches, complete, valid and with a checkpoint, and the whole interval beyond the bound.
    """
    of = runs[-1].run
    launches = [trained for trained in runs if trained.run.world_size == of.world_size]
    is_sound = all(trained.row.get("checkpoint_problem") == "" and not trained.wrongs for trained in launches)
    for metric, key, bound, side in (
        ("time_to_train", "complete_s", of.most_s, -1), ("validation_accuracy", "accuracy", of.least_accuracy, 1)
    ):  # fmt: skip
        if bound is None:
            continue
        value = mean_estimate([trained.row[key] for trained in launches], confidence) if is_sound else None
        sides = {side * (end - bound) >= 0 for end in value.interval or [value.value]} if value else ()
        outcomes = {(): "not measured", (True,): "passed", (False,): "failed"}
        outcome = outcomes.get((*sides,), "inconclusive")
        yield {"run": launches[0].run.id, "metric": metric, "value": value, "bound": bound, "outcome": outcome}


def add_training(parser: argparse.ArgumentParser, *, pixels: int | None, epochs: int, batch: int) -> None:
    """Add options for training."""
    add, choose = adder(parser), parser.add_argument
    add_images(parser, pixels)
    add("--ranks", "1,2,4", numbers, "world sizes; default: powers of two up to a node, then whole nodes")
    add("--epochs", "N", number, "", epochs)
    add("--batch", "N", number, "images per rank and step", batch)
    choose("--optimizer", choices=LEARNING_RATES, default="sgd", help="default: %(default)s (momentum 0.9)")
    add("--lr", "RATE", above_zero, "learning rate for the batch of one rank; default: 0.01, adam and adamw 0.001")
    choose("--lr-rule", choices=RULES, default="constant",
        help="how the learning rate scales with the global batch; default: %(default)s")  # fmt: skip
    add("--seed", "N", whole(10**8, 0), "seed of weights and data order", 0)
    add("--launches", "N", whole(10), "how often to repeat every run, each with a seed of its own", 1)


def made_set(train_samples: int) -> SampleSet:
    """Images made in memory, with an eighth as many for validation, at least one."""
    return SampleSet("made", f"made-{train_samples}", train_samples, max(1, train_samples // 8), CLASSES)


def read_set(kind: DataKind, folder: Path) -> SampleSet:
    """The data set in a folder, as ranks will read it. Raises OptionError."""
    from pytest_ddpscale.datasets.image_samples import read_mnist, read_samples

    path, of_any = folder.expanduser().absolute(), ImageFamily("resnet50", num_classes=10**6)
    try:
        splits = [
            read_mnist(path, split)[1] if kind == "mnist" else read_samples(str(path), split, of_any)
            for split in get_args(Split)
        ]
    except ValueError as error:
        raise OptionError(f"--{kind}", str(error)) from None
    train, validation = map(len, splits)
    return SampleSet(kind, path.name, train, validation, getattr(splits[0], "classes", CLASSES), str(path))


def sizes_of(arguments: argparse.Namespace, nodes: SuiteNodes) -> list[int]:
    """World sizes asked for, or powers of two within a node, then of whole nodes, and all. Raises OptionError."""
    ends = (1, nodes.ranks_per_node), (nodes.ranks_per_node, nodes.world_size)
    usual = {first * 2**power for first, last in ends for power in range(20) if first * 2**power < last}
    sizes: list[int] = arguments.ranks or sorted({*usual, nodes.world_size})
    at_most("--ranks", sizes[-1], nodes.world_size)
    return sizes


def planned_runs(
    arguments: argparse.Namespace, nodes: SuiteNodes, model: str, samples: SampleSet, name: str, sizes: Iterable[int],
    of: Mapping[str, Any], **fields: Any,
) -> Iterator[TrainingRun]:  # fmt: skip
    """One run for each world size and launch, with options `of` its model and further fields.

    Raises:
        OptionError: a size does not fit the nodes or the data.
    """
    global_batch, per_node = getattr(arguments, "global_batch", None), nodes.ranks_per_node
    rate = arguments.lr or LEARNING_RATES[arguments.optimizer]
    for size in sizes:
        if size > per_node and size % per_node:
            found = f"found {size}, which does not fill whole nodes of {per_node} ranks"
            raise OptionError("--ranks", found, f"at most {per_node}, or a multiple of it")
        batch, uneven = divmod(global_batch or arguments.batch * size, size)
        if uneven:
            raise OptionError("--global-batch", f"found {global_batch} for {size} ranks", f"a multiple of {size}")
        workload = image_workload(arguments, nodes, batch, model=model, name=name, num_classes=samples.classes, **of)
        scaled = rate if global_batch else rate * size ** RULES[arguments.lr_rule]
        try:
            run = TrainingRun(
                name, workload, samples, -(-size // per_node), min(size, per_node), arguments.epochs,
                arguments.optimizer, scaled, arguments.lr_rule, seed=arguments.seed, **fields,
            )  # fmt: skip
        except ValueError as error:
            raise OptionError("--ranks, --batch", str(error), "", "Take fewer ranks, or a smaller batch.") from None
        for launch in range(arguments.launches):
            yield replace(run, launch=launch + 1, seed=run.seed + launch * _SEEDS)


class Trained(NamedTuple):
    """What was recorded of a run.

    Attributes:
        run: the planned run.
        epochs: in order.
        row: of its table, with what was measured if it ended regularly, by training all epochs or reaching its loss.
        wrongs: why a complete run passes nothing.
    """

    run: TrainingRun
    epochs: Sequence[TrainedEpoch]
    row: Row
    wrongs: Sequence[str]


def trained_runs(measured: MeasuredSuite) -> list[Trained]:
    """All planned runs. `run/consistent.py` refuses lines that contradict each other or the plan."""
    trained = []
    for run in measured.plan.training_runs:
        lines = [line for line in measured.evidence.training if line.study == run.id]
        last: dict[type, Any] = {type(line): line for line in lines}
        epochs = [line for line in lines if isinstance(line, TrainedEpoch)]
        row = {
            "run": run.id, "ranks": run.world_size, "data_set": run.samples.name, "launch": run.launch,
            "is_complete": False, "global_batch": run.global_batch, "learning_rate": run.learning_rate,
        }  # fmt: skip
        ended, wrongs = last.get(StudyEnd), list[str]()
        if ended and ended.reason in ("rounds", "decided") and {TrainedRun, LaunchTime} <= last.keys():
            end = last[TrainedRun]
            row |= _measured(run, epochs, end, last[LaunchTime].seconds)
            wrongs = _wrongs(run, row, [rank.parameters_checksum for rank in end.ranks])
        trained.append(Trained(run, epochs, row, wrongs))
    return trained


def _measured(run: TrainingRun, epochs: Sequence[TrainedEpoch], end: TrainedRun, outer_s: float) -> dict[str, Any]:
    """What a complete run adds to its row; `outer_s` is from its launch until the supervisor heard of the end."""
    of_rank_0, lacks = [epoch.ranks[0] for epoch in epochs], "none was recorded" * (run.loss_threshold is None)
    checkpoint = end.checkpoint or Checkpoint(seconds=0.0, problem=lacks)
    spans_s = {name: sum(getattr(rank, name, 0.0) for rank in of_rank_0) for name in SPANS}
    spans_s["waiting_s"] += sum(rank.validation_waiting_s for rank in of_rank_0)
    spans_s |= {"start_up_s": end.start_up_s, "checkpoint_s": checkpoint.seconds}
    complete_s = sum(spans_s.values())
    kwh = sum(math.nan if rank.energy_j is None else rank.energy_j for rank in end.ranks) / 3.6e6
    prices = [run.world_size * complete_s / 3600 * (run.gpu_hour_price or 0)]
    prices += [kwh * run.kwh_price] if run.kwh_price else []
    known = {"memory_gb": max(rank.reserved_bytes or 0 for rank in end.ranks) / 1e9, "kwh": kwh, "price": sum(prices)}
    row = {
        "is_complete": True, "complete_s": complete_s, **spans_s, "outer_s": outer_s,
        "unexplained": 1 - complete_s / outer_s,
        # Caches fill and kernels compile in the first epoch.
        "samples_per_s": fmean(epoch.samples_per_s for epoch in epochs[1:]) if len(epochs) > 1 else None,
        "accuracy": epochs[-1].accuracy, "loss": epochs[-1].mean_loss, "trainable_parameters": end.trainable_parameters,
        **{name: value for name, value in known.items() if value > 0},  # NaN is not
        "skipped_steps": max(rank.skipped_steps for rank in end.ranks), "steps": len(epochs) * run.iterations,
        "checkpoint_bytes": checkpoint.size_bytes, "checkpoint_read_s": checkpoint.read_s,
        "checkpoint_problem": checkpoint.problem,
    }  # fmt: skip
    losses = [loss for epoch in epochs for loss in epoch.losses]
    if run.loss_threshold and (reached := loss_reached(losses, run.loss_threshold)):
        iterations_s = np.repeat([rank.trained_s / run.iterations for rank in of_rank_0], run.iterations)
        seconds = float(iterations_s[:reached].sum())
        row |= {"iterations": reached, "epochs": reached / run.iterations, "seconds": seconds}
    return row


def _wrongs(run: TrainingRun, row: Row, checksums: Sequence[str]) -> list[str]:
    """Why a complete run is invalid: replicas differ, or, where its times count, steps or seconds are missing."""
    times, skipped, missing = run.loss_threshold is None, row["skipped_steps"], row["unexplained"]
    checks = {
        f"the ranks' parameters differ at the end: {', '.join(checksums)}": len({*checksums}) > 1,
        f"loss scaling skipped {skipped} of {row['steps']} optimizer steps; "
        f"at most {percent(MOST_SKIPPED_STEPS)} is allowed: train more epochs, or in bf16":
            times and skipped > MOST_SKIPPED_STEPS * row["steps"],
        f"{percent(missing, 1)} of the {row['outer_s']:.4g} s since its launch are unexplained; "
        f"at most {percent(MOST_UNEXPLAINED)} is allowed": times and abs(missing) > MOST_UNEXPLAINED,
    }  # fmt: skip
    return [f"{run.id}: {wrong}" for wrong, is_so in checks.items() if is_so]


def problems_of(measured: MeasuredSuite, runs: Iterable[Trained]) -> Iterator[str]:
    """Why runs are not complete, or have no checkpoint."""
    for run, epochs, row, _ in runs:
        if not row["is_complete"]:
            why = measured.why_missing(run.id) or "its end was not recorded"
            yield f"{run.id}, {len(epochs)} of {run.epochs} epochs trained: {why}"
        elif why := row["checkpoint_problem"]:
            yield f"{run.id}: no checkpoint: {why}"


def notes_of(runs: Sequence[Trained]) -> Iterator[str]:
    """What was trained."""
    of = runs[0].run
    yield (
        f"{of.workload.family.form}, {of.workload.precision}, at most {of.epochs} epochs, torch.compile: "
        f"{of.compile_mode}, DDP at every size, {of.optimizer}, learning-rate rule {of.rule}, seed {of.seed} and "
        f"{_SEEDS} more each launch."
    )
    for samples in dict.fromkeys(trained.run.samples for trained in runs):
        numbers = f"{samples.train_samples} images to train, {samples.validation_samples} to validate"
        yield f"{samples.name}: {numbers}, {samples.classes} classes."
