"""A suite of one's own: the questions and columns that the engine needs, and nothing else."""

from __future__ import annotations

import argparse
from typing import Any

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.suites.engine import OF_STEPS, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.options import counts, image_workload
from pytest_ddpscale.suites.results import Column, Drawn, Results, Rows
from pytest_ddpscale.util.command_parser import adder


class Halves(Suite):
    """Half of a node's ranks against all of them, by batch."""

    name = "halves"
    takes = OF_STEPS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        adder(parser)("--batches", "N,N", counts(64), "images per rank", "2")
        parser.set_defaults(model="shufflenet_v2_x0_5", image_size=32, precision=None)

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        ranks = nodes.ranks_per_node
        return nodes.plan(
            nodes.study(
                image_workload(arguments, nodes, batch),
                [Arm("infer", size, batch) for size in dict.fromkeys((max(1, ranks // 2), ranks))],
            )
            for batch in arguments.batches
        )

    def results(self, measured: MeasuredSuite) -> Results:
        rows = list[dict[str, Any]]()
        for study in measured.plan.studies:
            half, whole = study.arms[0], study.arms[-1]
            if pace := measured.throughput(study, whole):
                kept = measured.throughput(study, whole, half)
                rows.append({"batch": study.workload.batch_size, "pace": pace, "efficiency": kept})
        columns = [
            Column("batch", "Batch"),
            Column("pace", f"{measured.plan.unit}/s per {measured.plan.device}", better=1),
            Column("efficiency", "Efficiency", "{:.1%}"),
        ]
        model = measured.plan.studies[0].workload.family.model
        drawn = Drawn("Pace by batch", "batch", ("pace",))
        table = Rows("halves", "By batch", columns, rows, drawn=drawn)
        return Results(f"Halves of {model}", [f"{len(rows)} batches"] * bool(rows), [table], measured.problems())
