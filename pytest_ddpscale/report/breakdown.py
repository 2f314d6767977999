"""Where the time goes: every arm of every study, also those that no requirement asks for."""

from __future__ import annotations

import math
import statistics

import numpy as np

from pytest_ddpscale.judge.metrics import VALUE_OF, Arms, merged
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.run.block import STEP_S, WAITED_S
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.tables import Table, table

PERCENTS = (50, 75, 90, 95, 99)


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
    held = (VALUE_OF[name](Arms([rounds], 1)).tolist() for name in ("peak_memory_gib", "memory_spread"))
    peaks, spreads = ([one for one in values if not math.isnan(one)] for values in held)
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


def step_time_percentiles_ms(measured: ArmRounds) -> dict[int, float]:
    """`PERCENTS` of an arm's step time in ms over the raw steps of all ranks and rounds; may be empty."""
    steps_s = measured.reading(STEP_S)
    steps_s = steps_s[~np.isnan(steps_s)].astype(np.float64)
    return dict(zip(PERCENTS, (1000 * np.percentile(steps_s, PERCENTS)).tolist(), strict=True)) if len(steps_s) else {}


def waited_s_per_step(measured: ArmRounds) -> FloatArray:
    """Seconds per step that ranks waited for data, the most of all ranks; NaN with synthetic data, (rounds,)."""
    waited_s = measured.reading(WAITED_S)
    is_unknown = np.isnan(waited_s).all(axis=-1)
    in_all = np.where(is_unknown, np.nan, np.nansum(waited_s, axis=-1, dtype=np.float64))
    return measured.most(in_all / np.maximum(measured.count, 1))
