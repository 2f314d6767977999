"""`ddpscale suite whole-run` and `ddpscale suite convergence`: a model trained for some epochs at several world sizes.

As in chapter 12 of Jordi Torres' "Supercomputing for AI", not only images per second are measured but also the complete
time from the start of the processes to the last validation, and where it goes. Convergence asks the questions of
Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs": how more ranks (and a
larger global batch) and more parameters affect the iterations, epochs and seconds to a loss.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import CLASSIFIER
from pytest_ddpscale.judge.judged import MOST_SKIPPED_STEPS
from pytest_ddpscale.plan.arm import CompileMode
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.training_run import (
    LOSS_WINDOW,
    LearningRateRule,
    Optimizer,
    SampleSet,
    TrainingRun,
    loss_reached,
)
from pytest_ddpscale.plan.workload import MOST_LOADER_WORKERS
from pytest_ddpscale.report.charts import About, Curve, LineAxes, Point, curves
from pytest_ddpscale.report.scaling import (
    GOOD_EFFICIENCY,
    MeasuredSize,
    ScalingFact,
    ScalingSeries,
    TrainingJob,
    scaling_facts,
    sweet_spots,
)
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.records import LaunchTime, StudyEnd, TrainedEpoch, TrainedRun
from pytest_ddpscale.suites.engine import MeasuredSuite, Suite, SuiteNodes, mean_estimate
from pytest_ddpscale.suites.options import (
    MOST_BATCH,
    MOST_PIXELS,
    MOST_RANKS,
    PRECISIONS,
    above_zero,
    counts,
    image_model,
    image_workload,
    whole,
)
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows
from pytest_ddpscale.suites.sample_sets import folder_set, made_set, mnist_set
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Picture
from pytest_ddpscale.util.listing import first_few

# Default for the batch of one rank: SGD's is Banerjee and Shah's, the others are torch's defaults.
LEARNING_RATES: dict[Optimizer, float] = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001}
MOST_RUNS, MOST_HIDDEN, MOST_SAMPLES = 100, 10**5, 10**7
MOST_UNEXPLAINED = 0.02  # of the outer clock's time, in either direction
MOST_OF_THE_SAVING = 0.8  # a sweet spot saves at least this share of the time that the fastest size saves
# Spans on rank 0's clock, in order; waiting includes training and validation.
SPANS = ("start_up_s", "compile_s", "training_s", "validation_s", "waiting_s")
_MOST_POINTS = 300  # of a drawn curve
_RULES: dict[LearningRateRule, str] = {
    "constant": "the same at every global batch", "linear": "proportional to the global batch",
    "sqrt": "proportional to the square root of the global batch",
}  # fmt: skip
_TIME = (
    "Complete time is the sum of disjoint spans on rank 0's clock; waiting is for data. Unexplained is the rest on "
    "the launching side's clock, from starting the gang to its report of the end; at most "
    f"{percent(MOST_UNEXPLAINED)} is allowed."
)
_SIZES = (
    "Throughput is at the slowest rank's pace with waiting for data, without the first epoch; of several launches, the "
    "median by complete time. Efficiency is relative to the smallest size; gain is per doubling."
)
_REACHED = (
    f"Reached: the mean of the last {LOSS_WINDOW} losses, each the mean over the ranks, is no higher. Seconds: "
    "training with waiting for data, without start-up and validation, all iterations of an epoch taken as equally "
    "long."
)


@dataclass(frozen=True)
class RunRecords:
    """All lines of one run, in order.

    Attributes:
        run: the planned run.
        epochs: in order.
        end: None if the run is incomplete.
        outer_s: seconds from the start of the launch until the supervisor heard of the end; None if incomplete.
        is_complete: whether it ended regularly, by training all epochs or by reaching its loss.
    """

    run: TrainingRun
    epochs: Sequence[TrainedEpoch]
    end: TrainedRun | None
    outer_s: float | None
    is_complete: bool

    @property
    def spans_s(self) -> Mapping[str, float]:
        """`SPANS` of a complete run on rank 0's clock, in seconds."""
        assert self.end is not None
        sums = {name: sum(float(getattr(one.ranks[0], name)) for one in self.epochs) for name in SPANS[1:]}
        sums["waiting_s"] += sum(one.ranks[0].validation_waiting_s for one in self.epochs)
        return {"start_up_s": self.end.start_up_s, **sums}

    @property
    def complete_s(self) -> float:
        """Complete time: the sum of `spans_s`."""
        return sum(self.spans_s.values())

    @property
    def unexplained(self) -> float:
        """Share of the outer clock's time outside all spans; negative if spans add up to more."""
        assert self.outer_s is not None
        return 1 - self.complete_s / self.outer_s

    @property
    def losses(self) -> list[float]:
        """Losses of all iterations."""
        return [loss for epoch in self.epochs for loss in epoch.losses]

    @property
    def samples_per_s(self) -> float | None:
        """Mean throughput without the first epoch, in which caches fill and kernels compile; None with one epoch."""
        return fmean(epoch.samples_per_s for epoch in self.epochs[1:]) if len(self.epochs) > 1 else None

    def most(self, name: str) -> Any:
        """The largest number of that name of any rank of a complete run; None if none has it."""
        assert self.end is not None
        return max((held for one in self.end.ranks if (held := getattr(one, name)) is not None), default=None)

    def most_gb(self, name: str) -> float | None:
        """Bytes of that name in 10⁹ bytes; None on a CPU."""
        held = self.most(name)
        return None if held is None else held / 1e9

    def wrongs(self, *, times: bool) -> Iterator[str]:
        """Why a complete run is invalid: replicas differ, steps were skipped, or, of `times`, some is unexplained."""
        assert self.end is not None
        checksums = [rank.parameters_checksum for rank in self.end.ranks]
        if len({*checksums}) > 1:
            yield f"the ranks' parameters differ at the end: {', '.join(checksums)}"
        skipped, steps, most = self.most("skipped_steps"), len(self.losses), percent(MOST_SKIPPED_STEPS)
        if times and skipped > MOST_SKIPPED_STEPS * steps:
            told = f"loss scaling skipped {skipped} of {steps} optimizer steps"
            yield f"{told}; at most {most} is allowed: train more epochs, or in bf16"
        if times and abs(self.unexplained) > MOST_UNEXPLAINED:
            told = f"{percent(self.unexplained, 1)} of the {self.outer_s:.4g} s since its launch are unexplained"
            yield f"{told}; at most {percent(MOST_UNEXPLAINED)} is allowed"

    @property
    def time_to_loss(self) -> dict[str, float]:
        """Iterations from 1, epochs, and seconds of training until the run reached its loss; empty if it did not."""
        threshold, per_epoch = self.run.loss_threshold, self.run.iterations
        reached = None if threshold is None else loss_reached(self.losses, threshold)
        if reached is None:
            return {}
        whole, rest = divmod(reached, per_epoch)
        epochs_s = [epoch.ranks[0].trained_s for epoch in self.epochs]
        seconds = sum(epochs_s[:whole]) + (epochs_s[whole] * rest / per_epoch if rest else 0.0)
        return {"iterations": reached, "epochs": reached / per_epoch, "seconds": seconds}


