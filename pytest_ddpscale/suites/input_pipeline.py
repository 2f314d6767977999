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

import numpy as np

from pytest_ddpscale.datasets.dataset_record import DATASET_FILE, DatasetRecord, read_dataset_record
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import MOST_LOADER_WORKERS, MOST_PREFETCH, ImageFolderData
from pytest_ddpscale.report.where_time_goes import waited_s_per_step
from pytest_ddpscale.suites.engine import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import (
    MOST_BATCH,
    MOST_RANKS,
    add_image_model,
    at_most,
    counts,
    image_workload,
    whole,
)
from pytest_ddpscale.suites.results import Column, Results, Row, Rows, cell, ends
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.digits import percent

SYNTHETIC = Variant(data="synthetic")
# Share of the throughput on synthetic data below which loading counts as the bottleneck, and of the fastest setting
# that a recommended one reaches.
WORTH = 0.95
MOST_ARMS = 32
_USUAL_CLASSES, _USUAL_PIXELS = 1000, 224
_RATIO = "{:.3f}×"
_NOTES = (
    "Efficiency: throughput over that on synthetic data in the same round. Waited: by the rank that waited most for "
    "its next batch; it may cost nothing while the device still computes. To set: the fewest workers that are shown "
    f"to reach {percent(WORTH)} of the fastest setting. Where loading may be the bottleneck, more --ddp-rounds narrow "
    "intervals.",
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
        add_image_model(parser, pixels=None)
        add("--batch", "N", whole(MOST_BATCH), "images per GPU", 128)
        add("--ranks", "N", whole(MOST_RANKS), "ranks per node; default: all its GPUs (CPU: cores)")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan one study with synthetic data and each setting of the loader."""
        ranks, number = arguments.ranks or nodes.ranks_per_node, nodes.machine.cluster.nodes
        at_most("--ranks", ranks, nodes.ranks_per_node)
        folder = arguments.folder.expanduser().absolute()
        record = _record_of(folder, is_here=not nodes.machine.cluster.is_elsewhere)
        workload = image_workload(
            arguments, nodes, arguments.batch, num_classes=max(record.classes if record else 0,
            _USUAL_CLASSES), image_size=arguments.image_size or (record.image_size if record else _USUAL_PIXELS),
        )  # fmt: skip
        workload = replace(workload, data=ImageFolderData(str(folder)))
        variants = [
            Variant(workers=one, prefetch=ahead if one else None)
            for one in arguments.workers
            for ahead in (arguments.prefetch if one else [0])  # without workers there is no read-ahead
        ]
        if len(variants) >= MOST_ARMS:
            raise OptionError(
                "--workers", f"found {len(variants)} settings with --prefetch", f"at most {MOST_ARMS - 1}"
            )
        arms = [Arm("ddp", ranks * number, arguments.batch, variant=one) for one in (SYNTHETIC, *variants)]
        return nodes.plan([nodes.study(workload, arms)], ranks_per_node=ranks)

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each setting: synthetic data, then the fewest workers first."""
        plan, [study] = measured.plan, measured.plan.studies
        rows = [*_rows(measured, study)]
        columns = [
            Column("data", "Data"),
            Column("samples_per_s_per_gpu", f"{plan.unit}/s per {plan.device}", better=1),
            Column(
                "efficiency", "Efficiency", _RATIO, above="synthetic images may be copied while folder ones wait ready"
            ),
            Column("to_fastest", "Of the fastest", _RATIO),
            Column("waited_s_per_step", "Waited s/step", "{:.4f}"),
            Column("waited_share", "Of a step", "{:.0%}"),
        ]
        chosen = recommended(rows)
        what = f"{study.workload.family.model} in {study.workload.precision} on {study.workload.data_kind} images"
        values = {
            "folder": str(study.workload.data), "recommended": chosen and chosen["data"],
            "is_bottleneck": {"is": True, "is not": False}.get(bottleneck(rows)),
        }  # fmt: skip
        findings = _findings(rows, chosen) if any(row["waited_s_per_step"] is not None for row in rows) else ()
        table = Rows("input-pipeline", "Loading", columns, rows, notes=_NOTES)
        return Results(what, [*findings], [table], measured.problems(), values=values)


def _record_of(folder: Path, *, is_here: bool) -> DatasetRecord | None:
    """make-dataset's record of the folder, if it has one and this machine can read it. Raises OptionError."""
    if is_here and not (folder / "train").is_dir():
        raise OptionError("--folder", f"{folder} has no folder train", "train/CLASS/IMAGE (see ddpscale make-dataset)")
    try:
        return read_dataset_record(folder)
    except ValueError as error:
        raise OptionError("--folder", f"{folder / DATASET_FILE}: {error}", "a record from make-dataset") from None


def _rows(measured: MeasuredSuite, study: Study) -> Iterator[dict[str, Any]]:
    pace = {arm: found for arm in study.arms if (found := measured.throughput(study, arm)) is not None}
    synthetic, *loaded = study.arms
    best = max((arm for arm in loaded if arm in pace), key=lambda arm: pace[arm].value, default=None)
    for arm, found in pace.items():
        rounds = merged(measured.evidence.columns, study.id, arm, measured.plan.layout)
        waited, step_s = waited_s_per_step(rounds), float(rounds.step_s.mean())
        waited_s = None if np.isnan(waited).any() else float(waited.mean())
        beside = {"efficiency": synthetic if synthetic in pace else None, "to_fastest": best}
        ratios = {
            key: measured.throughput(study, arm, of)
            for key, of in beside.items() if of is not None and arm not in (synthetic, of)
        }  # fmt: skip
        yield {
            "data": arm.variant.name, "samples_per_s_per_gpu": found, "efficiency": None, "to_fastest": None, **ratios,
            "waited_s_per_step": waited_s, "waited_share": None if waited_s is None else waited_s / step_s,
            "step_s": step_s,
        }  # fmt: skip


def _limits(row: Row, key: str) -> tuple[float, float]:
    """The ends of an interval; of anything without one."""
    found = row[key]
    return (0.0, np.inf) if found is None or found.interval is None else found.interval


def recommended(rows: Sequence[Row]) -> Row | None:
    """The first setting, of those with the fewest workers, that is shown to reach `WORTH` of the fastest."""
    loaded = [row for row in rows if row["waited_s_per_step"] is not None]
    return next((row for row in loaded if row["to_fastest"] is None or _limits(row, "to_fastest")[0] >= WORTH), None)


def bottleneck(rows: Sequence[Row]) -> str:
    """Whether loading is the bottleneck, as far as intervals show.

    It is not if the recommended setting keeps up, and it is if no setting keeps up.
    """
    chosen = recommended(rows)
    if chosen is not None and _limits(chosen, "efficiency")[0] >= WORTH:
        return "is not"
    loaded = [_limits(row, "efficiency") for row in rows if row["waited_s_per_step"] is not None]
    return "is" if loaded and all(high < WORTH for _, high in loaded) else "may be"


def _findings(rows: Sequence[Row], chosen: Row | None) -> Iterator[str]:
    yield f"the input pipeline {bottleneck(rows)} the bottleneck"
    if chosen is not None:
        reached = chosen["efficiency"]
        beside = f": {cell(reached, _RATIO)} the throughput on synthetic data ({ends(reached, _RATIO)})"
        yield f"to set: {chosen['data']}{beside if reached else ''}"
