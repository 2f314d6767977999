"""`ddpscale suite data-parallel`: inference by one process on several GPUs, compared with one process per GPU.

Interleaved rounds time our DataParallel (replicate, scatter, parallel_apply, gather) and torch's nn.DataParallel, which
both copy the model to all GPUs in every pass; one GPU with the whole batch; and a rank on each GPU with its share.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.suites.engine import OF_STEPS, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import MOST_BATCH, add_image_model, counts, image_workload
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows, between
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.command_parser import adder

# Arms in which one process divides a batch.
WAYS = {"vanilla_parallel": "our DataParallel", "data_parallel": "nn.DataParallel"}
_RATIO = "{:.3f}×"
_NOTES = (
    "All rows of a batch infer the same images in a pass: on one device; by one process that splits them over its "
    "devices, while other ranks idle; by a rank on each device with its part. Communication: the share of our pass "
    "outside our parallel_apply, which is timed in the same round; torch's own is not timed.",
)
_CPU = (
    "nn.DataParallel needs two GPUs: not measured. Our DataParallel runs all devices on this CPU, with the cores of "
    "one rank, so times say nothing about GPUs."
)


class DataParallel(Suite):
    """Throughput and communication share of DataParallel by batch, beside one device and a rank on each."""

    name = "data-parallel"
    takes = OF_STEPS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model and batches."""
        add_image_model(parser)
        told = "images of all devices together, rounded up to multiples of their number"
        adder(parser)("--batches", "N,N", counts(MOST_BATCH), told, "32,64,128,256")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each batch, the smallest first."""
        devices = nodes.ranks_per_node
        if devices < 2:
            raise OptionError("--ddp-gpus-per-node", "found one device", "at least 2, which are compared with one")
        # On a CPU nn.DataParallel just calls the model.
        split = ("vanilla_parallel", "parallel_apply", *["data_parallel"] * (not nodes.is_cpu))
        return nodes.plan(
            nodes.study(image_workload(arguments, nodes, batch), [
                Arm("infer", 1, batch), *(Arm(kind, 1, batch, devices=devices) for kind in split),
                Arm("infer", devices, batch // devices),
            ])
            for batch in dict.fromkeys(-(-batch // devices) * devices for batch in arguments.batches)
        )  # fmt: skip

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each batch and way to infer it."""
        plan = measured.plan
        rows, rate = [row for study in plan.studies for row in _rows(measured, study)], f"{plan.unit}/s"
        columns = [
            Column("batch", "Batch"), Column("way", "Way"), Column("samples_per_s", rate, better=1),
            Column("to_one_device", "To one device", _RATIO), Column("to_ranks", "To a rank on each", _RATIO),
            Column("communication_share", "Communication", "{:.1%}"),
        ]  # fmt: skip
        drawn = Drawn(f"{plan.samples.capitalize()} per second by batch", "batch", ("samples_per_s",), by="way")
        notes = [*_NOTES, *[_CPU] * (plan.device_type == "cpu")]
        table = Rows("data-parallel", "By batch", columns, rows, 2, notes, drawn)
        of, devices = plan.studies[0].workload, plan.studies[0].arms[-1].world_size
        what = f"Inference of {of.family.model} in {of.precision} by one process on {devices} devices"
        ratios = {
            way: between((row["to_ranks"] for row in rows if row["way"] == way and row["to_ranks"]), _RATIO)
            for way in WAYS.values()
        }
        findings = [f"{way} {said} a rank on each" for way, said in ratios.items() if said]
        return Results(what, findings, [table], measured.problems())


def _rows(measured: MeasuredSuite, study: Study) -> Iterator[Row]:
    one, ranks = study.arms[0], study.arms[-1]
    names = {one: "one device", ranks: f"{ranks.world_size} ranks"}
    apply = next(arm for arm in study.arms if arm.kind == "parallel_apply")

    def paces(*arms: Arm) -> FloatArray:
        """Of all ranks of the slowest node, at the pace of its slowest rank, in the rounds that all arms have."""
        return np.asarray(measured.paces(study, *arms) * [[arm.world_size] for arm in arms])

    for arm in (arm for arm in study.arms if arm is not apply):
        row: dict[str, Any] = {"batch": study.workload.batch_size, "way": names.get(arm) or WAYS[arm.kind]}
        row["samples_per_s"] = measured.estimated(paces(arm)[0])
        if arm not in names:
            for key, beside in (("to_one_device", one), ("to_ranks", ranks)):
                row[key] = measured.estimated(np.divide(*paces(arm, beside)))
        if arm.kind == "vanilla_parallel":
            row["communication_share"] = measured.estimated(1 - np.divide(*paces(arm, apply)), "differences")
        if row["samples_per_s"] is not None:
            yield row
