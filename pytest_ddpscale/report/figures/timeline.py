"""Timeline of one profiled step: computation, and which communication it hides."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpscale.report.figures.drawing import INK, PAPER, SERIES, SMALL, WIDE, Drawing, Sheet, drawable
from pytest_ddpscale.run.profile_record import ArmProfile, Lane, ProfileSpan

_LEFT, _BELOW, _ROW = 1.3, 0.5, 0.34  # inches
_LANES: tuple[tuple[Lane, str], ...] = (
    ("phase", "step"), ("compute", "computing"), ("all_reduce", "all-reduce"),
    ("other_collective", "other collectives"),
)  # fmt: skip
_PHASE_OPACITY = {"forward": 0.25, "backward": 0.5, "optimizer": 0.75}
# Exposed communication differs from hidden in opacity, so that it can be seen without colour.
_HIDDEN, _EXPOSED = 0.3, 1.0
_COMPUTING = 0.8
_Piece = tuple[float, float, str, float]  # begin and end in ms, colour, opacity


def step_timeline(profile: ArmProfile) -> Drawing | None:
    """The step of median duration of a profiled arm; None if nothing was profiled."""
    if not profile.spans:
        return None
    end_ms = max(span.begins_ms + span.lasts_ms for span in profile.spans)
    lanes = [(title, spans) for lane, title in _LANES if (spans := [one for one in profile.spans if one.lane == lane])]
    computing = [span for span in profile.spans if span.lane == "compute"]

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(_LEFT, _BELOW, WIDE - 0.2, sheet.height)
        axes.set(xlim=(0, end_ms), ylim=(len(lanes), 0), yticks=[])
        axes.spines["left"].set_visible(False)
        for row, (title, spans) in enumerate(lanes):
            sheet.text(_LEFT - 0.1, sheet.height - (row + 0.5) * _ROW, title, ha="right", va="center")
            pieces = [piece for span in spans for piece in pieces_of(span, computing)]
            for colour, opacity in dict.fromkeys(piece[2:] for piece in pieces):
                alike = [(begin, end - begin) for begin, end, *look in pieces if tuple(look) == (colour, opacity)]
                axes.broken_barh(alike, (row + 0.2, 0.6), facecolors=colour, alpha=opacity, linewidth=0)
            for span in spans:
                if span.lane == "phase" and span.lasts_ms > 0.009 * end_ms * len(span.name):
                    axes.text(span.begins_ms + span.lasts_ms / 2, row + 0.5, drawable(span.name), ha="center",
                              va="center", fontsize=SMALL, fontweight="bold", color=PAPER)  # fmt: skip
        sheet.text(WIDE - 0.2, 0.06, "ms from the start of the step", ha="right")
        sheet.text(_LEFT, 0.06, "pale: hidden by computation; full: exposed")

    reduced = sum(span.lane == "all_reduce" for span in profile.spans)
    said = f"{reduced} all-reduces in a step of {end_ms:.4g} ms"
    return Drawing(said, WIDE, len(lanes) * _ROW + _BELOW, paint)


def pieces_of(span: ProfileSpan, computing: Sequence[ProfileSpan]) -> list[_Piece]:
    """How a span is painted: whole, and of communication once more what computation does not cover."""
    begin, end = span.begins_ms, span.begins_ms + span.lasts_ms
    if span.lane == "phase":
        return [(begin, end, INK, _PHASE_OPACITY.get(span.name, 0.2))]
    if span.lane == "compute":
        return [(begin, end, SERIES[0], _COMPUTING)]
    colour = SERIES[1 if span.lane == "all_reduce" else 3]
    exposed = [(*gap, colour, _EXPOSED) for gap in exposed_parts(begin, end, computing)]
    return [(begin, end, colour, _HIDDEN), *exposed]


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
