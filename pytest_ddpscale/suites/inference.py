"""`ddpscale suite inference`: forward passes of one model, batch by batch, on one GPU alone and on all at once.

Without communication and training, any loss of all GPUs at once comes from sharing the host: its cores, memory, power
and cooling.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import INFERENCE_LATENCIES, INFERENCE_THROUGHPUT
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.suites.engine import OF_STEPS, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import MOST_BATCH, add_image_model, counts, image_workload
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows
from pytest_ddpscale.util.command_parser import adder

_PACE = "samples_per_s_per_gpu"
# Share of the highest throughput from which on a larger batch is not worth its latency.
SATURATED = 0.95
_NOTES = (
    "Total: ranks at once times the pace of the slowest.",
    "Latency: percentiles of each round, over all passes and ranks; p99 needs 100 of them to mean much.",
)


class Inference(Suite):
    """Throughput and latency by batch, and the batch at which throughput saturates."""

    name = "inference"
    takes = OF_STEPS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model and batches."""
        add_image_model(parser)
        adder(parser)("--batches", "N,N", counts(MOST_BATCH), "per GPU", "32,64,128,256")

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
        asked = {_PACE: INFERENCE_THROUGHPUT} | {f"p{p}_ms": one for p, one in INFERENCE_LATENCIES.items()}
        for study, arm in [(one, arm) for one in plan.studies for arm in one.arms]:
            ranks = arm.world_size
            values = {key: measured.value(metric, study, ranks) for key, metric in asked.items()}
            if pace := values[_PACE]:
                rows.append({
                    "batch": arm.batch_size, "ranks": ranks, "at_once": f"{ranks} at once", **values,
                    "samples_per_s": ranks * pace.value,
                })  # fmt: skip
        of, rate = plan.studies[0].workload, f"{plan.unit}/s"
        columns = [
            Column("batch", "Batch"), Column("ranks", "Ranks at once"),
            Column(_PACE, f"{rate} per {plan.device}", better=1), Column("samples_per_s", f"Total {rate}"),
            *(Column(f"p{one}_ms", f"p{one} ms", better=-1) for one in INFERENCE_LATENCIES),
        ]  # fmt: skip
        drawn = Drawn(f"Throughput per {plan.device} by batch", "batch", (_PACE,), by="at_once")
        table = Rows("inference", "By batch", columns, rows, 2, _NOTES, drawn)
        what = f"Inference of {of.family.model} in {of.precision}"
        return Results(what, [*findings_of(rows, f"{rate} per {plan.device}")], [table], measured.problems())


def findings_of(rows: Sequence[Row], unit: str) -> Iterator[str]:
    """The fastest batch with most ranks at once, and where throughput saturates."""
    ranks = max((row["ranks"] for row in rows), default=0)
    paces = {row["batch"]: row[_PACE] for row in rows if row["ranks"] == ranks}
    if paces:
        best = max(paces, key=lambda batch: paces[batch].value)
        yield f"{paces[best].value:.4g} {unit} ({ranks} at once, batch {best})"
    if len(paces) > 1:
        limits = {batch: found.interval or (found.value,) * 2 for batch, found in paces.items()}
        at = next(batch for batch, (_, high) in limits.items() if high >= SATURATED * limits[best][0])
        grows = f"throughput still grows at batch {at}, the largest measured"
        yield grows if at == max(paces) else f"saturated from batch {at} on"
