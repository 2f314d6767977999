"""`ddpscale suite inference`: forward passes of one model, batch by batch, on one GPU alone and on all at once.

Without communication and training, any loss of all GPUs at once comes from sharing the host: its cores, memory, power
and cooling.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.judge.values import samples_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import INFERENCE_LATENCIES, INFERENCE_THROUGHPUT
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.suites.engine import OF_STEPS, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import (
    MOST_BATCH,
    MOST_RANKS,
    add_image_model,
    at_most,
    counts,
    image_workload,
    whole,
)
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.digits import percent

BATCHES = (32, 64, 128, 256)
_PACE = "samples_per_s_per_gpu"
# Share of the highest throughput from which on a larger batch is not worth its latency.
SATURATED = 0.95
_NOTES = (
    "Total: ranks at once times the pace of the slowest. Kept at once: throughput of a device while the others of its "
    "node work too, over the same device alone in the same round: any loss comes from sharing the host.",
    "Latency: percentiles of each round, over all passes and ranks; p99 needs 100 of them to mean much.",
)


class Inference(Suite):
    """Throughput and latency by batch, and the batch at which throughput saturates."""

    name = "inference"
    takes = OF_STEPS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model, batches and ranks."""
        add_image_model(parser)
        add, usual = adder(parser), ",".join(map(str, BATCHES))
        add("--batches", "N,N", counts(MOST_BATCH), "per GPU", usual)
        add("--ranks", "N", whole(MOST_RANKS), "ranks per node that infer at once; default: all its GPUs (CPU: cores)")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each batch, the smallest first; a batch that exceeds the memory ends only its own study."""
        ranks = arguments.ranks or nodes.ranks_per_node
        at_most("--ranks", ranks, nodes.ranks_per_node)
        return nodes.plan(
            nodes.study(image_workload(arguments, nodes, batch), inference_arms(batch, ranks), turns=ranks)
            for batch in arguments.batches
        )

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each batch and number of ranks at once."""
        plan = measured.plan
        found = {(study.id, arm): _row(measured, study, arm) for study in plan.studies for arm in study.arms}
        rows = [row for row in found.values() if row is not None]
        lacking = {study for (study, _), row in found.items() if row is None}
        rate = f"{plan.unit}/s"
        columns = [
            Column("batch", "Batch"),
            Column("ranks", "Ranks at once"),
            Column(_PACE, f"{rate} per {plan.device}", better=1),
            Column("samples_per_s", f"Total {rate}", bare=True),
            Column(
                "kept_at_once", "Kept at once", "{:.1%}", above="the device was slower alone, by noise or a lower clock"
            ),
            *(Column(f"p{one}_ms", f"p{one} ms", better=-1) for one in INFERENCE_LATENCIES),
            Column("passes_per_rank_and_round", "Passes a round"),
        ]
        drawn = Drawn(f"Throughput per {plan.device} by batch", "batch", (_PACE,), by="at_once")
        of = plan.studies[0].workload
        what = f"Inference of {of.family.model} in {of.precision}"
        table = Rows("inference", "By batch", columns, rows, 2, _NOTES, drawn)
        return Results(what, [*_findings(rows, rate, plan.device)], [table], measured.problems(lacking))


def inference_arms(batch: int, ranks: int) -> tuple[Arm, ...]:
    """Arms for one rank at a time, and for all ranks at once."""
    return tuple(Arm("infer", size, batch) for size in dict.fromkeys((1, ranks)))


def _row(measured: MeasuredSuite, study: Study, arm: Arm) -> dict[str, Any] | None:
    """The row of an arm; None without rounds that all nodes have."""
    evidence, layout = measured.evidence, measured.plan.layout
    asked = {_PACE: INFERENCE_THROUGHPUT} | {f"p{p}_ms": one for p, one in INFERENCE_LATENCIES.items()}
    values = {
        key: measured.estimated(samples_of(Question(metric, study.workload, arm.world_size), evidence))
        for key, metric in asked.items()
    }
    if None in values.values():
        return None
    alone, together = (merged(evidence.columns, study.id, one, layout) for one in (study.arms[0], arm))
    kept = measured.estimated(kept_at_once(alone, together)) if arm.world_size > 1 else None
    pace = values[_PACE]
    assert pace is not None
    low, high = pace.interval or (math.nan, math.nan)
    ends = (arm.world_size * low, arm.world_size * high)
    total = Found(arm.world_size * pace.value, ends if pace.interval else None)
    return {
        "batch": study.workload.batch_size, "ranks": arm.world_size, "at_once": f"{arm.world_size} at once", **values,
        "samples_per_s": total, "kept_at_once": kept, "passes_per_rank_and_round":
        int(np.median(together.count[together.present])),
    }  # fmt: skip


def _findings(rows: Sequence[Row], rate: str, device: str) -> Iterator[str]:
    """The fastest batch with most ranks at once, what a device keeps there, and where throughput saturates."""
    ranks = max((row["ranks"] for row in rows), default=0)
    of_most = [row for row in rows if row["ranks"] == ranks]
    if not of_most:
        return
    best = max(of_most, key=lambda row: row[_PACE].value)
    pace, kept = best[_PACE], best["kept_at_once"]
    yield f"{pace.value:.4g} {rate} per {device} ({ranks} at once, batch {best['batch']})"
    if kept is not None:
        is_loss = kept.interval is not None and kept.interval[1] < 1
        yield f"{percent(kept.value, 1)} of one alone" if is_loss else "no loss at once shown"
    if len(of_most) > 1:
        least = SATURATED * (pace.interval or pace)[0]
        tops = {row["batch"]: (found.interval or found[:1])[-1] for row in of_most if (found := row[_PACE])}
        at = next(batch for batch, top in tops.items() if top >= least)
        grows = f"throughput still grows at batch {at}, the largest measured"
        yield grows if at == of_most[-1]["batch"] else f"saturated from batch {at} on"


def kept_at_once(alone: ArmRounds, together: ArmRounds) -> FloatArray:
    """Throughput of a rank while its whole node works, relative to the same rank alone in the same round.

    Only the rank whose turn it is counts, because a slower neighbour is no loss from sharing. With several nodes, the
    value is the geometric mean over their ranks.
    """
    places = {place: column for column, place in enumerate(together.ranks.places)}
    pairs = [(i, places[place]) for i, place in enumerate(alone.ranks.places) if place in places]
    numbers = np.intersect1d(alone.numbers, together.numbers)
    if not pairs or not len(numbers):
        return np.zeros(0)
    of_one, of_all = (np.array(columns) for columns in zip(*pairs, strict=True))
    one = alone.per_second[np.isin(alone.numbers, numbers)][:, of_one]
    with_all = together.per_second[np.isin(together.numbers, numbers)][:, of_all]
    logs = np.log(with_all / one)
    known = ~np.isnan(logs).all(axis=1)
    return np.asarray(np.exp(np.nanmean(logs[known], axis=1)))
