"""`ddpscale suite factors`: computation and communication time by batch, world size, model and trained parameters.

One factor changes at a time while the others stay at the centre, and a classifier is trained on frozen features, as in
Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs". Computation is a step under
DDP without communication; communication is the additional time of a step with it, in interleaved rounds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import FEATURES, MOST_HIDDEN
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import COMMUNICATION_TIME, COMPUTATION_TIME, EXPOSED_COMMUNICATION
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import BYTES_PER_GRADIENT, Workload
from pytest_ddpscale.suites.engine import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import (
    MOST_BATCH,
    MOST_PIXELS,
    MOST_RANKS,
    PRECISIONS,
    counts,
    image_workload,
    several,
    whole,
)
from pytest_ddpscale.suites.results import Column, Results, Row, Rows, between
from pytest_ddpscale.util.command_parser import adder

# These have one linear layer, like their original head.
LINEAR = ("squeezenet1_0", "squeezenet1_1", "resnet18")
MOST_RANKS_BY_DEFAULT = 4
EPOCH_IMAGES = 60_000  # of MNIST's training split
# What differs between the workloads of a factor; a model also differs in its parameters.
FACTORS: dict[str, Callable[[Workload], Any]] = {
    "batch": lambda one: one.batch_size,
    "model": lambda one: one.family.model,
    "trained parameters": lambda one: one.family.classifier_parameters,
}
_NOTES = (
    "Computation: a step of no_sync@k, k ranks at once under DDP without communication. Communication: what a ddp@k "
    "step takes longer in the same round, so that noise can make it negative.",
    "Data moved in an epoch of 60000 images: by the document of Banerjee and Shah N ÷ (B · k) · trained parameters; "
    "sent by a rank in a ring all-reduce, 2 (k − 1) ÷ k · 4 bytes · trained parameters a step.",
)
_COLUMNS = (
    Column("factor", "Factor"), Column("value", "Value", "{:,}"),
    Column("computation_ms", "Computation ms", better=-1), Column("communication_ms", "Communication ms", better=-1),
    Column("communication_share", "Of the step", "{:.1%}"), Column("trained_parameters", "Trained parameters", "{:,}"),
    Column("document_gb_per_epoch", "By the document, GB"),
    Column("sent_gb_per_rank_and_epoch", "Sent by each rank, GB"),
)  # fmt: skip


def _model(text: str) -> str:
    if text not in FEATURES:
        raise ValueError(f"a model whose features can be frozen: {', '.join(sorted(FEATURES))}")
    return text


class Factors(Suite):
    """Computation, communication and data moved, one factor at a time."""

    name = "factors"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for the values of each factor."""
        told = "the first is the centre, where the other factors stay"
        add = adder(parser)
        add("--batches", "N,N", several(whole(MOST_BATCH)), f"images per GPU, {told}", "1024,64,128,256,512")
        add("--models", "M,M", several(_model), f"frozen, {told}", "vgg16,squeezenet1_0,alexnet,resnet18,densenet121")
        add("--hidden-sizes", "H,H", several(whole(MOST_HIDDEN)),
            f"width of the classifier's two hidden layers, {told}", "4096,2048,1024")  # fmt: skip
        add("--world-sizes", "K,K", counts(MOST_RANKS), "the largest is the centre; default: each up to 4")
        add("--image-size", "PIXELS", whole(MOST_PIXELS), "", 224)
        add("--feature-weights", "DIR", lambda text: Path(text).absolute(),
            "folder on each node with torchvision's MODEL.pth; default: random weights")  # fmt: skip
        parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="by autocast; default: %(default)s")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each workload, the centre first; the centre has arms for each world size."""
        most, weights = nodes.world_size, arguments.feature_weights
        sizes = arguments.world_sizes or range(1, min(MOST_RANKS_BY_DEFAULT, most) + 1)
        if sizes[-1] > most:
            raise OptionError("--world-sizes", f"found {sizes[-1]}, but {most} can be used", f"at most {most}")
        batches, models, widths = arguments.batches, arguments.models, arguments.hidden_sizes
        cells = [(one, models[0], widths[0]) for one in batches] + [(batches[0], one, widths[0]) for one in models]
        cells += [(batches[0], models[0], one) for one in widths]

        def study(batch: int, model: str, width: int, of_sizes: Any) -> Study:
            is_linear = model in LINEAR
            workload = image_workload(
                arguments, nodes, batch, model=model, num_classes=10, classifier_hidden=0 if is_linear else width,
                name=f"{model}-{'linear' if is_linear else f'h{width}'}-batch-{batch}",
                feature_weights=str(weights / f"{model}.pth") if weights else None,
            )  # fmt: skip
            return nodes.study(workload, [Arm(kind, size, batch) for size in of_sizes for kind in ("no_sync", "ddp")])

        studies = {one.workload: one for one in (study(*of, sizes[-1:]) for of in cells)}
        centre = study(*cells[0], sizes)
        return nodes.plan((studies | {centre.workload: centre}).values())

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each factor and value; the centre has one in each factor that is swept."""
        centre, rows = measured.plan.studies[0], [*_rows(measured)]
        said = between((found for row in rows if (found := row["communication_share"])), "{:.1%}")
        ranks, of = max(arm.world_size for arm in centre.arms), centre.workload
        what = f"{of.family.model}, frozen, batch {of.batch_size}, {ranks} ranks"
        findings = [f"communication {said} of a step"] * bool(said)
        return Results(what, findings, [Rows("factors", "By factor", _COLUMNS, rows, 2, _NOTES)], measured.problems())


