"""Bars of arms and GPUs: parts of a step's time, spread of step times, utilization of devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.judge.devices import IDLE
from pytest_ddpscale.judge.metrics import PERCENTS, step_time_percentiles_ms
from pytest_ddpscale.judge.rounds import NO_ROUNDS, ArmRounds, merged
from pytest_ddpscale.plan.arm import Arm, ArmKind
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.report import svg_axes
from pytest_ddpscale.report.digits import number_text
from pytest_ddpscale.report.svg_axes import BAD, SERIES_COLOURS, label, line, rectangle
from pytest_ddpscale.report.text import one_line, shorten
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.columns import ArmColumns, Columns
from pytest_ddpscale.run.records import RankPlace

MOST_BARS = 36  # more would not fit on a page of paper
_WIDTH, _LEFT, _BAR_WIDTH = 480.0, 8.0, 464.0
_LONGEST_NAME = 34  # leaves space for the longest value
# The parts differ in opacity, so that they can be distinguished without colour.
_PARTS = (
    ("compute, typical rank", SERIES_COLOURS[0], 0.35),
    ("waiting for the slowest rank", SERIES_COLOURS[1], 0.95),
    ("DDP without communication", SERIES_COLOURS[2], 0.6),
    ("exposed communication", SERIES_COLOURS[3], 0.8),
    ("the rest, not measured separately", "currentColor", 0.2),
)
_SPREADS = ((50, 75, 0.9), (75, 90, 0.6), (90, 95, 0.4), (95, 99, 0.2))


@dataclass(frozen=True)
class BarRow:
    """One row: name and value as text, with the bar's segments below.

    Attributes:
        segments: from, to (shares of the width), fill, opacity.
        is_flagged: whether to emphasize the row as bad.
    """

    name: str
    value: str
    segments: Sequence[tuple[float, float, str, float]]
    is_flagged: bool = False


def _bars(
    key: str, title: str, rows: Sequence[BarRow], keys: Sequence[tuple[str, str, float]], mark: float | None = None,
    said_above: Sequence[str] = (),
) -> str:  # fmt: skip
    """All rows; empty without any.

    Args:
        keys: name, fill and opacity of each legend entry.
        mark: position of a line across all bars, as a share of the width.
        said_above: lines of text above the bars.
    """
    if not rows:
        return ""
    parts, top = [], 0.0
    for said in filter(None, said_above):
        parts.append(label(_LEFT, top + 14, said))
        top += 19
    for name, fill, opacity in keys:
        parts.append(rectangle(_LEFT, top + 3, 18, 12, fill, f' fill-opacity="{opacity}"'))
        parts.append(label(_LEFT + 26, top + 14, name))
        top += 19
    top += 6
    for row in rows:
        parts.append(label(_LEFT, top + 13, shorten(one_line(row.name), _LONGEST_NAME)))
        weight = ' font-weight="bold"' if row.is_flagged else ""
        parts.append(label(_LEFT + _BAR_WIDTH, top + 13, row.value, "end", weight))
        for start, end, fill, opacity in row.segments:
            extra = f' fill-opacity="{opacity}"'
            parts.append(rectangle(_LEFT + start * _BAR_WIDTH, top + 18, (end - start) * _BAR_WIDTH, 11, fill, extra))
        if mark is not None:
            x = _LEFT + mark * _BAR_WIDTH
            parts.append(line(x, top + 15, x, top + 32, 'stroke="currentColor" stroke-width="1.5"'))
        top += 36
    in_words = "; ".join(f"{row.name}: {row.value}" for row in rows)
    return svg_axes.svg(key, title, in_words, _WIDTH, top + 4, "".join(parts))


def where_time_goes(key: str, columns: Columns, plan: Plan) -> str:
    """A step of each study's largest arm, split by the time of the same ranks without communication.

    Each part is a difference of medians over the rounds: noise may hide it, but it is never negative.
    """
    rows = []
    for study in plan.of_launch(1).studies:
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
    return _bars(key, "Where the time of a step goes", rows, _PARTS)


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
    busy, power = (
        trained.measured.reading("utilization"),
        trained.measured.reading("energy_j") / trained.measured.seconds,
    )
    if not np.isnan(busy).all():
        said.append(f"{_median(busy):.0%} busy".replace("%", " %"))
    if not np.isnan(power).all():
        said.append(f"{_median(power):.0f} W")
    return ", ".join(said)


def _median(values: FloatArray) -> float:
    return float(np.nanmedian(values))


def step_time_spread(key: str, columns: Columns, plan: Plan) -> str:
    """Percentiles from the median up of each arm's raw steps, pooled over ranks."""
    found = []
    for study in plan.studies:
        for arm in study.arms:
            percentiles = step_time_percentiles_ms(merged(columns, study.id, arm, plan.layout))
            if percentiles:
                found.append((f"{study.id}, {arm.name}", percentiles))
    shown = sorted(sorted(found, key=_spread, reverse=True)[:MOST_BARS], key=found.index)
    longest = max((ms[PERCENTS[-1]] / ms[PERCENTS[0]] for _, ms in shown), default=1.0)
    # The scale reaches at least 10 % above the median, so that steady steps look steady.
    width = max(longest, 1.1) - 1
    rows = [
        BarRow(
            name,
            f"p50 {number_text(ms[50], 'ms')}, p95 {number_text(ms[95], 'ms')}",
            [
                ((ms[a] / ms[50] - 1) / width, (ms[b] / ms[50] - 1) / width, SERIES_COLOURS[0], opacity)
                for a, b, opacity in _SPREADS
            ],
        )
        for name, ms in shown
    ]
    keys = [(f"p{a} to p{b}", SERIES_COLOURS[0], opacity) for a, b, opacity in _SPREADS]
    few = f"The {len(shown)} of {len(found)} arms with the widest spread" if len(shown) < len(found) else ""
    ends = f"From the median to {100 * width:.0f} % above it"
    return _bars(key, "Step times", rows, keys, said_above=(ends, few))


