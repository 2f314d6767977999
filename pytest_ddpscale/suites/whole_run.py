"""`ddpscale suite whole-run`: a model trained for some epochs at several world sizes.

As in chapter 12 of Jordi Torres' "Supercomputing for AI", not only images per second are measured but also the complete
time from the start of the processes to the last validation, and where it goes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, get_args

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.arm import CompileMode
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.workload import MOST_LOADER_WORKERS
from pytest_ddpscale.report.scaling import scaling_rows, sweet_spots
from pytest_ddpscale.settings import share_between, whole
from pytest_ddpscale.suites.engine import MeasuredSuite, Suite, SuiteNodes, mean_estimate
from pytest_ddpscale.suites.options import above_zero, counts, image_model
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows, cell
from pytest_ddpscale.suites.training_runs import (
    MOST_SAMPLES,
    SPANS,
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
from pytest_ddpscale.util.listing import first_few

_SIZES = (
    "Seconds of the complete time and its parts. Throughput: without the first epoch. Efficiency: relative to the "
    "smallest size. Gain: of throughput, per doubling. Saved: of the next smaller size's time. kWh, and its price: "
    "from the first poll of the GPUs' sampler on; unknown if one cannot be read, as on a CPU."
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
        add("--made", "N,N", counts(MOST_SAMPLES), "without --folder: images of data sets made in memory", "1024,8192")
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
        sets = [*(read_set("folder", one) for one in arguments.folder)] or [*map(made_set, arguments.made)]
        if len({one.name for one in sets}) < len(sets):
            raise OptionError("--folder", "two data sets have the same name", "another name for each")
        sizes, options = sizes_of(arguments, nodes), {
            "compile_mode": arguments.compile, "loader_workers": arguments.workers,
            "deadline_s": arguments.deadline or arguments.at_most_time_to_train,
            "gpu_hour_price": arguments.gpu_hour_price, "kwh_price": arguments.kwh_price,
            # Of the largest size.
            "most_s": arguments.at_most_time_to_train, "least_accuracy": arguments.at_least_accuracy,
        }  # fmt: skip
        runs = (planned_runs(arguments, nodes, arguments.model, one, one.name, sizes, {}, **options) for one in sets)
        return nodes.plan((), training_runs=tuple(chain(*runs)), launches=arguments.launches)

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each data set and size, for each run, for each epoch, and for each bound."""
        runs, rate, device = trained_runs(measured), f"{measured.plan.unit}/s", measured.plan.device
        of, notes = runs[0].run, [_SIZES, *notes_of(runs)]
        required, sizes, best = list[Row](), list[Row](), list[str]()
        for name, same in groupby(runs, lambda one: one.run.name):
            of_name = [*same]
            if rows := sizes_of_set(one.row for one in of_name):
                sizes += rows
                notes += [f"{name}: {said}." for said in sweet_spots(rows, device, of.deadline_s)]
                fastest = min(rows, key=itemgetter("complete_s"))
                best.append(f"{name} {cell(fastest['complete_s'])} s on {fastest['ranks']}")
            required += _required(of_name, measured.confidence)
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
        speed_up = Drawn("Speed-up of throughput", "ranks", ("speedup",), "data_set", {"scale": "log", "ideal": float})
        scaling = Rows("sizes", "Scaling", [
            Column("data_set", "Data set"), Column("ranks", f"{device}s"), complete,
            *(Column(*one, "{:.1f}") for one in parts.items()), per_s, accuracy,
            Column("memory_gb", "GB", "{:.3g}"), Column("speedup", "Speed-up"),
            Column("efficiency", "Efficiency", "{:.1%}",
                   above="the smallest size was slower than its share, such as by data that fits no cache"),
            Column("gain", "Gain", "{:+.0%}"), Column("saved_share", "Saved", "{:.1%}"),
            Column("gpu_hours", f"{device}-hours"), Column("kwh", "kWh"), Column("price", "Price"),
        ], sizes, 2, notes, speed_up)  # fmt: skip
        spent = replace(
            scaling, name="complete-time", drawn=Drawn("Complete time and its parts", "data_set", tuple(parts))
        )
        tables = [
            Rows("required", "Requirements", _OF_BOUNDS, required, 2),
            scaling,
            # Shown only if the table above lacks some, such as of one epoch or of further launches.
            Rows("runs", "Runs" * (len(sizes) < len(runs)), [
                run, complete, Column("unexplained", "Unexplained", "{:.2%}"), per_s, accuracy,
            ], [one.row for one in runs]),
            Rows("epochs", "Epochs", [
                run, Column("epoch", "Epoch"), Column("samples_per_s", f"Training {rate}"),
                Column("loss", "Mean loss"), accuracy, Column("validation_samples_per_s", f"Validation {rate}"),
            ], epochs, 2),
        ]  # fmt: skip
        failures = [wrong for one in runs for wrong in one.wrongs] + [
            f"{row['run']}: {row['metric']} {cell(row['value'])}, {row['outcome']}; the bound is {row['bound']:g}"
            for row in required if row["outcome"] != "passed"
        ]  # fmt: skip
        what = f"Whole runs of {of.workload.family.model} in {of.workload.precision}, {of.epochs} epochs"
        findings = [f"complete time at best {first_few(best)}"] * bool(best)
        return Results(what, findings, tables, problems_of(measured, runs), failures, pictures=[spent])


def sizes_of_set(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """A row for each size of a data set with a throughput, of launches the median by complete time."""
    there = sorted((row for row in rows if row.get("samples_per_s")), key=itemgetter("ranks", "complete_s"))
    of_size = ([*same] for _, same in groupby(there, itemgetter("ranks")))
    return scaling_rows(launches[(len(launches) - 1) // 2] for launches in of_size)


def _required(runs: Sequence[Trained], confidence: float) -> Iterator[Row]:
    """A row for each bound of a data set's largest size: the mean over launches, with an interval of several.

    A pass needs all launches, complete and valid, and the whole interval on the right side of the bound.
    """
    of = runs[-1].run
    launches = [one for one in runs if one.run.world_size == of.world_size]
    is_sound = all(one.row["is_complete"] and not one.wrongs for one in launches)
    is_timed = is_sound and not any(one.row["checkpoint_problem"] for one in launches)
    for metric, key, bound, side, is_known in (
        ("time_to_train", "complete_s", of.most_s, -1, is_timed),
        ("validation_accuracy", "accuracy", of.least_accuracy, 1, is_sound),
    ):
        if bound is None:
            continue
        value = mean_estimate([one.row[key] for one in launches], confidence) if is_known else None
        sides = {side * (end - bound) >= 0 for end in value.interval or [value.value]} if value else ()
        outcomes = {(): "not measured", (True,): "passed", (False,): "failed"}
        outcome = outcomes.get((*sides,), "inconclusive")
        yield {"run": launches[0].run.id, "metric": metric, "value": value, "bound": bound, "outcome": outcome}
