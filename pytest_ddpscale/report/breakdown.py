"""Where the time goes: every arm of every study, also those that no requirement asks for."""

from __future__ import annotations

import math
import statistics

import numpy as np

from pytest_ddpscale.judge.metrics import (
    GIB,
    PERCENTS,
    memory_spread,
    merged,
    peak_memory_bytes,
    step_time_percentiles_ms,
    waited_s_per_step,
)
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.tables import Table, table


def breakdown(evidence: Evidence) -> Table:
    """One row for each measured arm, in the plan's order.

    Percentiles are over the raw steps of all ranks. Throughput is the median over the rounds, at the slowest rank's
    pace. The wait for data is that of the rank that waited most. Memory is the maximum over the rounds. If several
    groups of ranks trained an arm at the same time, all of them count.
    """
    plan, rows = evidence.plan, []
    titles = (
        "Study", "Arm", "Rounds", f"{plan.unit}/s per rank", "TFLOPS per rank", *(f"p{p} ms" for p in PERCENTS),
        "Waited for data, ms a step", "Peak GiB", "Memory spread", "Skipped steps",
    )  # fmt: skip
    for study in plan.studies:
        for arm in study.arms:
            rounds = merged(evidence.columns, study.id, arm, plan.layout)
            if len(rounds):
                rows.append((study.id, arm.name, *_cells(rounds, evidence.flops_per_sample.get(study.id))))
    return table(titles, rows, of_numbers=True)


def _cells(rounds: ArmRounds, flops: float | None) -> tuple[str, ...]:
    speed = statistics.median(rounds.samples_per_s_per_gpu.tolist())
    percentiles = step_time_percentiles_ms(rounds)
    waited_s = waited_s_per_step(rounds)
    peaks = [gib for gib in (peak_memory_bytes(rounds) / GIB).tolist() if not math.isnan(gib)]
    spreads = [spread for spread in memory_spread(rounds).tolist() if not math.isnan(spread)]
    skipped = int(np.nansum(rounds.reading("skipped_steps")))
    return (
        str(len(rounds)),
        f"{speed:.1f}",
        f"{speed * flops / 1e12:.3g}" if flops else ABSENT,
        *(f"{percentiles[percent]:.1f}" if percentiles else ABSENT for percent in PERCENTS),
        ABSENT if np.isnan(waited_s).any() else f"{1000 * waited_s.mean():.1f}",
        f"{max(peaks):.2f}" if peaks else ABSENT,
        percent(max(spreads), 1) if spreads else ABSENT,
        str(skipped) if skipped else ABSENT,
    )
