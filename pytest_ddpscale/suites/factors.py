"""`ddpscale suite factors`: computation and communication time by batch, world size, model and trained parameters.

One factor changes at a time while the others stay at the centre, and a classifier is trained on frozen features, as in
Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs". Computation is a step under
DDP without communication; communication is the additional time of a step with it, in interleaved rounds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from itertools import product
from operator import ne
from pathlib import Path
from typing import Any

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import COMMUNICATION_TIME, COMPUTATION_TIME, EXPOSED_COMMUNICATION
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.workload import BYTES_PER_GRADIENT, Workload
from pytest_ddpscale.settings import whole
from pytest_ddpscale.suites.engine import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import (
    MOST_BATCH,
    MOST_PIXELS,
    MOST_RANKS,
    PRECISIONS,
    at_most,
    counts,
    image_model,
    image_workload,
    several,
)
from pytest_ddpscale.suites.results import Column, Results, Row, Rows
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.digits import percent

# These have one linear layer, like their original head.
LINEAR = ("squeezenet1_0", "squeezenet1_1", "resnet18")
MOST_RANKS_BY_DEFAULT = 4
EPOCH_IMAGES = 60_000  # of MNIST's training split
# The value of each factor for a workload and its ranks; models also differ in their parameters.
FACTORS: dict[str, Callable[[Workload, int], Any]] = {
    "batch": lambda one, _: one.batch_size,
    "world size": lambda _, ranks: ranks,
    "model": lambda one, _: one.family.model,
    "trained parameters": lambda one, _: one.family.classifier_parameters,
}
_NOTES = (
    "Computation: a step without communication. Communication: what a step takes longer with it in the same round; "
    "noise can make it negative. By the document: N ÷ (B · k) · trained parameters for the 60000 images of an epoch.",
)
_METRICS = {
    "computation_ms": COMPUTATION_TIME, "communication_ms": COMMUNICATION_TIME,
    "communication_share": EXPOSED_COMMUNICATION,
}  # fmt: skip
_COLUMNS = (
    Column("factor", "Factor"), Column("value", "Value", "{:,}"),
    Column("computation_ms", "Computation ms", better=-1), Column("communication_ms", "Communication ms", better=-1),
    Column("communication_share", "Of the step", "{:.1%}"), Column("trained_parameters", "Trained parameters", "{:,}"),
    Column("document_gb_per_epoch", "By the document, GB"),
    Column("sent_gb_per_rank_and_epoch", "Sent by each rank, GB"),
)  # fmt: skip


class Factors(Suite):
    """Computation, communication and data moved, one factor at a time."""

    name = "factors"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for the values of each factor."""
        told, models = "the first is the centre, where others stay", "vgg16,squeezenet1_0,alexnet,resnet18,densenet121"
        add, number = adder(parser), several(whole(MOST_BATCH))
        add("--batches", "N,N", number, f"images per GPU, {told}", "1024,64,128,256,512")
        add("--models", "M,M", several(image_model), f"frozen, {told}", models)
        add("--hidden-sizes", "H,H", number,
            f"width of the classifier's two hidden layers, {told}", "4096,2048,1024")  # fmt: skip
        add("--world-sizes", "K,K", counts(MOST_RANKS), "the largest is the centre; default: each up to 4")
        add("--image-size", "PIXELS", whole(MOST_PIXELS), "", 224)
        add("--feature-weights", "DIR", lambda text: Path(text).absolute(),
            "folder on each node with torchvision's MODEL.pth; default: random weights")  # fmt: skip
        parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="by autocast; default: %(default)s")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each workload, the centre first; the centre has arms for each world size."""
        most, weights = nodes.world_size, arguments.feature_weights
        at_most("--world-sizes", arguments.world_sizes, most)
        sizes = arguments.world_sizes or range(1, min(MOST_RANKS_BY_DEFAULT, most) + 1)
        every = [*product(arguments.batches, arguments.models, arguments.hidden_sizes)]
        one_factor = (one for one in every if sum(map(ne, one, every[0])) < 2)
        cells = dict.fromkeys((batch, model, 0 if model in LINEAR else width) for batch, model, width in one_factor)
        workloads = (
            image_workload(
                arguments, nodes, batch, model=model, num_classes=10, classifier_hidden=width,
                name=f"{model}-h{width}-batch-{batch}",
                feature_weights=str(weights / f"{model}.pth") if weights else None,
            )
            for batch, model, width in cells
        )  # fmt: skip
        return nodes.plan(
            nodes.study(one, [
                Arm(kind, size, one.batch_size) for size in (sizes[-1:] if at else sizes) for kind in ("no_sync", "ddp")
            ])
            for at, one in enumerate(workloads)
        )  # fmt: skip

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each factor and value; the centre has one in each factor that is swept."""
        centre, rows = measured.plan.studies[0], [*_rows(measured)]
        shares = [found.value for row in rows if (found := row["communication_share"])]
        ranks, of = max(arm.world_size for arm in centre.arms), centre.workload
        what = f"{of.family.model}, frozen, batch {of.batch_size}, {ranks} ranks"
        findings = [f"communication at most {percent(max(shares), 1)} of a step"] if shares else []
        return Results(what, findings, [Rows("factors", "By factor", _COLUMNS, rows, 2, _NOTES)], measured.problems())


def _rows(measured: MeasuredSuite) -> Iterator[Row]:
    """Rows of each factor with at least two values."""
    cells = [(one, size) for one in measured.plan.studies for size in sorted({arm.world_size for arm in one.arms})]
    centre = measured.plan.studies[0].workload, max(size for _, size in cells)
    of_factor: dict[str, list[Row]] = {factor: [] for factor in FACTORS}
    for study, ranks in cells:
        of, values = study.workload, {factor: read(study.workload, ranks) for factor, read in FACTORS.items()}
        row = {key: measured.value(metric, study, ranks) for key, metric in _METRICS.items()} | {
            "trained_parameters": values["trained parameters"], "batch": of.batch_size, "world_size": ranks,
            **data_moved(values["trained parameters"], of.batch_size, ranks),
        }  # fmt: skip
        differs = [factor for factor, read in FACTORS.items() if values[factor] != read(*centre)]
        for factor in differs[:1] or FACTORS:
            of_factor[factor].append({"factor": factor, "value": values[factor], **row})
    for rows in of_factor.values():
        if len(rows) > 1:
            yield from rows


def data_moved(parameters: int, batch: int, ranks: int) -> dict[str, float]:
    """Gradients of a classifier that are moved in an epoch, in GB.

    By Banerjee and Shah, section 2: N ÷ (B · k) · trainable parameters. By a ring all-reduce, which sends each gradient
    2 (k − 1) ÷ k times (nccl-tests, PERFORMANCE.md), in the steps of a rank's share of the images; the last batch may
    be smaller (DistributedSampler).
    """
    once, steps = parameters * BYTES_PER_GRADIENT / 1e9, math.ceil(math.ceil(EPOCH_IMAGES / ranks) / batch)
    return {
        "document_gb_per_epoch": EPOCH_IMAGES / (batch * ranks) * once,
        "sent_gb_per_rank_and_epoch": 2 * (ranks - 1) / ranks * once * steps,
    }
