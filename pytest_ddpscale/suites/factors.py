"""`ddpscale suite factors`: computation and communication time by batch, world size, model and trained parameters.

One factor changes at a time while the others stay at the centre, and a classifier is trained on frozen features, as in
Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs". Computation is a step under
DDP without communication; communication is the additional time of a step with it, in interleaved rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import COMMUNICATION_TIME, COMPUTATION_TIME, EXPOSED_COMMUNICATION
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.workload import BYTES_PER_GRADIENT
from pytest_ddpscale.suites.engine import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import (
    add_feature_weights,
    add_images,
    at_most,
    image_model,
    image_workload,
    number,
    numbers,
    on_features,
    one_factor,
    several,
)
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.digits import percent

EPOCH_IMAGES = 60_000  # of MNIST's training split
# Each factor's key in rows. What differs in one may differ in those after it: models in their parameters.
FACTORS = {
    "world size": "world_size", "batch": "batch", "model": "model", "trained parameters": "trained_parameters"
}  # fmt: skip
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
)  # fmt: skip


class Factors(Suite):
    """Computation, communication and data moved, one factor at a time."""

    name = "factors"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for the values of each factor."""
        explanation = "the first is the centre, where others stay"
        models = "vgg16,squeezenet1_0,alexnet,resnet18,densenet121"
        add, several_numbers = adder(parser), several(number)
        add("--batches", "N,N", several_numbers, f"images per GPU, {explanation}", "1024,64,128,256,512")
        add("--models", "M,M", several(image_model), f"frozen, {explanation}", models)
        add("--hidden-sizes", "H,H", several_numbers,
            f"width of the classifier's two hidden layers, {explanation}", "4096,2048,1024")  # fmt: skip
        add("--world-sizes", "K,K", numbers, "the largest is the centre; default: each up to 4")
        add_feature_weights(parser)
        add_images(parser)

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each workload, the centre first; the centre has arms for each world size."""
        most = nodes.world_size
        sizes = arguments.world_sizes or range(1, min(4, most) + 1)
        at_most("--world-sizes", max(sizes), most)
        workloads = dict.fromkeys(
            image_workload(
                arguments, nodes, batch, model=model, num_classes=10, **frozen,
                name=f"{model}-h{frozen['classifier_hidden']}-batch-{batch}",
            )
            for batch, model, width in one_factor(arguments.batches, arguments.models, arguments.hidden_sizes)
            for frozen in [on_features(arguments, model, width)]
        )  # fmt: skip
        return nodes.plan(
            nodes.study(workload, [
                Arm(kind, size, workload.batch_size)
                for size in (sizes[-1:] if at else sizes) for kind in ("no_sync", "ddp")
            ])
            for at, workload in enumerate(workloads)
        )  # fmt: skip

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each factor and value; the centre has one in each factor that is swept."""
        centre, rows = measured.plan.studies[0], by_factor(_rows(measured))
        shares = [share.value for row in rows if (share := row["communication_share"])]
        ranks, of = max(arm.world_size for arm in centre.arms), centre.workload
        title = f"{of.family.model}, frozen, batch {of.batch_size}, {ranks} ranks"
        findings = [f"communication up to {percent(max(shares), 1)} of a step"] if shares else []
        drawn = Drawn("Time of a step by factor", "factor", ("computation_ms", "communication_ms"))
        table = Rows("factors", "By factor", _COLUMNS, rows, 2, _NOTES, drawn)
        return Results(title, findings, [table], measured.problems())


def _rows(measured: MeasuredSuite) -> Iterator[Row]:
    """A row for each cell, the centre first."""
    for study in measured.plan.studies:
        of = study.workload
        for ranks in sorted({arm.world_size for arm in study.arms}, reverse=True):
            parameters = of.family.classifier_parameters
            yield {
                **{key: measured.value(metric, study, ranks) for key, metric in _METRICS.items()},
                "trained_parameters": parameters, "batch": of.batch_size, "world_size": ranks,
                "model": of.family.model, "document_gb_per_epoch": data_moved(parameters, of.batch_size, ranks),
            }  # fmt: skip


def by_factor(rows: Iterable[Row]) -> list[Row]:
    """Rows of each factor with at least two values; the first row, the centre, is in each."""
    centre, *others = rows
    by_name: dict[str, list[Row]] = {}
    for factor, key in FACTORS.items():
        compared = [centre, *(row for row in others if row[key] != centre[key])]
        others = [row for row in others if row[key] == centre[key]]
        by_name[factor] = [{"factor": factor, "value": row[key], **row} for row in compared]
    swept = [same for same in by_name.values() if len(same) > 1]
    return [row for same in swept or [by_name["world size"]] for row in same]


def data_moved(parameters: int, batch: int, ranks: int) -> float:
    """GB of a classifier's gradients in an epoch, by Banerjee and Shah, section 2: N ÷ (B · k) · trained parameters."""
    return EPOCH_IMAGES / (batch * ranks) * parameters * BYTES_PER_GRADIENT / 1e9
