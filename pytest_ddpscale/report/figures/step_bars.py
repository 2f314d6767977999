"""Bars of a run's arms and devices: parts of a step's time, utilization."""

from __future__ import annotations

import numpy as np

from pytest_ddpscale.judge.checks import IDLE
from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.plan.arm import Arm, ArmKind
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.report.digits import number_text
from pytest_ddpscale.report.figures.bars import BarRow, bars
from pytest_ddpscale.report.figures.drawing import BAD, INK, SERIES, Drawing
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.table import NO_ROUNDS, ArmRounds, Columns
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import by_number

MOST_BARS = 16  # half a screen
# The parts differ in opacity, so that they can be distinguished without colour.
_PARTS = (
    ("compute, typical rank", SERIES[0], 0.35),
    ("waiting for the slowest rank", SERIES[1], 0.95),
    ("DDP without communication", SERIES[2], 0.6),
    ("exposed communication", SERIES[3], 0.8),
    ("the rest, not measured separately", INK, 0.2),
)


def where_time_goes(columns: Columns, plan: Plan) -> Drawing | None:
    """A step of each study's largest arm, split by the time of the same ranks without communication.

    Each part is a difference of medians over the rounds: noise may hide it, but it is never negative.
    """
    rows = []
    for study in plan.studies:
        found = [(arm, merged(columns, study.id, arm, plan.layout)) for arm in _largest_first(study)]
        for arm, trained in [one for one in found if len(one[1])][:1]:
            levels, total = _levels(columns, plan, study, arm), _median(trained.step_s)
            if levels:
                levels.append((3 if 2 in dict(levels) else 4, total))
                segments, start = [], 0.0
                for part, level in levels:
                    end = min(max(level, start), total)
                    segments.append((start / total, end / total, *_PARTS[part][1:]))
                    start = end
                rows.append(BarRow(f"{study.id}, {arm.name}", _totals(total, trained), segments))
    drawn = {one[2:] for row in rows for one in row.segments}
    return bars(rows, [part for part in _PARTS if part[1:] in drawn])


def _largest_first(study: Study) -> list[Arm]:
    packed = [arm for arm in study.arms if arm.kind == "ddp" and arm.placement == "packed"]
    # Arms with real data also wait for it, and no arm here measures that part.
    arms = [arm for arm in packed if arm.data_of(study.workload) == "synthetic"]
    return sorted(arms, key=lambda arm: -arm.world_size)


def _levels(columns: Columns, plan: Plan, study: Study, arm: Arm) -> list[tuple[int, float]]:
    """Indices into `_PARTS` with their end in seconds, as far as arms were measured; empty if none computes alone."""
    alike = [one for one in study.arms if one.batch_size == arm.batch_size and one.placement == "packed"]

    def rounds_of(kind: ArmKind) -> ArmRounds:
        sizes = (one for one in alike if one.kind == kind and one.world_size <= arm.world_size)
        largest = max(sizes, key=lambda one: one.world_size, default=None)
        return NO_ROUNDS if largest is None else merged(columns, study.id, largest, plan.layout)

    each, alone, silent = rounds_of("each"), rounds_of("alone"), rounds_of("no_sync")
    levels = [(0, _median(rounds.mean_step_s)) for rounds in (each, alone) if len(rounds)][:1]
    # A rank timed alone is rarely the slowest one, so only `each` shows the wait for the slowest.
    levels += [(1, _median(each.step_s))] if len(each) else []
    return [*levels, (2, _median(silent.step_s))] if levels and len(silent) else levels


def _totals(step_s: float, trained: ArmRounds) -> str:
    said = [number_text(step_s * 1000, "ms")]
    busy = trained.reading("utilization")
    power = trained.reading("energy_j") / trained.seconds
    if not np.isnan(busy).all():
        said.append(f"{percent(_median(busy))} busy")
    if not np.isnan(power).all():
        said.append(f"{_median(power):.0f} W")
    return ", ".join(said)


def _median(values: FloatArray) -> float:
    return float(np.nanmedian(values))


def activity_bars(columns: Columns, plan: Plan) -> Drawing | None:
    """Median utilization of each device over the rounds of the arm in which it was least busy."""
    least = _least_busy(columns, plan)
    shown = sorted(least, key=lambda place: least[place][0])[:MOST_BARS] if len(least) > MOST_BARS else list(least)
    rows = []
    for place in shown:
        share, arm = least[place]
        is_low = share < IDLE
        said = f"{number_text(share, 'fraction')}, {arm}"
        fill, said = (BAD, f"low: {said}") if is_low else (SERIES[0], said)
        rows.append(BarRow(f"{place.number} on {place.host}", said, [(0.0, min(share, 1.0), fill, 0.8)], is_low))
    few = f"The {len(shown)} least busy of {len(least)}" if len(shown) < len(least) else ""
    keys = [("busy", SERIES[0], 0.8), (f"below {percent(IDLE)}", BAD, 0.8)]
    return bars(rows, keys, mark=IDLE, above=few)


def _least_busy(columns: Columns, plan: Plan) -> dict[Place, tuple[float, str]]:
    lowest: dict[Place, tuple[float, str]] = {}
    for study in plan.studies:
        for arm in study.arms:
            measured = columns.arms.get((study.id, arm.name))
            if measured is None or arm.kind != "ddp":
                continue
            for place, share in zip(measured.ranks.rank_places, _busy(measured).tolist(), strict=True):
                if share == share and share < lowest.get(place, (2.0, ""))[0]:  # not NaN
                    lowest[place] = share, f"{study.scaling} {arm.name}"
    return dict(sorted(lowest.items(), key=lambda one: (by_number(one[0].host), one[0].local_rank)))


def _busy(measured: ArmRounds) -> FloatArray:
    """Median utilization of each rank over the rounds, NaN if it could not be read; imported values have no rounds."""
    values = measured.of(~measured.single_sample).reading("utilization")
    known = (~np.isnan(values)).any(axis=0)
    found = np.full(len(measured.ranks), np.nan)
    found[known] = np.nanmedian(values[:, known], axis=0)
    return found