def trained_runs(evidence: Evidence) -> list[RunRecords]:
    """All planned runs. `run/consistent.py` refuses lines that contradict each other or the plan."""
    found = []
    for run in evidence.plan.training_runs:
        lines = [line for line in evidence.training if line.study == run.id]
        last: dict[type, Any] = {type(line): line for line in lines}
        end, outer, study_end = last.get(TrainedRun), last.get(LaunchTime), last.get(StudyEnd)
        ended = study_end is not None and study_end.reason in ("rounds", "decided")
        epochs = [line for line in lines if isinstance(line, TrainedEpoch)]
        is_complete = ended and end is not None and outer is not None
        found.append(RunRecords(run, epochs, end, outer and outer.seconds, is_complete))
    return found


class TrainingSuite(Suite):
    """What both suites share: the options of training, a gang for each run, and what is said of all of them."""

    def add_training_options(self, parser: argparse.ArgumentParser, *, epochs: int, batch: int) -> None:
        """Add options for training."""
        add, choose = adder(parser), parser.add_argument
        add("--ranks", "1,2,4", counts(MOST_RANKS),
            "world sizes; default: powers of two up to a node, then whole nodes")  # fmt: skip
        add("--epochs", "N", whole(10**5), "", epochs)
        add("--batch", "N", whole(MOST_BATCH), "images per rank and step", batch)
        choose("--precision", choices=PRECISIONS, default="fp32", help="by autocast; default: %(default)s")
        choose("--optimizer", choices=LEARNING_RATES, default="sgd", help="default: %(default)s (momentum 0.9)")
        add("--lr", "RATE", above_zero, "learning rate for the batch of one rank; default: 0.01, adam and adamw 0.001")
        choose("--lr-rule", choices=_RULES, default="constant",
            help="how the learning rate scales with the global batch; default: %(default)s")  # fmt: skip
        add("--seed", "N", whole(10**9 - 1, 0), "seed of weights and data order", 0)
        add("--launches", "N", whole(10), "how often to repeat every run", 1)

    def runs(
        self, arguments: argparse.Namespace, nodes: SuiteNodes, model: str, samples: SampleSet, name: str,
        sizes: Sequence[int], **fields: Any,
    ) -> Iterator[TrainingRun]:  # fmt: skip
        """One run for each world size and launch. Raises OptionError if the data is too small for one of them."""
        asked, rate = getattr(arguments, "global_batch", None), arguments.lr or LEARNING_RATES[arguments.optimizer]
        for size in sizes:
            layout, (batch, uneven) = layout_at(size, nodes), divmod(asked or arguments.batch * size, size)
            if uneven:
                raise OptionError("--global-batch", f"found {asked} for {size} ranks", f"a multiple of {size}")
            workload = image_workload(arguments, nodes, batch, model=model, name=name, num_classes=samples.classes)
            rate_here = learning_rate_at(rate, arguments.lr_rule, size * batch, asked or arguments.batch)
            try:
                run = TrainingRun(
                    name, workload, samples, layout.nodes, layout.ranks_per_node, arguments.epochs, arguments.optimizer,
                    rate_here, arguments.lr_rule, seed=arguments.seed, **fields,
                )  # fmt: skip
            except ValueError as error:
                raise OptionError("--ranks, --batch", str(error), "", "Take fewer ranks, or a smaller batch.") from None
            yield from (replace(run, launch=launch) for launch in range(1, arguments.launches + 1))

    def plan_of(self, runs: Iterable[TrainingRun], arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """A plan of all runs. Raises OptionError if there are too many."""
        found = tuple(runs)
        if len(found) > MOST_RUNS:
            raise OptionError("--ranks", f"{len(found)} training runs requested", f"at most {MOST_RUNS}")
        return nodes.plan((), training_runs=found, launches=arguments.launches)

    def problems(self, measured: MeasuredSuite, runs: Sequence[RunRecords]) -> list[str]:
        """Why runs are not complete."""
        return [
            f"{one.run.id}: {(measured.why_missing(one.run.id) or 'its end was not recorded').rstrip('.')}; "
            f"{len(one.epochs)} of {one.run.epochs} epochs were trained"
            for one in runs if not one.is_complete
        ]  # fmt: skip

    def notes(self, runs: Sequence[RunRecords]) -> Iterator[str]:
        """What was trained."""
        of, every = runs[0].run, [one.run for one in runs]
        yield (
            f"{of.workload.family.model}, {of.workload.precision}, {of.workload.family.image_size} pixels, at most "
            f"{of.epochs} epochs; torch.compile: {of.compile_mode}; under DistributedDataParallel at every size; "
            f"{of.optimizer}, learning-rate rule {of.rule}: {_RULES[of.rule]}; seed {of.seed} at every world size."
        )
        for samples in dict.fromkeys(run.samples for run in every):
            kind = {"made": "images made in memory", "mnist": "MNIST", "folder": samples.path}[samples.kind]
            yield (
                f"{samples.name}: {samples.train_samples} images to train, {samples.validation_samples} to validate, "
                f"{samples.classes} classes ({kind})."
            )


class WholeRun(TrainingSuite):
    """Complete time, throughput and accuracy by world size."""

    name = "whole-run"
    takes = ("confidence",)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model, data, training and bounds."""
        add = adder(parser)
        add("--model", "MODEL", image_model, "torchvision model", "vit_b_16")
        add("--image-size", "PIXELS", whole(MOST_PIXELS), "", 224)
        parser.add_argument("--folder", action="append", type=Path, default=[], metavar="FOLDER",
            help="images in train/CLASS and val/CLASS; may be given twice, to compare two data sets")  # fmt: skip
        add("--workers", "N", whole(MOST_LOADER_WORKERS, 0), "loader processes per rank", 4)
        add("--made", "N,N", counts(MOST_SAMPLES), "without --folder: images of data sets made in memory", "1024,8192")
        parser.add_argument("--compile", choices=get_args(CompileMode), default="no",
            help="mode of torch.compile; default: %(default)s")  # fmt: skip
        self.add_training_options(parser, epochs=5, batch=64)
        add("--at-most-time-to-train", "S", above_zero, "most seconds of complete time for the largest world size")
        add("--at-least-accuracy", "SHARE", _share, "least accuracy of its last validation, such as 0.4")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a run for each data set and world size, one data set after the other."""
        sets = [*map(folder_set, arguments.folder)] or [*map(made_set, arguments.made)]
        if len({one.name for one in sets}) < len(sets):
            raise OptionError("--folder", f"two data sets are called {sets[0].name}", "another name for each")
        sizes, runs = arguments.ranks or usual_sizes(nodes), list[TrainingRun]()
        for one in sets:
            runs += self.runs(
                arguments, nodes, arguments.model, one, one.name, sizes, compile_mode=arguments.compile,
                loader_workers=arguments.workers,
            )  # fmt: skip
        bounds = {"most_s": arguments.at_most_time_to_train, "least_accuracy": arguments.at_least_accuracy}
        bounded = (replace(run, **bounds) if run.world_size == max(sizes) else run for run in runs)
        return self.plan_of(bounded, arguments, nodes)

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each data set and size, for each run, for each epoch, and for each bound."""
        runs, plan = trained_runs(measured.evidence), measured.plan
        complete = [one for one in runs if one.is_complete]
        wrongs = {one.run.id: found for one in complete if (found := [*one.wrongs(times=True)])}
        failures = [f"{run}: {wrong}" for run, found in wrongs.items() for wrong in found]
        bounds = [*_bounds(runs, wrongs, measured.confidence)]
        failures += [row["failure"] for row in bounds if row["outcome"] != "passed"]
        sizes, notes, best = list[Row](), list[str](), list[str]()
        for name in dict.fromkeys(one.run.name for one in complete):
            of_name = [one for one in complete if one.run.name == name and one.samples_per_s is not None]
            of_size = {size: _median_run(of_name, size) for size in sorted({one.run.world_size for one in of_name})}
            facts = facts_of_sizes({size: (one.complete_s, one.samples_per_s or 0) for size, one in of_size.items()})
            sizes += [
                size_row(name, fact, facts[0]) | {"reserved_gb": of_size[fact.gpus].most_gb("reserved_bytes")}
                for fact in facts
            ]
            largest = max((one.run for one in runs if one.run.name == name), key=lambda run: run.world_size)
            notes += [conclusion(name, facts, plan.device, largest.most_s)] if facts else []
            fastest = min(facts, key=lambda one: one.train_s, default=None)
            best += [f"{name} {fastest.train_s:.4g} s on {fastest.gpus}"] if fastest else []
        of, findings = runs[0].run, [f"complete time at best {first_few(best)}"] * bool(best)
        rate = f"{plan.unit}/s"
        tables = [
            Rows("required", "Requirements", _BOUND_COLUMNS, bounds, 2),
            Rows("sizes", "Scaling", _size_columns(plan.device, rate), sizes, 2, [_SIZES, *self.notes(runs), *notes],
                 Drawn("Speed-up", "ranks", ("speedup",), "data_set", axes={"scale": "log", "ideal": float})),
            Rows("runs", "Where the time went", _run_columns(rate), [*map(_run_row, runs)], notes=[_TIME]),
            Rows("epochs", "Epochs", _epoch_columns(rate), [row for one in runs for row in _epoch_rows(one)], 2),
        ]  # fmt: skip
        what = f"Whole runs of {of.workload.family.model} in {of.workload.precision}, {of.epochs} epochs"
        return Results(what, findings, tables, self.problems(measured, runs), failures)


_BOUND_COLUMNS = [
    Column("run", "Run"), Column("metric", "Metric"), Column("value", "Value"), Column("bound", "Bound"),
    Column("outcome", "Outcome"),
]  # fmt: skip


def _size_columns(device: str, rate: str) -> list[Column]:
    return [
        Column("data_set", "Data set"), Column("ranks", f"{device[0].upper()}{device[1:]}s"),
        Column("complete_s", "Complete s"), Column("saved_share", "Saved", "{:.1%}"),
        Column("saved_of_first", "Saved of the first", "{:.1%}"), Column("samples_per_s", rate),
        Column("ideal_samples_per_s", f"Ideal {rate}"), Column("speedup", "Speed-up"),
        Column("efficiency", "Efficiency", "{:.1%}",
               above="the smallest size was slower than its share, such as by data that fits no cache"),
        Column("gain", "Gain", "{:+.0%}"), Column("reserved_gb", "Memory GB", "{:.3g}"),
    ]  # fmt: skip


def _run_columns(rate: str) -> list[Column]:
    spans = [Column(name, name.removesuffix("_s").replace("_", "-"), "{:.2f}") for name in SPANS]
    return [
        Column("run", "Run"), Column("complete_s", "Complete s", "{:.2f}"), *spans,
        Column("outer_s", "Outer clock", "{:.2f}"), Column("unexplained", "Unexplained", "{:.2%}"),
        Column("samples_per_s", rate), Column("accuracy", "Last accuracy", "{:.2%}"),
        Column("parameters", "Parameters", "{:,}"), Column("allocated_gb", "Allocated GB", "{:.3g}"),
        Column("skipped_steps", "Skipped steps"),
    ]  # fmt: skip


def _epoch_columns(rate: str) -> list[Column]:
    return [
        Column("run", "Run"), Column("epoch", "Epoch"), Column("samples_per_s", f"Training {rate}"),
        Column("loss", "Mean loss"), Column("accuracy", "Accuracy", "{:.2%}"),
        Column("validation_samples_per_s", f"Validation {rate}"),
    ]  # fmt: skip


def facts_of_sizes(sizes: Mapping[int, tuple[float, float]]) -> list[ScalingFact]:
    """Scaling facts of each size, from its complete time and its samples per second."""
    measured = [MeasuredSize(gpus, rate) for gpus, (_, rate) in sorted(sizes.items())]
    return scaling_facts(measured, TrainingJob(images=1.0), [seconds for _, (seconds, _) in sorted(sizes.items())])


def size_row(name: str, fact: ScalingFact, first: ScalingFact) -> dict[str, Any]:
    """The chapter's tables 12.1 to 12.7 of one size."""
    return {
        "data_set": name, "ranks": fact.gpus, "complete_s": fact.train_s, "saved_share": fact.saved_share,
        "saved_of_first": None if fact is first else 1 - fact.train_s / first.train_s,
        "samples_per_s": fact.samples_per_s, "ideal_samples_per_s": fact.samples_per_s / fact.efficiency,
        "speedup": fact.speedup, "efficiency": fact.efficiency, "gain": fact.gain,
    }  # fmt: skip


def conclusion(name: str, facts: Sequence[ScalingFact], device: str, deadline_s: float | None = None) -> str:
    """Which sizes suit which aim."""
    first, shortest_s = facts[0].train_s, min(one.train_s for one in facts)
    sweet = [
        str(one.gpus) for one in facts[1:]
        if one.efficiency >= GOOD_EFFICIENCY
        and first - one.train_s >= MOST_OF_THE_SAVING * (first - shortest_s) > 0
    ]  # fmt: skip
    least = f"{percent(GOOD_EFFICIENCY)} efficient, and {percent(MOST_OF_THE_SAVING)} of all the time that can be saved"
    said = ScalingSeries(name, facts, "", device).lines(sweet_spots(facts, deadline_s))
    spot = f"sweet spot ({least}): {first_few(sweet) or 'none'}"
    return f"{name}: {'; '.join([*said, spot])}."


def _median_run(runs: Sequence[RunRecords], size: int) -> RunRecords:
    """Of several launches the median by complete time."""
    launches = sorted((one for one in runs if one.run.world_size == size), key=lambda one: one.complete_s)
    return launches[(len(launches) - 1) // 2]


def _bounds(runs: Sequence[RunRecords], worthless: Collection[str], confidence: float) -> Iterator[dict[str, Any]]:
    """A row for each bound of a data set's size: the mean over launches, with an interval of several.

    A pass needs all launches, complete and valid, and the whole interval on the right side of the bound.
    """
    for first in (one.run for one in runs if one.run.launch == 1):
        group = [one for one in runs if (one.run.name, one.run.world_size) == (first.name, first.world_size)]
        is_sound = all(one.is_complete and one.run.id not in worthless for one in group)
        for metric, bound, side, option in (
            ("time_to_train", first.most_s, -1, "at most {:.4g} s (--at-most-time-to-train)"),
            ("validation_accuracy", first.least_accuracy, 1, "at least {:.4g} (--at-least-accuracy)"),
        ):
            if bound is None:
                continue
            value, outcome, told = None, "not_measured", "was not measured"
            if is_sound:
                values = [one.complete_s if side < 0 else one.epochs[-1].accuracy for one in group]
                value = mean_estimate(values, confidence)
                sides = {side * (end - bound) >= 0 for end in value.interval or [value.value]}
                outcome = "inconclusive" if len(sides) > 1 else "passed" if True in sides else "failed"
                told = f"{value.value:.4g}{' s' * (side < 0)}, {outcome}"
            failure = f"{first.id}: {metric} {told}; {option.format(bound)} is required"
            yield {"run": first.id, "metric": metric, "value": value, "bound": bound, "outcome": outcome,
                   "failure": failure}  # fmt: skip


def _run_row(one: RunRecords) -> dict[str, Any]:
    run = one.run
    row = {
        "run": run.id, "ranks": run.world_size, "data_set": run.samples.name, "launch": run.launch,
        "is_complete": one.is_complete, "global_batch": run.global_batch, "learning_rate": run.learning_rate,
    }  # fmt: skip
    if not one.is_complete or one.end is None:
        return row
    return row | dict(one.spans_s) | {
        "complete_s": one.complete_s, "outer_s": one.outer_s, "unexplained": one.unexplained,
        "samples_per_s": one.samples_per_s, "accuracy": one.epochs[-1].accuracy, "parameters": one.end.parameters,
        "trainable_parameters": one.end.trainable_parameters, "skipped_steps": one.most("skipped_steps"),
        "allocated_gb": one.most_gb("allocated_bytes"), "reserved_gb": one.most_gb("reserved_bytes"),
    }  # fmt: skip


def _epoch_rows(one: RunRecords) -> Iterator[dict[str, Any]]:
    for epoch in one.epochs:
        yield {
            "run": one.run.id, "epoch": epoch.epoch + 1, "samples_per_s": epoch.samples_per_s, "loss": epoch.mean_loss,
            "accuracy": epoch.accuracy, "validation_samples_per_s": epoch.validation_samples_per_s,
        }  # fmt: skip


class Convergence(TrainingSuite):
    """Iterations, epochs and seconds to a loss."""

    name = "convergence"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model, data and loss."""
        add = adder(parser)
        add("--loss", "LOSS", above_zero, "cross entropy to reach", 0.5)
        add("--model", "MODEL", image_model, "torchvision model; default: three linear layers, see --hidden")
        add("--hidden", "N,N", counts(MOST_HIDDEN), "units of the hidden layers; every world size trains the first "
            "model, the largest size trains all", "256")  # fmt: skip
        add("--image-size", "PIXELS", whole(MOST_PIXELS), "default: 28, with --model 64")
        add("--samples", "N", whole(MOST_SAMPLES), "images made in memory", 4096)
        add("--mnist", "FOLDER", Path, "train on MNIST's idx files instead")
        add("--global-batch", "N", whole(10**8), "images of all ranks together, instead of --batch per rank")
        self.add_training_options(parser, epochs=20, batch=32)

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a run for each world size, then one for each further size of the model."""
        arguments.image_size = arguments.image_size or (64 if arguments.model else 28)
        samples = made_set(arguments.samples) if arguments.mnist is None else mnist_set(arguments.mnist)
        sizes, runs = arguments.ranks or usual_sizes(nodes), list[TrainingRun]()
        models = [arguments.model] if arguments.model else [f"{CLASSIFIER}{units}" for units in arguments.hidden]
        for model in models:
            of_model = sizes if model == models[0] else sizes[-1:]
            runs += self.runs(arguments, nodes, model, samples, model, of_model, loss_threshold=arguments.loss)
        return self.plan_of(runs, arguments, nodes)

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each run."""
        runs = trained_runs(measured.evidence)
        complete, of = [one for one in runs if one.is_complete], runs[0].run
        failures = [f"{one.run.id}: {_not_reached(one)}" for one in complete if not one.time_to_loss]
        failures += [f"{one.run.id}: {wrong}" for one in complete for wrong in one.wrongs(times=False)]
        reached = [one for one in complete if one.time_to_loss]
        said = [
            f"{one.run.name}@{one.run.world_size} in {one.time_to_loss['iterations']} iterations" for one in reached
        ]
        missing = len(runs) - len(reached)
        findings = [*said[:1], *[f"{missing} of {len(runs)} did not reach it"] * bool(missing), *_comparison(reached)]
        columns = [
            Column("run", "Run"), Column("ranks", "Ranks"), Column("trainable_parameters", "Parameters", "{:,}"),
            Column("global_batch", "Global batch"), Column("learning_rate", "Learning rate"),
            Column("iterations", "Iterations"), Column("epochs", "Epochs", "{:.2f}"),
            Column("seconds", "Seconds", "{:.2f}"), Column("accuracy", "Last accuracy", "{:.1%}"),
            Column("lowest_mean_loss", "Lowest mean loss"), Column("skipped_steps", "Skipped steps"),
        ]  # fmt: skip
        rows = [_run_row(one) | _loss_row(one) for one in runs]
        table = Rows("convergence", "To the loss", columns, rows, notes=[*self.notes(runs), _REACHED])
        what = f"Convergence to a loss of {of.loss_threshold:g} on {of.samples.name}"
        return Results(
            what, findings, [table], self.problems(measured, runs), failures,
            pictures=[_loss_curves(complete, by_epoch=by_epoch) for by_epoch in (False, True)],
            values={"losses": {one.run.id: one.losses for one in runs}},
        )  # fmt: skip


def _loss_row(one: RunRecords) -> dict[str, Any]:
    time = one.time_to_loss if one.is_complete else {}
    return {**dict.fromkeys(("iterations", "epochs", "seconds")), **time, "lowest_mean_loss": lowest_mean(one)}


def lowest_mean(one: RunRecords) -> float | None:
    """The lowest mean of `LOSS_WINDOW` consecutive losses; None if there are fewer."""
    losses = one.losses
    means = [sum(losses[end - LOSS_WINDOW : end]) / LOSS_WINDOW for end in range(LOSS_WINDOW, len(losses) + 1)]
    return min(means, default=None)


def _not_reached(one: RunRecords) -> str:
    lowest = lowest_mean(one)
    said = f"; the lowest mean of {LOSS_WINDOW} iterations is {lowest:.4g}" if lowest is not None else ""
    return f"a loss of {one.run.loss_threshold:g} was not reached in {one.run.epochs} epochs{said}"


def _comparison(reached: Sequence[RunRecords]) -> Iterator[str]:
    """Effect of more ranks on the first model."""
    first = [one for one in reached if (one.run.name, one.run.launch) == (reached[0].run.name, 1)]
    if len(first) > 1:
        few, many = (end(first, key=lambda one: one.run.world_size) for end in (min, max))
        times = few.time_to_loss, many.time_to_loss
        ratios = ", ".join(f"{many_of / few_of:.2f}× the {name}" for (name, few_of), many_of in zip(
            times[0].items(), times[1].values(), strict=True))  # fmt: skip
        yield f"from {few.run.world_size} to {many.run.world_size} ranks {ratios}"


def _loss_curves(complete: Sequence[RunRecords], *, by_epoch: bool) -> Picture | None:
    """Losses of the first launch, thinned to means over neighbours."""
    unit, drawn = "epoch" if by_epoch else "iteration", list[Curve]()
    for one in complete:
        run, losses = one.run, one.losses
        width = -(-len(losses) // _MOST_POINTS)
        step = width / run.iterations if by_epoch else width
        chunks = [losses[first : first + width] for first in range(0, len(losses), width)]
        points = [Point((place + 0.5) * step, fmean(chunk)) for place, chunk in enumerate(chunks)]
        drawn += [Curve(f"{run.name}, {run.world_size} ranks, batch {run.global_batch}", points)] * (run.launch == 1)
    return curves(About(f"loss-by-{unit}", f"Loss by {unit}"), LineAxes(unit, "loss"), {"": drawn})


def learning_rate_at(rate: float, rule: LearningRateRule, global_batch: int, base_batch: int) -> float:
    """The learning rate for a global batch, if `rate` is that for `base_batch`.

    ``linear`` scales it with the batch (Goyal et al., arXiv:1706.02677), ``sqrt`` with its square root (Krizhevsky,
    arXiv:1404.5997).
    """
    factor = global_batch / base_batch
    return rate * {"constant": 1.0, "linear": factor, "sqrt": math.sqrt(factor)}[rule]


def layout_at(size: int, nodes: SuiteNodes) -> Layout:
    """Nodes and ranks of a world size: part of one node, or whole nodes. Raises OptionError."""
    per_node = nodes.ranks_per_node
    if size > nodes.world_size:
        hint = f"On a CPU, --ddp-gpus-per-node={size} lets ranks share cores." if nodes.is_cpu else ""
        found = f"found {size}, but {nodes.world_size} can be used"
        raise OptionError("--ranks", found, f"at most {nodes.world_size}", hint)
    if size > per_node and size % per_node:
        found = f"found {size}, which does not fill whole nodes of {per_node} ranks"
        raise OptionError("--ranks", found, f"at most {per_node}, or a multiple of it")
    return Layout(1, size) if size <= per_node else Layout(size // per_node, per_node)


def usual_sizes(nodes: SuiteNodes) -> list[int]:
    """World sizes: powers of two within a node, then powers of two of whole nodes."""
    per_node, number = nodes.ranks_per_node, nodes.machine.cluster.nodes
    within = [2**power for power in range(per_node.bit_length()) if 2**power < per_node]
    across = [per_node * 2**power for power in range(number.bit_length()) if 2**power < number]
    return [*dict.fromkeys((*within, *across, per_node * number))]


def _share(text: str) -> float:
    share = above_zero(text)
    if share > 1:
        raise ValueError("a share above 0 and at most 1")
    return share
