"""`ddpscale suite data-parallel`: inference by one process on several GPUs, compared with one process per GPU.

Interleaved rounds time our DataParallel (replicate, scatter, parallel_apply, gather) and torch's nn.DataParallel, which
both copy the model to all GPUs in every pass; one GPU with the whole batch; and a rank on each GPU with its share.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.suites.engine import OF_STEPS, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.inference import BATCHES
from pytest_ddpscale.suites.options import MOST_BATCH, MOST_RANKS, add_image_model, counts, image_workload, whole
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.listing import first_few

# Arms in which one process divides a batch.
WAYS = {"vanilla_parallel": "our DataParallel", "data_parallel": "nn.DataParallel"}
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
    """Throughput and communication share of DataParallel by batch, and where it is not worth it."""

    name = "data-parallel"
    takes = OF_STEPS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model, batches and devices."""
        add_image_model(parser)
        add, usual = adder(parser), f"{','.join(map(str, BATCHES))}, rounded up to multiples of K"
        add("--batches", "N,N", counts(MOST_BATCH), f"images of all devices together; default: {usual}")
        add("--devices", "K", whole(MOST_RANKS),
            "devices per node that share a batch; default: all its GPUs (CPU: ranks)")  # fmt: skip

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each batch, the smallest first."""
        per_node = nodes.ranks_per_node
        devices = arguments.devices or per_node
        if not 2 <= devices <= per_node:
            found = f"found {devices}; {per_node} can be used on each node"
            expected = f"2 to {max(2, per_node)}: this suite compares several devices with one"
            raise OptionError("--devices", found, expected)
        even = [-(-batch // devices) * devices for batch in arguments.batches or BATCHES]
        for asked, shared in zip(arguments.batches or (), even, strict=False):
            if asked != shared:
                found = f"found {asked}, which {devices} devices cannot share evenly"
                raise OptionError("--batches", found, f"multiples of {devices}, such as {shared}")
        kind = nodes.subject.device_type
        return nodes.plan(
            nodes.study(image_workload(arguments, nodes, batch), data_parallel_arms(batch, devices, kind))
            for batch in even
        )

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each batch and way to infer it."""
        plan = measured.plan
        rows = [row for study in plan.studies for row in _rows(measured, study)]
        rate = f"{plan.unit}/s"
        columns = [
            Column("batch", "Batch"),
            Column("way", "Way"),
            Column("samples_per_s", rate, better=1),
            Column("to_one_device", "To one device", "{:.3f}×"),
            Column("to_ranks", "To a rank on each", "{:.3f}×"),
            Column("communication_share", "Communication", "{:.1%}"),
        ]
        drawn = Drawn(f"{plan.samples.capitalize()} per second by batch", "batch", ("samples_per_s",), by="way")
        of, (*_, ranks) = plan.studies[0].workload, plan.studies[0].arms
        what = f"Inference of {of.family.model} in {of.precision} by one process on {ranks.world_size} devices"
        notes = [*_NOTES, *[_CPU] * (plan.device_type == "cpu")]
        table = Rows("data-parallel", "By batch", columns, rows, 2, notes, drawn)
        findings = [_worth(way, [row for row in rows if row["way"] == way]) for way in WAYS.values()]
        return Results(what, [*filter(None, findings)], [table], measured.problems())


def data_parallel_arms(batch: int, devices: int, device_type: DeviceType) -> tuple[Arm, ...]:
    """Arms that each infer the whole batch; nn.DataParallel only with GPUs, because it just calls the model on CPUs."""
    split = ("vanilla_parallel", "parallel_apply", *(("data_parallel",) if device_type == "cuda" else ()))
    return (
        Arm("infer", 1, batch),
        *(Arm(kind, 1, batch, devices=devices) for kind in split),
        Arm("infer", devices, batch // devices),
    )


def _rows(measured: MeasuredSuite, study: Study) -> Iterator[dict[str, Any]]:
    one, *split, ranks = study.arms
    apply = next(arm for arm in split if arm.kind == "parallel_apply")

    def paces(*arms: Arm) -> FloatArray:
        """Of all ranks of the slowest node, at the pace of its slowest rank, in the rounds that all arms have."""
        return np.asarray(measured.paces(study, *arms) * np.array([[arm.world_size] for arm in arms]))

    def ratio(arm: Arm, baseline: Arm) -> Found | None:
        of_arm, of_baseline = paces(arm, baseline)
        return measured.estimated(of_arm / of_baseline)

    names = {one: "one device", ranks: f"{ranks.world_size} ranks"} | {arm: WAYS.get(arm.kind) for arm in split}
    for arm in (one, *split, ranks):
        pace = measured.estimated(paces(arm)[0])
        if names[arm] is None or pace is None:
            continue
        row = {"batch": study.workload.batch_size, "way": names[arm], "samples_per_s": pace}
        if arm in split:
            row |= {"to_one_device": ratio(arm, one), "to_ranks": ratio(arm, ranks)}
        if arm.kind == "vanilla_parallel":
            ours, applied = paces(arm, apply)
            row["communication_share"] = measured.estimated(1 - ours / applied, "differences")
        yield row


def _worth(way: str, rows: Sequence[Row]) -> str:
    """Batches at which one process is certainly slower than one device, and than a rank on each device."""
    intervals = {
        words: {row["batch"]: row[key].interval for row in rows if row[key] is not None and row[key].interval}
        for key, words in (("to_one_device", "one device"), ("to_ranks", "a rank on each"))
    }
    said = [
        f"slower than {words} at batch {first_few([str(batch) for batch, ends in of.items() if ends[1] < 1], 8)}"
        for words, of in intervals.items() if any(ends[1] < 1 for ends in of.values())
    ]  # fmt: skip
    if rows and not any(intervals.values()):
        return f"{way} measured in too few rounds to compare"
    return f"{way} {' and '.join(said) or 'not shown to be slower at any batch'}" if rows else ""
