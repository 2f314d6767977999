"""`ddpscale suite whole-run` and `ddpscale suite convergence`: a model trained for some epochs at several world sizes.

As in chapter 12 of Jordi Torres' "Supercomputing for AI", not only images per second are measured but also the complete
time from the start of the processes to the last validation, and where it goes. Convergence asks the questions of
Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs": how more ranks (and a
larger global batch) and more parameters affect the iterations, epochs and seconds to a loss.
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
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import CLASSIFIER, ImageFamily
from pytest_ddpscale.judge.judged import MOST_SKIPPED_STEPS
from pytest_ddpscale.judge.stats import Found
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
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.records import Checkpoint, LaunchTime, StudyEnd, TrainedEpoch, TrainedRun
from pytest_ddpscale.settings import share_between, whole
from pytest_ddpscale.suites.engine import MeasuredSuite, Suite, SuiteNodes, mean_estimate
from pytest_ddpscale.suites.factors import by_factor
from pytest_ddpscale.suites.options import (
    MOST_BATCH,
    MOST_PIXELS,
    MOST_RANKS,
    PRECISIONS,
    above_zero,
    add_feature_weights,
    at_most,
    counts,
    image_model,
    image_workload,
    on_features,
    one_factor,
    several,
)
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows, cell, cell_with_ends
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

# Default for the batch of one rank: SGD's is Banerjee and Shah's, the others are torch's defaults.
LEARNING_RATES: dict[Optimizer, float] = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001}
MOST_HIDDEN, MOST_SAMPLES = 10**5, 10**7
MOST_UNEXPLAINED = 0.02  # of the outer clock's time, in either direction
_ANY = ImageFamily("resnet50", num_classes=10**6)  # a model for the classes of any folder
CLASSES = 10  # of images made in memory, as of MNIST
# Parts of the complete time on rank 0's clock, in order, and titles; training and validation wait for data.
SPANS = {
    "start_up_s": "start", "compile_s": "compile", "waiting_s": "data", "training_s": "training",
    "validation_s": "validation", "checkpoint_s": "checkpoint",
}  # fmt: skip
_SEEDS = 1000  # between launches, as an epoch's order is drawn from the seed and the epoch
_MOST_POINTS = 300  # of a drawn curve, means of neighbours
# Metrics of the largest size: a run's key, its field with the bound, and on which side of it values have to be.
_BOUNDED = (
    ("time_to_train", "complete_s", "most_s", -1), ("validation_accuracy", "accuracy", "least_accuracy", 1)
)  # fmt: skip
_SIZES = (
    "Seconds of the complete time and its parts. Throughput: without the first epoch. Efficiency: relative to the "
    "smallest size. Gain: of throughput, per doubling. Saved: of the next smaller size's time."
)
_REACHED = "Reached: by the mean of ten losses. Seconds: training, with waiting for data."


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


def trained_runs(evidence: Evidence) -> list[Trained]:
    """All planned runs. `run/consistent.py` refuses lines that contradict each other or the plan."""
    found = []
    for run in evidence.plan.training_runs:
        lines = [line for line in evidence.training if line.study == run.id]
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
        found.append(Trained(run, epochs, row, wrongs))
    return found


def _measured(run: TrainingRun, epochs: Sequence[TrainedEpoch], end: TrainedRun, outer_s: float) -> dict[str, Any]:
    """What a complete run adds to its row; `outer_s` is from its launch until the supervisor heard of the end."""
    of_rank_0, lacks = [epoch.ranks[0] for epoch in epochs], "none was recorded" * (run.loss_threshold is None)
    checkpoint = end.checkpoint or Checkpoint(seconds=0.0, problem=lacks)
    spans_s = {name: sum(getattr(rank, name, 0.0) for rank in of_rank_0) for name in SPANS}
    spans_s["waiting_s"] += sum(rank.validation_waiting_s for rank in of_rank_0)
    spans_s |= {"start_up_s": end.start_up_s, "checkpoint_s": checkpoint.seconds}
    complete_s, energies_j = sum(spans_s.values()), [rank.energy_j for rank in end.ranks]
    kwh = None if None in energies_j else sum(filter(None, energies_j)) / 3.6e6
    costs = (run.world_size * complete_s / 3600, run.gpu_hour_price), (kwh, run.kwh_price)
    prices = [amount and amount * price for amount, price in costs if price is not None]
    known = {
        "memory_gb": max(rank.reserved_bytes or 0 for rank in end.ranks) / 1e9, "kwh": kwh,
        "price": None if None in prices else sum(filter(None, prices)),
    }  # fmt: skip
    row = {
        "is_complete": True, "complete_s": complete_s, **spans_s, "outer_s": outer_s,
        "unexplained": 1 - complete_s / outer_s,
        # Caches fill and kernels compile in the first epoch.
        "samples_per_s": fmean(epoch.samples_per_s for epoch in epochs[1:]) if len(epochs) > 1 else None,
        "accuracy": epochs[-1].accuracy, "loss": epochs[-1].mean_loss, "trainable_parameters": end.trainable_parameters,
        **{name: value for name, value in known.items() if value},
        "skipped_steps": max(rank.skipped_steps for rank in end.ranks), "steps": len(epochs) * run.iterations,
        "checkpoint_bytes": checkpoint.size_bytes, "checkpoint_read_s": checkpoint.read_s,
        "checkpoint_problem": checkpoint.problem,
    }  # fmt: skip
    losses = [loss for epoch in epochs for loss in epoch.losses]
    reached = None if run.loss_threshold is None else loss_reached(losses, run.loss_threshold)
    if reached is not None:
        iterations_s = [rank.trained_s / run.iterations for rank in of_rank_0 for _ in range(run.iterations)]
        row |= {"iterations": reached, "epochs": reached / run.iterations, "seconds": sum(iterations_s[:reached])}
    return row


def _wrongs(run: TrainingRun, row: Row, checksums: Sequence[str]) -> list[str]:
    """Why a complete run is invalid: replicas differ, or, where its times count, steps or seconds are missing."""
    times, skipped, missing = run.loss_threshold is None, row["skipped_steps"], row["unexplained"]
    most_skipped, most_missing = percent(MOST_SKIPPED_STEPS), percent(MOST_UNEXPLAINED)
    checks = {
        f"the ranks' parameters differ at the end: {', '.join(checksums)}": len({*checksums}) > 1,
        f"loss scaling skipped {skipped} of {row['steps']} optimizer steps; "
        f"at most {most_skipped} is allowed: train more epochs, or in bf16":
            times and skipped > MOST_SKIPPED_STEPS * row["steps"],
        f"{percent(missing, 1)} of the {row['outer_s']:.4g} s since its launch are unexplained; "
        f"at most {most_missing} is allowed": times and abs(missing) > MOST_UNEXPLAINED,
    }  # fmt: skip
    return [f"{run.id}: {wrong}" for wrong, is_so in checks.items() if is_so]


def _problems(measured: MeasuredSuite, runs: Sequence[Trained]) -> list[str]:
    """Why runs are not complete, or have no checkpoint."""
    return [
        f"{one.run.id}, {len(one.epochs)} of {one.run.epochs} epochs trained: "
        f"{measured.why_missing(one.run.id) or 'its end was not recorded'}"
        for one in runs if not one.row["is_complete"]
    ] + [
        f"{one.run.id}: no checkpoint: {why}" for one in runs if (why := one.row.get("checkpoint_problem"))
    ]  # fmt: skip


def _notes(runs: Sequence[Trained]) -> Iterator[str]:
    """What was trained."""
    of = runs[0].run
    yield (
        f"{of.workload.family.form}, {of.workload.precision}, at most {of.epochs} epochs, torch.compile: "
        f"{of.compile_mode}, DDP at every size, {of.optimizer}, learning-rate rule {of.rule}, seed {of.seed}"
        f"{f' and each launch {_SEEDS} more' * (runs[-1].run.launch > 1)}."
    )
    for samples in dict.fromkeys(one.run.samples for one in runs):
        numbers = f"{samples.train_samples} images to train, {samples.validation_samples} to validate"
        yield f"{samples.name}: {numbers}, {samples.classes} classes."


def _add_training(parser: argparse.ArgumentParser, *, pixels: int | None, epochs: int, batch: int) -> None:
    """Add options for training."""
    add, choose = adder(parser), parser.add_argument
    add("--image-size", "PIXELS", whole(MOST_PIXELS), "" if pixels else "default: 28, with --model 64", pixels)
    add("--ranks", "1,2,4", counts(MOST_RANKS), "world sizes; default: powers of two up to a node, then whole nodes")
    add("--epochs", "N", whole(10**5), "", epochs)
    add("--batch", "N", whole(MOST_BATCH), "images per rank and step", batch)
    choose("--precision", choices=PRECISIONS, default="fp32", help="by autocast; default: %(default)s")
    choose("--optimizer", choices=LEARNING_RATES, default="sgd", help="default: %(default)s (momentum 0.9)")
    add("--lr", "RATE", above_zero, "learning rate for the batch of one rank; default: 0.01, adam and adamw 0.001")
    choose("--lr-rule", choices=get_args(LearningRateRule), default="constant",
        help="how the learning rate scales with the global batch; default: %(default)s")  # fmt: skip
    add("--seed", "N", whole(10**9 - 1, 0), "seed of weights and data order", 0)
    add("--launches", "N", whole(10), "how often to repeat every run, each with a seed of its own", 1)


def planned_runs(
    arguments: argparse.Namespace, nodes: SuiteNodes, model: str, samples: SampleSet, name: str, sizes: Iterable[int],
    of: Mapping[str, Any] = MappingProxyType({}), **fields: Any,
) -> Iterator[TrainingRun]:  # fmt: skip
    """One run for each world size and launch. Raises OptionError if a size does not fit the nodes or the data.

    Of the learning rate, ``linear`` scales it with the global batch (Goyal et al., arXiv:1706.02677), ``sqrt`` with its
    square root (Krizhevsky, arXiv:1404.5997).
    """
    asked, per_node = getattr(arguments, "global_batch", None), nodes.ranks_per_node
    rate = arguments.lr or LEARNING_RATES[arguments.optimizer]
    for size in sizes:
        if size > per_node and size % per_node:
            found = f"found {size}, which does not fill whole nodes of {per_node} ranks"
            raise OptionError("--ranks", found, f"at most {per_node}, or a multiple of it")
        batch, uneven = divmod(asked or arguments.batch * size, size)
        if uneven:
            raise OptionError("--global-batch", f"found {asked} for {size} ranks", f"a multiple of {size}")
        workload = image_workload(arguments, nodes, batch, model=model, name=name, num_classes=samples.classes, **of)
        factor = 1 if asked else size
        factors: dict[LearningRateRule, float] = {"constant": 1, "linear": factor, "sqrt": math.sqrt(factor)}
        try:
            run = TrainingRun(
                name, workload, samples, -(-size // per_node), min(size, per_node), arguments.epochs,
                arguments.optimizer, rate * factors[arguments.lr_rule], arguments.lr_rule, seed=arguments.seed,
                **fields,
            )  # fmt: skip
        except ValueError as error:
            raise OptionError("--ranks, --batch", str(error), "", "Take fewer ranks, or a smaller batch.") from None
        for launch in range(arguments.launches):
            yield replace(run, launch=launch + 1, seed=run.seed + launch * _SEEDS)


def sizes_of(arguments: argparse.Namespace, nodes: SuiteNodes) -> list[int]:
    """World sizes asked for, or powers of two within a node, then of whole nodes, and all. Raises OptionError."""
    at_most("--ranks", arguments.ranks, nodes.world_size)
    ends = (1, nodes.ranks_per_node), (nodes.ranks_per_node, nodes.world_size)
    usual = {first * 2**power for first, last in ends for power in range(20) if first * 2**power < last}
    return arguments.ranks or sorted({*usual, nodes.world_size})


def made_set(train_samples: int) -> SampleSet:
    """Images made in memory, with an eighth as many for validation, at least one."""
    return SampleSet("made", f"made-{train_samples}", train_samples, max(1, train_samples // 8), CLASSES)


def read_set(kind: DataKind, folder: Path) -> SampleSet:
    """The data set in a folder, as ranks will read it. Raises OptionError."""
    from pytest_ddpscale.datasets.image_samples import read_mnist, read_samples

    path, splits = folder.expanduser().absolute(), get_args(Split)
    try:
        found = [read_mnist(path, one)[1] if kind == "mnist" else read_samples(str(path), one, _ANY) for one in splits]
    except ValueError as error:
        raise OptionError(f"--{kind}", str(error)) from None
    train, validation = map(len, found)
    return SampleSet(kind, path.name, train, validation, getattr(found[0], "classes", CLASSES), str(path))


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
        add("--made", "N,N", counts(MOST_SAMPLES), "without --folder: images of data sets made in memory", "1024,8192")
        parser.add_argument("--compile", choices=get_args(CompileMode), default="no",
            help="mode of torch.compile; default: %(default)s")  # fmt: skip
        _add_training(parser, pixels=224, epochs=5, batch=64)
        add("--at-most-time-to-train", "S", above_zero, "most seconds of complete time for the largest world size")
        add("--at-least-accuracy", "SHARE", share_between(0, 1), "least accuracy of its last validation, such as 0.4")
        add("--deadline", "S", above_zero, "complete time wanted; default: --at-most-time-to-train")
        add("--gpu-hour-price", "PRICE", above_zero, "of a GPU for an hour")
        add("--kwh-price", "PRICE", above_zero, "of a kWh, for the GPUs' energy")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a run for each data set and world size, one data set after the other."""
        sets = [*(read_set("folder", one) for one in arguments.folder)] or [*map(made_set, arguments.made)]
        if len({one.name for one in sets}) < len(sets):
            raise OptionError("--folder", "two data sets have the same name", "another name for each")
        sizes, runs = sizes_of(arguments, nodes), list[TrainingRun]()
        options = {
            "compile_mode": arguments.compile, "loader_workers": arguments.workers,
            "deadline_s": arguments.deadline or arguments.at_most_time_to_train,
            "gpu_hour_price": arguments.gpu_hour_price, "kwh_price": arguments.kwh_price,
        }  # fmt: skip
        bounds = {"most_s": arguments.at_most_time_to_train, "least_accuracy": arguments.at_least_accuracy}
        for one in sets:
            for some, more in ((sizes[:-1], {}), (sizes[-1:], bounds)):
                runs += planned_runs(arguments, nodes, arguments.model, one, one.name, some, **options, **more)
        return nodes.plan((), training_runs=tuple(runs), launches=arguments.launches)

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each data set and size, for each run, for each epoch, and for each bound."""
        runs, rate, device = trained_runs(measured.evidence), f"{measured.plan.unit}/s", measured.plan.device
        required, sizes, best, notes = list[Row](), list[Row](), list[str](), [_SIZES, *_notes(runs)]
        for name in dict.fromkeys(one.run.name for one in runs):
            of_name = [one for one in runs if one.run.name == name]
            if rows := sizes_of_set(one.row for one in of_name):
                sizes += rows
                notes += [f"{name}: {said}." for said in sweet_spots(rows, device, runs[0].run.deadline_s)]
                fastest = min(rows, key=itemgetter("complete_s"))
                best.append(f"{name} {cell(fastest['complete_s'])} s on {fastest['ranks']}")
            required += _required(of_name, measured.confidence)
        if sizes and not any("kwh" in row for row in sizes):
            why = "ranks on a CPU have no sampler" if device == "rank" else "a GPU's counter could not be read"
            notes.append(f"Energy: not measured; {why}.")
        elif sizes:
            notes.append("kWh: from the sampler's first poll on, after the start of the ranks.")
        unpriced = [f"{row['data_set']} on {row['ranks']}" for row in sizes if "price" not in row]
        if runs[0].run.kwh_price and unpriced:
            notes.append(f"Price: unknown, as is the energy, of {first_few(unpriced)}.")
        epochs = [
            {
                "run": one.run.id, "epoch": epoch.epoch + 1, "samples_per_s": epoch.samples_per_s,
                "loss": epoch.mean_loss, "accuracy": epoch.accuracy,
                "validation_samples_per_s": epoch.validation_samples_per_s,
            }
            for one in runs for epoch in one.epochs
        ]  # fmt: skip
        run, accuracy = Column("run", "Run"), Column("accuracy", "Accuracy", "{:.1%}")
        complete, per_s = Column("complete_s", "Complete s"), Column("samples_per_s", rate)
        parts = {name: title for name, title in SPANS.items() if any(row[name] for row in sizes)}
        tables = [
            Rows("required", "Requirements", [
                run, Column("metric", "Metric"), Column("value", "Value"), Column("bound", "Bound"),
                Column("outcome", "Outcome"),
            ], required, 2),
            Rows("sizes", "Scaling", [
                Column("data_set", "Data set"), Column("ranks", f"{device}s"), complete,
                *(Column(*one, "{:.1f}") for one in parts.items()), per_s, accuracy,
                Column("memory_gb", "GB", "{:.3g}"), Column("speedup", "Speed-up"),
                Column("efficiency", "Efficiency", "{:.1%}",
                       above="the smallest size was slower than its share, such as by data that fits no cache"),
                Column("gain", "Gain", "{:+.0%}"), Column("saved_share", "Saved", "{:.1%}"),
                Column("gpu_hours", f"{device}-hours"), Column("kwh", "kWh"), Column("price", "Price"),
            ], sizes, 2, notes, Drawn("Speed-up of throughput", "ranks", ("speedup",), "data_set",
                                      axes={"scale": "log", "ideal": float})),
            # Shown only if the table above lacks some, such as of one epoch or of further launches.
            Rows("runs", "Runs" * (len(sizes) < len(runs)), [
                run, complete, Column("unexplained", "Unexplained", "{:.2%}"), per_s, accuracy,
            ], [one.row for one in runs]),
            Rows("epochs", "Epochs", [
                run, Column("epoch", "Epoch"), Column("samples_per_s", f"Training {rate}"),
                Column("loss", "Mean loss"), accuracy, Column("validation_samples_per_s", f"Validation {rate}"),
            ], epochs, 2),
        ]  # fmt: skip
        of, findings = runs[0].run, [f"complete time at best {first_few(best)}"] * bool(best)
        failures = [wrong for one in runs for wrong in one.wrongs] + [
            f"{row['run']}: {row['metric']} {cell(row['value'])}, {row['outcome']}; the bound is {row['bound']:g}"
            for row in required if row["outcome"] != "passed"
        ]  # fmt: skip
        what = f"Whole runs of {of.workload.family.model} in {of.workload.precision}, {of.epochs} epochs"
        spent = replace(
            tables[1], name="complete-time", drawn=Drawn("Complete time and its parts", "data_set", tuple(parts))
        )
        return Results(what, findings, tables, _problems(measured, runs), failures, pictures=[spent])


def sizes_of_set(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """A row for each size of a data set with a throughput, of launches the median by complete time."""
    of_size = dict[int, list[Row]]()
    there = [row for row in rows if row.get("samples_per_s")]
    for row in sorted(there, key=itemgetter("ranks", "complete_s")):
        of_size.setdefault(row["ranks"], []).append(row)
    return scaling_rows(launches[(len(launches) - 1) // 2] for launches in of_size.values())


def _required(runs: Sequence[Trained], confidence: float) -> Iterator[Row]:
    """A row for each bound of a data set's largest size: the mean over launches, with an interval of several.

    A pass needs all launches, complete and valid, and the whole interval on the right side of the bound.
    """
    launches = [one for one in runs if one.run.world_size == runs[-1].run.world_size]
    first = launches[0].run
    is_sound = all(one.row["is_complete"] and not one.wrongs for one in launches)
    for metric, key, field, side in _BOUNDED:
        bound = getattr(first, field)
        if bound is None:
            continue
        is_whole = is_sound and not (key == "complete_s" and any(one.row["checkpoint_problem"] for one in launches))
        value = mean_estimate([one.row[key] for one in launches], confidence) if is_whole else None
        sides = {side * (end - bound) >= 0 for end in value.interval or [value.value]} if value else ()
        outcomes = {(): "not measured", (True,): "passed", (False,): "failed"}
        outcome = outcomes.get((*sides,), "inconclusive")
        yield {"run": first.id, "metric": metric, "value": value, "bound": bound, "outcome": outcome}


class Convergence(Suite):
    """Iterations, epochs and seconds to a loss."""

    name = "convergence"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model, data and loss."""
        add, told = adder(parser), "the first is the centre, where others stay"
        add("--loss", "LOSS", above_zero, "cross entropy to reach", 0.5)
        add("--model", "M,M", several(image_model), f"torchvision models, {told}; default: three linear layers")
        parser.add_argument("--frozen", action="store_true",
            help="train a classifier with hidden layers of --hidden on the features of --model")  # fmt: skip
        add_feature_weights(parser)
        add("--hidden", "N,N", several(whole(MOST_HIDDEN)), f"units of the hidden layers, {told}", "256")
        add("--batches", "N,N", several(whole(MOST_BATCH)), "further images per rank, beside --batch, the centre")
        add("--samples", "N", whole(MOST_SAMPLES), "images made in memory", 4096)
        add("--mnist", "FOLDER", Path, "train on MNIST's idx files instead")
        add("--global-batch", "N", whole(10**8), "images of all ranks together, instead of --batch per rank")
        _add_training(parser, pixels=None, epochs=20, batch=32)

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a run for each world size at the centre, then one for each other value of a factor."""
        is_frozen = bool(arguments.frozen or arguments.feature_weights)
        if is_frozen and not arguments.model:
            raise OptionError("--model", "found none", "the models to freeze")
        if arguments.global_batch and arguments.batches:
            raise OptionError("--global-batch", "found beside --batches", "one of them")
        arguments.image_size = arguments.image_size or (64 if arguments.model else 28)
        samples = made_set(arguments.samples) if arguments.mnist is None else read_set("mnist", arguments.mnist)
        sizes, runs = sizes_of(arguments, nodes), dict[str, list[TrainingRun]]()
        batches, models = [arguments.batch, *(arguments.batches or ())], arguments.model or [CLASSIFIER]
        for batch, model, width in one_factor(batches, models, arguments.hidden):
            named, of = f"{model}{width}" if model == CLASSIFIER else model, dict[str, Any]()
            name, arguments.batch = named, batch
            if is_frozen:
                of = on_features(arguments, model, width)
                name += f"-h{of['classifier_hidden']}"
            name += f"-batch-{batch}" * (len(batches) > 1)
            of_cell = sizes[-1:] if runs else sizes
            planned = planned_runs(
                arguments, nodes, named, samples, name, of_cell, of=of, loss_threshold=arguments.loss
            )  # fmt: skip
            runs.setdefault(name, [*planned])
        return nodes.plan((), training_runs=tuple(chain(*runs.values())), launches=arguments.launches)

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each factor and value, over its launches; losses by iteration, the mean of the launches."""
        runs, of_cell = trained_runs(measured.evidence), dict[tuple[str, int], list[Trained]]()
        for one in runs:
            of_cell.setdefault((one.run.name, one.run.world_size), []).append(one)
        cells = [_cell(launches, measured.confidence) for launches in of_cell.values()]
        rows, of = by_factor(sorted(cells, key=lambda row: -row["world_size"])), runs[0].run  # the centre first
        missed = [
            f"{one.run.id}: a loss of {of.loss_threshold:g} was not reached in {of.epochs} epochs; the mean of the "
            f"last one is {one.row['loss']:.4g}"
            for one in runs if one.row["is_complete"] and "iterations" not in one.row
        ]  # fmt: skip
        failures = (
            [wrong for one in runs for wrong in one.wrongs] + missed + [*filter(None, map(_without_meaning, runs))]
        )
        findings = [
            f"{row['run']} in {cell_with_ends(row['iterations'])} iterations" for row in cells if row["iterations"]
        ]
        missing = [f"{len(missed)} of {len(runs)} did not reach it"] * bool(missed)
        epochs = Column("epochs", "Epochs", "{:.3g}")
        table = Rows("convergence", "To the loss", [
            Column("factor", "Factor"), Column("value", "Value", "{:,}"), Column("reached", "Reached"),
            Column("iterations", "Iterations"), epochs, Column("seconds", "Seconds"),
            Column("accuracy", "Accuracy", "{:.1%}"), Column("trained_parameters", "Parameters", "{:,}"),
            Column("global_batch", "Global batch"), Column("learning_rate", "Learning rate"),
        ], rows, 2, [*_notes(runs), _REACHED], Drawn("Epochs to the loss", "factor", ("epochs",)))  # fmt: skip
        axes = [Column("value", "Value"), Column("iteration", "Iteration"), Column("loss", "Loss")]
        losses = Rows("losses", "", axes, [
            {key: row[key] for key in ("run", "factor", "value")} | {"iteration": first + 1, "loss": fmean(one)}
            for row in rows for found in [_losses(of_cell[row["name"], row["world_size"]])]
            for width in [len(found) // _MOST_POINTS + 1]
            for first in range(0, len(found), width) for one in [found[first : first + width]]
        ], 2)  # fmt: skip
        curves = [
            replace(losses, name=f"losses-by-{factor.replace(' ', '-')}", rows=[*same], drawn=Drawn(
                f"Loss by iteration and {factor}", "iteration", ("loss",), "value", axes={"x_is_log": False}
            ))
            for factor, same in groupby(losses.rows, itemgetter("factor"))
        ]  # fmt: skip
        every = Rows("runs", "", [Column("run", "Run")], [one.row for one in runs])
        return Results(
            f"Convergence to a loss of {of.loss_threshold:g} on {of.samples.name}",
            [*[first_few(findings)] * bool(findings), *missing], [table, losses, every], _problems(measured, runs),
            failures, pictures=curves,
        )  # fmt: skip


def _cell(launches: Sequence[Trained], confidence: float) -> Row:
    """What launches of one size and model have in common, and means with intervals if all of them have a value."""
    first = launches[0].run
    model, row = first.workload.family.model, dict[str, Any]()
    for key in ("iterations", "epochs", "seconds", "accuracy"):
        values = [one.row[key] for one in launches if key in one.row]
        row[key] = None
        if len(values) == len(launches):
            mean, ends = mean_estimate(values, confidence)
            most = 1.0 if key == "accuracy" else math.inf
            row[key] = Found(mean, (max(0.0, ends[0]), min(most, ends[1]))) if ends else mean
    return row | {
        "run": first.id, "name": first.name, "world_size": first.world_size, "batch": first.workload.batch_size,
        "model": "linear layers" if model.startswith(CLASSIFIER) else model,
        "trained_parameters": launches[0].row.get("trainable_parameters"),
        "reached": f"{sum('iterations' in one.row for one in launches)} of {len(launches)}",
        "global_batch": first.global_batch, "learning_rate": first.learning_rate,
    }  # fmt: skip


def _losses(launches: Sequence[Trained]) -> list[float]:
    """The mean loss of the launches that trained, in each iteration that all of them made."""
    found = ([loss for epoch in one.epochs for loss in epoch.losses] for one in launches if one.epochs)
    return [*map(fmean, zip(*found, strict=False))]


def _without_meaning(one: Trained) -> str:
    """What is wrong with pretrained features whose classifier guesses; empty if nothing is.

    Three standard deviations of a guesser's accuracy are its reach.
    """
    chance, samples, found = 1 / one.run.samples.classes, one.run.samples.validation_samples, one.row.get("accuracy")
    reach, weights = chance + 3 * math.sqrt(chance * (1 - chance) / samples), one.run.workload.family.feature_weights
    if weights is None or found is None or found > reach:
        return ""
    return f"{one.run.id}: guessing reaches up to {percent(reach, 1)}, the accuracy is {percent(found, 1)}: {weights}"