def _spread(arm: tuple[str, Mapping[int, float]]) -> float:
    return arm[1][PERCENTS[-1]] / arm[1][PERCENTS[0]]


def activity_bars(key: str, columns: Columns, plan: Plan) -> str:
    """Median utilization of each device over the rounds of the arm in which it was least busy."""
    least = dict(_least_busy(columns, plan))
    shown = sorted(least, key=lambda place: least[place][0])[:MOST_BARS] if len(least) > MOST_BARS else list(least)
    device = "GPU" if plan.device_type == "cuda" else "CPU rank"
    rows = []
    for place in shown:
        share, arm = least[place]
        is_low = share < IDLE
        said = f"{number_text(share, 'fraction')}, {arm}"
        fill, said = (BAD, f"low: {said}") if is_low else (SERIES_COLOURS[0], said)
        rows.append(BarRow(f"{place.number} on {place.host}", said, [(0.0, min(share, 1.0), fill, 0.8)], is_low))
    few = f"The {len(shown)} least busy of {len(least)}" if len(shown) < len(least) else ""
    keys = [("busy", SERIES_COLOURS[0], 0.8), (f"below {IDLE:.0%}".replace("%", " %"), BAD, 0.8)]
    return _bars(key, f"{device} activity", rows, keys, mark=IDLE, said_above=(few,))


def _least_busy(columns: Columns, plan: Plan) -> Iterator[tuple[RankPlace, tuple[float, str]]]:
    lowest: dict[RankPlace, tuple[float, str]] = {}
    for study in plan.studies:
        for arm in study.arms:
            measured = columns.arms.get((study.id, arm.name))
            if measured is None or arm.kind != "ddp":
                continue
            busy = _busy(measured)
            for place, share in zip(measured.ranks.rank_places, busy.tolist(), strict=True):
                if share == share and share < lowest.get(place, (2.0, ""))[0]:  # not NaN
                    lowest[place] = share, f"{study.scaling} {arm.name}"
    yield from sorted(lowest.items(), key=lambda one: one[0][:2])


def _busy(measured: ArmColumns) -> FloatArray:
    """Median utilization of each rank over the rounds, NaN if it could not be read; imported values have no rounds."""
    values = measured.of(~measured.single_sample).reading("utilization")
    known = (~np.isnan(values)).any(axis=0)
    found = np.full(len(measured.ranks), np.nan)
    found[known] = np.nanmedian(values[:, known], axis=0)
    return found
