"""`ddpscale suite factors`: computation and communication time by batch, world size, model and trained parameters.

One factor changes at a time while the others stay at the centre, and a classifier is trained on frozen features, as in
Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs". Computation is a step under
DDP without communication; communication is the additional time of a step with it, in interleaved rounds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pytest_ddpscale.families.image import FEATURES, MOST_HIDDEN
from pytest_ddpscale.judge.values import samples_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import COMMUNICATION_TIME, COMPUTATION_TIME, EXPOSED_COMMUNICATION
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import BYTES_PER_GRADIENT, Workload
from pytest_ddpscale.suites.engine import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import (
    MOST_BATCH,
    MOST_PIXELS,
    MOST_RANKS,
    PRECISIONS,
    at_most,
    image_workload,
    several,
    whole,
)
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows, cell
from pytest_ddpscale.util.command_parser import adder

MODELS = ("squeezenet1_0", "alexnet", "resnet18", "densenet121", "vgg16")
# These have one linear layer, like their original head.
LINEAR = ("squeezenet1_0", "squeezenet1_1", "resnet18")
BATCHES = (64, 128, 256, 512, 1024)
HIDDEN = (4096, 2048, 1024)
MOST_RANKS_BY_DEFAULT = 4
CLASSES = 10
EPOCH_IMAGES = 60_000  # of MNIST's training split
FACTORS = ("batch", "world size", "model", "trained parameters")
_NOTES = (
    "Computation: a step of no_sync@k, k ranks at once under DDP without communication. Communication: what a ddp@k "
    "step takes longer in the same round, so that noise can make it negative.",
    "Data moved in an epoch of 60000 images: by the document of Banerjee and Shah N ÷ (B · k) · trained parameters; "
    "sent by a rank in a ring all-reduce, 2 (k − 1) ÷ k · 4 bytes · trained parameters a step.",
)


def _model(text: str) -> str:
    if text not in FEATURES:
        raise ValueError(f"a model whose features can be frozen: {', '.join(sorted(FEATURES))}")
    return text


class Factors(Suite):
    """Computation, communication and data moved, one factor at a time."""

    name = "factors"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for the centre and the values swept around it."""
        add, number = adder(parser), several(whole(MOST_BATCH))
        centre = adder(parser.add_argument_group("the centre, the value of each factor that is not swept"))
        centre("--model", "MODEL", _model, "frozen", "vgg16")
        centre("--batch", "N", whole(MOST_BATCH), "images per GPU", 1024)
        centre("--world-size", "K", whole(MOST_RANKS), "default: 4, or all GPUs if there are fewer")
        centre("--hidden", "H", whole(MOST_HIDDEN), "width of the classifier's two hidden layers", 4096)
        add("--batches", "N,N", number, "swept", _joined(BATCHES))
        add("--world-sizes", "K,K", number, "swept; default: each from 1 to the centre's")
        add("--models", "M,M", several(_model), "swept", _joined(MODELS))
        add("--hidden-sizes", "H,H", several(whole(MOST_HIDDEN)), "swept", _joined(HIDDEN))
        add("--image-size", "PIXELS", whole(MOST_PIXELS), "", 224)
        add(
            "--feature-weights",
            "DIR",
            Path,
            "folder on each node with torchvision's MODEL.pth; default: random weights",
        )
        parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="by autocast; default: %(default)s")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each workload, the centre first; the centre has arms for each world size."""
        most = nodes.world_size
        ranks = arguments.world_size or min(MOST_RANKS_BY_DEFAULT, most)
        sizes = range(1, ranks + 1) if arguments.world_sizes is None else arguments.world_sizes
        at_most("--world-size", ranks, most)
        at_most("--world-sizes", arguments.world_sizes, most)
        model, batch, hidden = arguments.model, arguments.batch, arguments.hidden
        cells = [(model, batch, hidden), *((model, one, hidden) for one in arguments.batches)]
        cells += [(one, batch, hidden) for one in arguments.models]
        cells += [(model, batch, one) for one in arguments.hidden_sizes if model not in LINEAR]
        workloads = [_workload(arguments, nodes, *one) for one in dict.fromkeys(cells)]
        of_arms = [{*sizes, ranks}, *[{ranks}] * len(workloads)]
        return nodes.plan(
            nodes.study(one, factor_arms(one.batch_size, of)) for one, of in zip(workloads, of_arms, strict=False)
        )

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each factor and value; the centre has one in each factor that is swept."""
        studies = measured.plan.studies
        centre, ranks = studies[0].workload, max(arm.world_size for arm in studies[-1].arms)
        rows = [*_rows(measured, ranks)]
        columns = [
            Column("factor", "Factor"),
            Column("value", "Value", "{:,}"),
            Column("computation_ms", "Computation ms", better=-1),
            Column("communication_ms", "Communication ms", better=-1),
            Column("communication_share", "Of the step", "{:.1%}"),
            Column("trained_parameters", "Trained parameters", "{:,}"),
            Column("document_gb_per_epoch", "By the document, GB"),
            Column("sent_gb_per_rank_and_epoch", "Sent by each rank, GB"),
            Column("sent_mb_per_rank_and_step", "Each step, MB"),
        ]
        drawn = Drawn("Computation, and communication not hidden by it", "cell", ("computation_ms", "communication_ms"))
        lacking = {row["study"] for row in rows if row["communication_share"] is None}
        what = f"{centre.family.model}, frozen, batch {centre.batch_size}, {ranks} ranks"
        table = Rows("factors", "By factor", columns, rows, 2, _NOTES, drawn)
        return Results(what, [*_findings(rows, centre.name, ranks)], [table], measured.problems(lacking))


