"""What `ddpscale suite whole-run` and `ddpscale suite convergence` share: a model trained for some epochs at several
world sizes, from its options and plan to the numbers of each run.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, get_args

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.judge.judged import MOST_SKIPPED_STEPS
from pytest_ddpscale.plan.training_run import (
    DataKind,
    LearningRateRule,
    Optimizer,
    SampleSet,
    TrainingRun,
    loss_reached,
)
from pytest_ddpscale.plan.workload import Split
from pytest_ddpscale.run.records import Checkpoint, LaunchTime, StudyEnd, TrainedEpoch, TrainedRun
from pytest_ddpscale.settings import whole
from pytest_ddpscale.suites.engine import MeasuredSuite, SuiteNodes
from pytest_ddpscale.suites.options import (
    MOST_BATCH,
    MOST_RANKS,
    above_zero,
    add_images,
    at_most,
    counts,
    image_workload,
)
from pytest_ddpscale.suites.results import Row
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.digits import percent

# Default for the batch of one rank: SGD's is Banerjee and Shah's, the others are torch's defaults.
LEARNING_RATES: dict[Optimizer, float] = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001}
MOST_SAMPLES = 10**7
MOST_UNEXPLAINED = 0.02  # of the outer clock's time, in either direction
CLASSES = 10  # of images made in memory, as of MNIST
# Parts of the complete time on rank 0's clock, in order, and titles; training and validation wait for data.
SPANS = {
    "start_up_s": "start", "compile_s": "compile", "waiting_s": "data", "training_s": "training",
    "validation_s": "validation", "checkpoint_s": "checkpoint",
}  # fmt: skip
_SEEDS = 1000  # between launches, as an epoch's order is drawn from the seed and the epoch


def add_training(parser: argparse.ArgumentParser, *, pixels: int | None, epochs: int, batch: int) -> None:
    """Add options for training."""
    add, choose = adder(parser), parser.add_argument
    add_images(parser, pixels)
    add("--ranks", "1,2,4", counts(MOST_RANKS), "world sizes; default: powers of two up to a node, then whole nodes")
    add("--epochs", "N", whole(10**5), "", epochs)
    add("--batch", "N", whole(MOST_BATCH), "images per rank and step", batch)
    choose("--optimizer", choices=LEARNING_RATES, default="sgd", help="default: %(default)s (momentum 0.9)")
    add("--lr", "RATE", above_zero, "learning rate for the batch of one rank; default: 0.01, adam and adamw 0.001")
    choose("--lr-rule", choices=get_args(LearningRateRule), default="constant",
        help="how the learning rate scales with the global batch; default: %(default)s")  # fmt: skip
    add("--seed", "N", whole(10**9 - 1, 0), "seed of weights and data order", 0)
    add("--launches", "N", whole(10), "how often to repeat every run, each with a seed of its own", 1)


def made_set(train_samples: int) -> SampleSet:
    """Images made in memory, with an eighth as many for validation, at least one."""
    return SampleSet("made", f"made-{train_samples}", train_samples, max(1, train_samples // 8), CLASSES)


def read_set(kind: DataKind, folder: Path) -> SampleSet:
    """The data set in a folder, as ranks will read it. Raises OptionError."""
    from pytest_ddpscale.datasets.image_samples import read_mnist, read_samples

    path, splits, of_any = folder.expanduser().absolute(), get_args(Split), ImageFamily("resnet50", num_classes=10**6)
    try:
        found = [
            read_mnist(path, one)[1] if kind == "mnist" else read_samples(str(path), one, of_any) for one in splits
        ]
    except ValueError as error:
        raise OptionError(f"--{kind}", str(error)) from None
    train, validation = map(len, found)
    return SampleSet(kind, path.name, train, validation, getattr(found[0], "classes", CLASSES), str(path))


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

    Of the learning rate, ``linear`` scales it with the global batch (Goyal et al., arXiv:1706.02677), ``sqrt`` with its
    square root (Krizhevsky, arXiv:1404.5997).

    Raises:
        OptionError: a size does not fit the nodes or the data.
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
    found = []
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
        found.append(Trained(run, epochs, row, wrongs))
    return found


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


def problems_of(measured: MeasuredSuite, runs: Sequence[Trained]) -> list[str]:
    """Why runs are not complete, or have no checkpoint."""
    return [
        f"{one.run.id}, {len(one.epochs)} of {one.run.epochs} epochs trained: "
        f"{measured.why_missing(one.run.id) or 'its end was not recorded'}"
        for one in runs if not one.row["is_complete"]
    ] + [
        f"{one.run.id}: no checkpoint: {why}" for one in runs if (why := one.row.get("checkpoint_problem"))
    ]  # fmt: skip


def notes_of(runs: Sequence[Trained]) -> Iterator[str]:
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
