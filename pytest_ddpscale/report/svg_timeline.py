"""Timeline of one profiled step: computation, and which communication it hides."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpscale.report import svg_axes
from pytest_ddpscale.report.svg_axes import SERIES_COLOURS, AxisScale, label, line, rectangle, round_ticks
from pytest_ddpscale.run.profile_record import ArmProfile, Lane, ProfileSpan

_WIDTH, _LEFT, _RIGHT = 960.0, 120.0, 944.0
_ROW, _BAR = 34.0, 20.0
_LANES: tuple[tuple[Lane, str], ...] = (
    ("phase", "step"), ("compute", "computing"), ("all_reduce", "all-reduce"),
    ("other_collective", "other collectives"),
)  # fmt: skip
_PHASE_OPACITY = {"forward": 0.25, "backward": 0.5, "optimizer": 0.75}
# Exposed communication differs from hidden in opacity, so that it can be seen without colour.
_HIDDEN, _EXPOSED = 0.3, 1.0


def step_timeline(key: str, profile: ArmProfile) -> str:
    """The step of median duration of a profiled arm; empty if nothing was profiled."""
    if not profile.spans:
        return ""
    end_ms = max(span.begins_ms + span.lasts_ms for span in profile.spans)
    scale = AxisScale(0.0, end_ms, _LEFT, _RIGHT)
    computing = [span for span in profile.spans if span.lane == "compute"]
    parts, top = [], 4.0
    for lane, title in _LANES:
        spans = [span for span in profile.spans if span.lane == lane]
        if spans:
            parts.append(label(_LEFT - 8, top + 15, title, "end"))
            parts += [_bar(span, scale, top, computing) for span in spans]
            top += _ROW
    axis = 'stroke="currentColor" stroke-opacity="0.6"'
    parts.append(line(_LEFT, top, _RIGHT, top, axis))
    for tick in round_ticks(0.0, end_ms, 10):
        parts.append(line(scale.at(tick), top, scale.at(tick), top + 4, axis))
        parts.append(label(scale.at(tick), top + 18, f"{tick:g}", "middle"))
    parts.append(label(_RIGHT, top + 36, "ms from the start of the step", "end"))
    parts.append(label(_LEFT, top + 36, "pale: hidden by computation; full: exposed"))
    title = f"Timeline of a step: {profile.study}, {profile.arm}"
    reduced = [span for span in profile.spans if span.lane == "all_reduce"]
    said = f"{len(reduced)} all-reduces in a step of {end_ms:.4g} ms"
    return svg_axes.svg(key, title, said, _WIDTH, top + 44, "".join(parts))


def _bar(span: ProfileSpan, scale: AxisScale, top: float, computing: Sequence[ProfileSpan]) -> str:
    begin, end = span.begins_ms, span.begins_ms + span.lasts_ms
    if span.lane == "phase":
        fill = f' fill-opacity="{_PHASE_OPACITY.get(span.name, 0.2)}"'
        middle = (scale.at(begin) + scale.at(end)) / 2
        wide = scale.at(end) - scale.at(begin) > 8 * len(span.name)
        return _piece(begin, end, scale, top, "currentColor", fill) + (
            label(middle, top + 14, span.name, "middle", ' fill="var(--paper, #fff)" font-weight="bold"')
            if wide
            else ""
        )
    if span.lane == "compute":
        return _piece(begin, end, scale, top, SERIES_COLOURS[0], ' fill-opacity="0.8"')
    colour = SERIES_COLOURS[1 if span.lane == "all_reduce" else 3]
    whole = _piece(begin, end, scale, top, colour, f' fill-opacity="{_HIDDEN}"')
    exposed = (
        _piece(*gap, scale, top, colour, f' fill-opacity="{_EXPOSED}"') for gap in exposed_parts(begin, end, computing)
    )
    return whole + "".join(exposed)


def exposed_parts(begin: float, end: float, computing: Sequence[ProfileSpan]) -> list[tuple[float, float]]:
    """The parts of a time span that `computing` (ordered, disjoint) does not cover."""
    parts, at = [], begin
    for span in computing:
        if span.begins_ms >= end:
            break
        if span.begins_ms > at:
            parts.append((at, span.begins_ms))
        at = max(at, span.begins_ms + span.lasts_ms)
    return [*parts, (at, end)] if at < end else parts


def _piece(begin: float, end: float, scale: AxisScale, top: float, fill: str, extra: str) -> str:
    x = scale.at(begin)
    return rectangle(x, top, max(scale.at(end) - x, 0.4), _BAR, fill, extra)