def factor_arms(batch: int, world_sizes: Iterable[int]) -> tuple[Arm, ...]:
    """For each world size an arm under DDP without communication, and one with it."""
    return tuple(Arm(kind, size, batch) for size in sorted(world_sizes) for kind in ("no_sync", "ddp"))


def _workload(arguments: argparse.Namespace, nodes: SuiteNodes, model: str, batch: int, hidden: int) -> Workload:
    is_linear, weights = model in LINEAR, arguments.feature_weights
    return image_workload(
        arguments, nodes, batch, model=model, num_classes=CLASSES,
        name=f"{model}-{'linear' if is_linear else f'h{hidden}'}-batch-{batch}",
        classifier_hidden=0 if is_linear else hidden,
        feature_weights=str(weights.absolute() / f"{model}.pth") if weights else None,
    )  # fmt: skip


def _rows(measured: MeasuredSuite, ranks: int) -> Iterator[Row]:
    """Rows of each factor with at least two cells, ascending; models by trained parameters."""
    centre, *others = measured.plan.studies
    of_factor: dict[str, list[tuple[Study, int]]] = {factor: [(centre, ranks)] for factor in FACTORS}
    of_factor["world size"] = [(centre, size) for size in sorted({arm.world_size for arm in centre.arms})]
    for study in others:
        of_factor[_factor(centre.workload, study.workload)].append((study, ranks))
    for factor, cells in of_factor.items():
        rows = [_row(measured, factor, study, size) for study, size in cells]
        if len(rows) > 1:
            order = ("world_size", "batch", "trained_parameters", "workload")
            yield from sorted(rows, key=lambda row: [row[key] for key in order])


def _factor(centre: Workload, other: Workload) -> str:
    if other.batch_size != centre.batch_size:
        return "batch"
    return "model" if other.family.model != centre.family.model else "trained parameters"


def _row(measured: MeasuredSuite, factor: str, study: Study, ranks: int) -> dict[str, Any]:
    workload, family = study.workload, study.workload.family
    metrics = {
        "computation_ms": COMPUTATION_TIME, "communication_ms": COMMUNICATION_TIME,
        "communication_share": EXPOSED_COMMUNICATION,
    }  # fmt: skip
    values = {
        key: measured.estimated(samples_of(Question(one, workload, ranks), measured.evidence), one.scale)
        for key, one in metrics.items()
    }
    batch, parameters = workload.batch_size, family.classifier_parameters
    value = dict(zip(FACTORS, (batch, ranks, family.model, parameters), strict=True))[factor]
    return {
        "factor": factor, "value": value, "cell": f"{factor} {cell(value, '{:,}')}", **values,
        "trained_parameters": parameters, **data_moved(parameters, batch, ranks),
        "workload": workload.name, "study": study.id,
        "batch": batch, "world_size": ranks,
    }  # fmt: skip


def data_moved(parameters: int, batch: int, ranks: int, images: int = EPOCH_IMAGES) -> dict[str, float]:
    """Gradients of a classifier that are moved in an epoch.

    By Banerjee and Shah, section 2: N ÷ (B · k) · trainable parameters. By a ring all-reduce, which sends each gradient
    2 (k − 1) ÷ k times (nccl-tests, PERFORMANCE.md), in the steps of a rank's share of the images; the last batch may
    be smaller (DistributedSampler).
    """
    of_document = images / (batch * ranks) * parameters
    sent = 2 * (ranks - 1) / ranks * parameters * BYTES_PER_GRADIENT
    steps = math.ceil(math.ceil(images / ranks) / batch)
    return {
        "document_parameters_per_epoch": of_document,
        "document_gb_per_epoch": of_document * BYTES_PER_GRADIENT / 1e9,
        "sent_mb_per_rank_and_step": sent / 1e6,
        "sent_gb_per_rank_and_epoch": sent * steps / 1e9,
    }


def _findings(rows: Iterable[Row], centre: str, ranks: int) -> Iterator[str]:
    """Both times at the centre, and how many cells were measured."""
    cells = {(row["workload"], row["world_size"]): row for row in rows}
    times = [cells.get((centre, ranks), {}).get(key) for key in ("computation_ms", "communication_ms")]
    if None in times:
        yield "not measured"
    else:
        yield f"computation {cell(times[0])} ms, communication {cell(times[1])} ms a step"
    there = sum(None not in (row["computation_ms"], row["communication_ms"]) for row in cells.values())
    yield f"{there} of {len(cells)} cells measured"


def _joined(values: Iterable[object]) -> str:
    return ",".join(map(str, values))
