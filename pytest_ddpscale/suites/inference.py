"""`ddpscale suite inference` and `ddpscale suite data-parallel`: forward passes of one model, batch by batch.

Inference: on one GPU alone and on all at once. Without communication and training, any loss of all GPUs at once comes
from sharing the host: its cores, memory, power and cooling.

Data-parallel: by one process on several GPUs. Interleaved rounds time our DataParallel (replicate, scatter,
parallel_apply, gather) and torch's nn.DataParallel, which both copy the model to all GPUs in every pass; one GPU with
the whole batch; and a rank on each GPU with its share.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import INFERENCE_LATENCIES, INFERENCE_THROUGHPUT
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.suites.engine import OF_STEPS, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import add_image_model, image_workload, numbers
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows, cell
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.listing import count_text

_PACE = "samples_per_s_per_gpu"
# Share of the highest throughput from which on a larger batch is not worth its latency.
SATURATED = 0.95
_NOTES = ("Latency: percentiles of each round, over all passes and ranks; p99 needs 100 of them to mean much.",)
# Arms in which one process divides a batch.
WAYS = {"vanilla_parallel": "our DataParallel", "data_parallel": "nn.DataParallel"}
_RATIO = "{:.3f}×"
_OF_SPLIT = (
    "Computation: the passes on all devices at once, with copies and inputs in place, which both ways make. "
    "Communication: what a pass takes longer in the same round: copying the model, scattering and gathering.",
)


class Inference(Suite):
    """Throughput and latency by batch, and the batch at which throughput saturates."""

    name = "inference"
    takes = OF_STEPS
    batches = "images of a pass"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model and batches."""
        add_image_model(parser)
        adder(parser)("--batches", "N,N", numbers, self.batches, "32,64,128,256")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each batch, the smallest first; a batch that exceeds the memory ends only its own study."""
        ranks = nodes.ranks_per_node
        return nodes.plan(
            nodes.study(
                image_workload(arguments, nodes, batch),
                [Arm("infer", size, batch) for size in dict.fromkeys((1, ranks))], turns=ranks,
            )
            for batch in arguments.batches
        )  # fmt: skip

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each batch and number of ranks at once."""
        plan, rows = measured.plan, list[Row]()
        metrics = {_PACE: INFERENCE_THROUGHPUT} | {f"p{p}_ms": metric for p, metric in INFERENCE_LATENCIES.items()}
        for study, arm in [(planned, arm) for planned in plan.studies for arm in planned.arms]:
            ranks = arm.world_size
            values = {key: measured.value(metric, study, ranks) for key, metric in metrics.items()}
            if pace := values[_PACE]:
                rows.append({
                    "batch": arm.batch_size, "ranks": ranks, **values, "samples_per_s": ranks * pace.value,
                })  # fmt: skip
        of, rate = plan.studies[0].workload, f"{plan.unit}/s"
        columns = [
            Column("batch", "Batch"), Column("ranks", "Ranks at once"),
            Column(_PACE, f"{rate} per {plan.device}", better=1), Column("samples_per_s", f"Total {rate}"),
            *(Column(f"p{percentile}_ms", f"p{percentile} ms", better=-1) for percentile in INFERENCE_LATENCIES),
        ]  # fmt: skip
        drawn = Drawn(f"Throughput per {plan.device} by batch", "batch", (_PACE,), by="ranks")
        table = Rows("inference", "By batch", columns, rows, 2, _NOTES, drawn)
        title = f"Inference of {of.family.model} in {of.precision}"
        return Results(title, [*findings_of(rows, f"{rate} per {plan.device}")], [table], measured.problems())


def findings_of(rows: Sequence[Row], unit: str) -> Iterator[str]:
    """The fastest batch with most ranks at once, and where throughput saturates."""
    ranks = max((row["ranks"] for row in rows), default=0)
    paces = {row["batch"]: row[_PACE] for row in rows if row["ranks"] == ranks}
    if paces:
        best = max(paces, key=lambda batch: paces[batch].value)
        yield f"{paces[best].value:.4g} {unit} ({ranks} at once, batch {best})"
    if len(paces) > 1:
        least = SATURATED * (paces[best].interval or paces[best])[0]
        at = next(batch for batch, pace in paces.items() if (pace.interval or pace[:1])[-1] >= least)
        yield "throughput still grows at the largest batch" if at == max(paces) else f"saturated from batch {at} on"


class DataParallel(Inference):
    """Throughput and communication share of DataParallel by batch, beside one device and a rank on each."""

    name = "data-parallel"
    batches = "images of a pass, rounded up to a multiple of the devices"

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each batch, the smallest first; all devices share it, rounded up to a multiple of them."""
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
        rows, rate = [row for study in plan.studies for row in _split_rows(measured, study)], f"{plan.unit}/s"
        columns = [
            Column("batch", "Batch"), Column("way", "Way"), Column("samples_per_s", rate, better=1),
            Column("to_ranks", "To a rank on each", _RATIO), Column("computation_ms", "Computation ms", better=-1),
            Column("communication_ms", "Communication ms", better=-1),
        ]  # fmt: skip
        drawn = Drawn(f"{plan.samples.capitalize()} per second by batch", "batch", ("samples_per_s",), by="way")
        notes = [*_OF_SPLIT, *["nn.DataParallel needs two GPUs: not measured."] * (plan.device_type == "cpu")]
        table = Rows("data-parallel", "By batch", columns, rows, 2, notes, drawn)
        of, devices = plan.studies[0].workload, plan.studies[0].arms[-1].world_size
        title = f"Inference of {of.family.model} in {of.precision} by one process on {devices} devices"
        compared = sorted((row for row in rows if row.get("to_ranks")), key=lambda row: row["to_ranks"].value)
        findings = [
            f"at best {cell(row['to_ranks'], _RATIO)} a rank on each ({row['way']}, batch {row['batch']})"
            for row in compared[-1:]
        ]
        times = [
            replace(table, name=key, drawn=replace(drawn, title=f"{word} of a pass by batch", ys=(key,)))
            for word, key in (("Computation", "computation_ms"), ("Communication", "communication_ms"))
        ]
        return Results(title, findings, [table], measured.problems(), pictures=times)


def _split_rows(measured: MeasuredSuite, study: Study) -> Iterator[Row]:
    def paces(*arms: Arm) -> FloatArray:
        """Of all ranks of the slowest node, at the pace of its slowest rank, in the rounds that all arms have."""
        return np.asarray(measured.paces(study, *arms) * [[arm.world_size] for arm in arms])

    by_kind = {arm.kind: arm for arm in study.arms}
    for arm in (arm for arm in study.arms if arm.kind != "parallel_apply"):
        method, pace = WAYS.get(arm.kind) or count_text(arm.world_size, "rank"), measured.estimated(paces(arm)[0])
        row: dict[str, Any] = {"batch": study.workload.batch_size, "way": method, "samples_per_s": pace}
        if arm.kind in WAYS:
            row["to_ranks"] = measured.estimated(np.divide(*paces(arm, study.arms[-1])))
            of_pass, computing = 1000 * arm.batch_size / paces(arm, by_kind["parallel_apply"])
            row["computation_ms"] = measured.estimated(computing)
            row["communication_ms"] = measured.estimated(of_pass - computing, "differences")
        if row["samples_per_s"]:
            yield row
