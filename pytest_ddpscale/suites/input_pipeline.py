"""`ddpscale suite input-pipeline`: training on images from a folder, compared with training on synthetic ones.

Each number of loader workers and batches ahead is an arm of its own, in interleaved rounds of one gang with an arm on
synthetic data. Arms differ only in the source of their images.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import MOST_LOADER_WORKERS, MOST_PREFETCH
from pytest_ddpscale.report.where_time_goes import waited_s_per_step
from pytest_ddpscale.settings import on_or_off
from pytest_ddpscale.suites.engine import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import add_image_model, counts, folder_data, image_workload, number, several
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows, cell
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.digits import percent

# Share of the fastest setting's throughput that a recommended one reaches.
WORTH = 0.95
_RATIO = "{:.3f}×"
_NOTES = (
    "Efficiency: throughput over that on synthetic data in the same round; above 1 "
    "where images of a folder wait ready while synthetic ones are copied. Waited: by the rank that waited most. "
    f"To set: the fewest workers shown to reach {percent(WORTH)} of the fastest.",
)


class InputPipeline(Suite):
    """Throughput by loader workers and batches ahead, and whether training waits for its data."""

    name = "input-pipeline"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for folder, loader and training."""
        add = adder(parser)
        parser.add_argument("--folder", required=True, type=Path, metavar="PATH",
            help="has train/CLASS/IMAGE, the same on every node")  # fmt: skip
        add("--workers", "N,N", counts(MOST_LOADER_WORKERS, 0), "loader processes per rank", "0,2,4,8")
        add("--prefetch", "N,N", counts(MOST_PREFETCH), "batches that each worker reads ahead", "2")
        add("--pin-memory", "true,false", several(on_or_off), "whether batches go through pinned memory", "true")
        add_image_model(parser)
        add("--batch", "N", number, "images per GPU", 128)

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan one study with synthetic data and each setting of the loader."""
        data, num_classes = folder_data(arguments, nodes)
        workload = image_workload(arguments, nodes, arguments.batch, num_classes=num_classes)
        variants = [Variant(data="synthetic")]
        variants += [
            Variant(workers=workers, prefetch=ahead or None, pin_memory=None if is_pinned else False)
            for workers in arguments.workers
            for ahead in (arguments.prefetch if workers else [0])  # without workers there is no read-ahead
            for is_pinned in arguments.pin_memory
        ]
        arms = [Arm("ddp", nodes.world_size, arguments.batch, variant=variant) for variant in variants]
        return nodes.plan([nodes.study(replace(workload, data=data), arms)])

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each setting: synthetic data, then the fewest workers first."""
        plan, [study] = measured.plan, measured.plan.studies
        rows = [*_rows(measured, study)]
        finding = f"no setting is shown to reach {percent(WORTH)} of the fastest"
        if chosen := recommended(rows):
            reached = f"{cell(chosen['efficiency'], _RATIO)} the throughput on synthetic data"
            finding = f"to set: {chosen['data']} ({reached})"
        columns = [
            Column("data", "Data"), Column("samples_per_s_per_gpu", f"{plan.unit}/s per {plan.device}", better=1),
            Column("efficiency", "Efficiency", _RATIO), Column("to_fastest", "Of the fastest", _RATIO),
            Column("waited_share", "Waited of a step", "{:.0%}"),
        ]  # fmt: skip
        drawn = Drawn("Throughput by loader settings", "data", ("samples_per_s_per_gpu",))
        table = Rows("input-pipeline", "Loading", columns, rows, notes=_NOTES, drawn=drawn)
        title = f"{study.workload.family.model} in {study.workload.precision} on {study.workload.data_kind} images"
        return Results(title, [finding] * bool(rows[1:]), [table], measured.problems())


def _rows(measured: MeasuredSuite, study: Study) -> Iterator[Row]:
    pace = {arm: estimate for arm in study.arms if (estimate := measured.throughput(study, arm)) is not None}
    synthetic, *loaded = study.arms
    fastest = max(loaded, key=lambda arm: pace[arm].value if arm in pace else 0.0)
    for arm, estimate in pace.items():
        row: dict[str, Any] = {"data": arm.variant.name, "samples_per_s_per_gpu": estimate}
        if arm is not synthetic:
            rounds = measured.complete(study, arm)
            row["efficiency"] = measured.throughput(study, arm, synthetic)
            row["to_fastest"] = measured.throughput(study, arm, fastest)
            row["waited_share"] = float(waited_s_per_step(rounds).mean() / rounds.step_s.mean())
        yield row


def recommended(rows: Sequence[Row]) -> Row | None:
    """The first setting, of those with the fewest workers, that is shown to reach `WORTH` of the fastest."""
    sufficient = (
        row for row in rows if (gain := row.get("to_fastest")) and gain.interval and gain.interval[0] >= WORTH
    )
    return next(sufficient, None)