def _rows(measured: MeasuredSuite) -> Iterator[Row]:
    """Rows of each factor with at least two values, ascending; models by trained parameters."""
    centre, *others = measured.plan.studies
    sizes = sorted({arm.world_size for arm in centre.arms})
    of_factor = {factor: [(centre, sizes[-1])] for factor in FACTORS}
    for study in others:
        differs = (factor for factor, of in FACTORS.items() if of(study.workload) != of(centre.workload))
        of_factor[next(differs)].append((study, sizes[-1]))
    of_factor["world size"] = [(centre, size) for size in sizes]
    for factor, cells in of_factor.items():
        rows = [_row(measured, factor, *one) for one in cells] if len(cells) > 1 else []
        yield from sorted(rows, key=lambda row: [row[key] for key in ("world_size", "batch", "trained_parameters")])


def _row(measured: MeasuredSuite, factor: str, study: Study, ranks: int) -> Row:
    workload = study.workload
    parameters = workload.family.classifier_parameters
    metrics = {
        "computation_ms": COMPUTATION_TIME, "communication_ms": COMMUNICATION_TIME,
        "communication_share": EXPOSED_COMMUNICATION,
    }  # fmt: skip
    return {
        "factor": factor, "value": FACTORS[factor](workload) if factor in FACTORS else ranks,
        **{key: measured.value(metric, study, ranks) for key, metric in metrics.items()},
        "trained_parameters": parameters, **data_moved(parameters, workload.batch_size, ranks),
        "workload": workload.name, "batch": workload.batch_size, "world_size": ranks,
    }  # fmt: skip


def data_moved(parameters: int, batch: int, ranks: int, images: int = EPOCH_IMAGES) -> dict[str, float]:
    """Gradients of a classifier that are moved in an epoch, in GB.

    By Banerjee and Shah, section 2: N ÷ (B · k) · trainable parameters. By a ring all-reduce, which sends each gradient
    2 (k − 1) ÷ k times (nccl-tests, PERFORMANCE.md), in the steps of a rank's share of the images; the last batch may
    be smaller (DistributedSampler).
    """
    once, steps = parameters * BYTES_PER_GRADIENT / 1e9, math.ceil(math.ceil(images / ranks) / batch)
    return {
        "document_gb_per_epoch": images / (batch * ranks) * once,
        "sent_gb_per_rank_and_epoch": 2 * (ranks - 1) / ranks * once * steps,
    }
