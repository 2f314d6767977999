"""The summary a person reads at the end of a run, as lines with a style each."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.report import text
from pytest_ddpscale.report.cause import causes, headline, warning_text, warnings
from pytest_ddpscale.report.certainty_text import uniform_loss_text
from pytest_ddpscale.report.launches_text import interval_mark, launches_sentence
from pytest_ddpscale.report.text import Style
from pytest_ddpscale.report.unmet import counts_text
from pytest_ddpscale.results.run_json import WATERMARK
from pytest_ddpscale.results.verdicts import Judgement, Verdict

Line = tuple[str, Style]

_GAP = "  "
_INDENT = "    "
_LEAST_COLUMNS = 40
_LEAST_NAME = 16
_MOST_LINES_OF_A_REASON = 4
_MOST_CULPRITS = 8
_MOST_LOWERED = 5
_MOST_CAUSES = 3
_MOST_ROWS = 3
_MOST_LINES = 20  # without -v


def brief_lines(judgement: Judgement, columns: int) -> list[tuple[str, str]]:
    """The outcome with its cause, other causes, and the worst of what keeps the machine from being accepted.

    At most 20 lines on the screen, as pairs like those of `table_lines`, which has all. Only the first line, the
    outcome, may be longer than so many characters: it stays one line so that it can be searched for.
    """
    columns = max(columns, _LEAST_COLUMNS)
    lines: list[Line] = [(headline(judgement), _outcome_style(judgement))]
    others = [] if judgement.accepts else [text.one_line(cause.sentence) for cause in causes(judgement)[1:]]
    for said in others[:_MOST_CAUSES]:
        lines += [(line, "") for line in _wrapped(f"also: {said}", columns, "  ", "    ")[:2]]
    if len(others) > _MOST_CAUSES:
        lines.append((f"  also: {len(others) - _MOST_CAUSES} more", ""))
    blocking = sorted(
        filter(judgement.is_blocked_by, judgement.verdicts),
        key=lambda one: (one.outcome != "failed", one.margin or 0.0),
    )
    shown = blocking[:_MOST_ROWS]
    lines += _brief_table(shown, columns) if shown else []
    if not judgement.accepts:
        counted = f"{counts_text(judgement)} (all: -v)"
        lines += [(line, "") for line in _wrapped(counted, columns, "", "  ")]
    watermark: list[Line] = [(WATERMARK, "undecided")] if judgement.simulated else []
    room = _MOST_LINES - len(lines) - len(lines[0][0]) // columns - len(watermark)
    return [*lines, *_as_fit(_remarks(judgement), room, columns), *watermark]


def _remarks(judgement: Judgement) -> Iterator[Line]:
    """What changes the meaning of an outcome, the weightiest first."""
    yield from ((said, "warned") for said in (*_warned(judgement), *_waived(judgement), *_lowered(judgement)))
    if uniform_loss_text(judgement):
        yield uniform_loss_text(judgement), ""
    own = (note for verdict in judgement.verdicts for note in verdict.notes)
    for note in dict.fromkeys((*judgement.notes, *_shared_notes(judgement.verdicts), *own)):
        yield f"note: {text.one_line(note)}", ""


def _as_fit(remarks: Iterable[Line], room: int, columns: int) -> list[Line]:
    """As many as fit into so many lines, with one that counts the others."""
    lines: list[Line] = []
    waiting = [[(line, style) for line in _wrapped(said, columns, "", "  ")] for said, style in remarks]
    while waiting and len(lines) + len(waiting[0]) + (len(waiting) > 1) <= room:
        lines += waiting.pop(0)
    return [*lines, (f"{len(waiting)} more remarks (-v, or report.html)", "")] if waiting else lines


def _brief_table(verdicts: Sequence[Verdict], columns: int) -> Iterator[Line]:
    """Value, the limit that decides, bound and verdict at any width; names give way, and stay different."""
    header = ("value", "limit", "bound", "verdict")
    cells = [(text.point_text(v), _limit(v), text.bound_text(v), text.verdict_word(v)) for v in verdicts]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    names = [f"  {text.short_name(verdict)}" for verdict in verdicts]
    name_width = max(min(max(map(len, names)), columns - sum(widths) - len(_GAP) * len(widths)), len("requirement"))
    rows = [_Row(name, cell, verdict) for name, cell, verdict in zip(names, cells, verdicts, strict=True)]
    alike, metric = _alike_when_short(rows, name_width), None
    yield _joined("requirement", header, widths, name_width), "header"
    for row in sorted(rows, key=lambda row: [v.metric for v in verdicts].index(row.verdict.metric)):
        if row.verdict.metric != metric:
            metric = row.verdict.metric
            yield metric, ""
        if row.name in alike:
            yield text.shorten(row.name, columns), ""
        name = "" if row.name in alike else row.name
        yield _joined(name, row.cells, widths, name_width), text.verdict_style(row.verdict)


def _limit(verdict: Verdict) -> str:
    return text.limits_text(verdict).replace("at least", "≥").replace("at most", "≤")


def _outcome_style(judgement: Judgement) -> Style:
    is_red = judgement.outcome == "incomplete" and judgement.blockers  # else it was allowed for
    return "failed" if is_red else _OUTCOME_STYLES[judgement.outcome]


@dataclass(frozen=True)
class _Row:
    name: str
    cells: tuple[str, str, str, str]  # as in _HEADER
    verdict: Verdict


_OUTCOME_STYLES: dict[str, Style] = {
    "accepted": "passed",
    "accepted_with_waivers": "warned",
    "rejected": "failed",
    "incomplete": "undecided",
    "partial": "undecided",
}
_HEADER = ("value (limits)", "bound", "margin", "verdict")


def table_lines(judgement: Judgement, columns: int) -> list[tuple[str, str]]:
    """The judgement as a table so many characters wide, with what did not pass explained under its row.

    Only the last line, the outcome, may be longer: it stays one line so that it can be searched for.

    Returns:
        Pairs of a line and its style: ``header``, ``passed``, ``failed``, ``warned``, ``undecided`` or none.
    """
    columns = max(columns, _LEAST_COLUMNS)
    lines: list[Line] = []
    if judgement.verdicts:
        lines += _table(judgement.verdicts, columns)
        lines.append(("", ""))
    if any(map(text.is_provisional, judgement.verdicts)):
        legend = "* provisional bound: no published figure stands behind it"
        lines += [(line, "") for line in _wrapped(legend, columns, "", "  ")]
    about_launches = launches_sentence(judgement.verdicts)
    if about_launches:
        lines += [(line, "") for line in _wrapped(about_launches, columns, "", "  ")]
    lines += [(line, "") for said in _limits_legend(judgement.verdicts) for line in _wrapped(said, columns, "", "  ")]
    shared = [f"{note} ({count} requirements)" for note, count in _shared_notes(judgement.verdicts).items()]
    for note in (*shared, *judgement.notes):
        lines += [(line, "") for line in _wrapped(f"note: {text.one_line(note)}", columns, "", "  ")]
    lines += [(line, "") for line in _wrapped(uniform_loss_text(judgement), columns, "", "  ")]
    for said in (*_warned(judgement), *_lowered(judgement), *_waived(judgement)):
        lines += [(line, "warned") for line in _wrapped(said, columns, "", "  ")]
    if judgement.simulated:
        lines.append((WATERMARK, "undecided"))
    lines += [(line, "") for line in _wrapped(counts_text(judgement), columns, "", "  ")]
    lines.append((headline(judgement), _outcome_style(judgement)))
    return [(line, style) for line, style in lines]


def _limits_legend(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """What the signs of `text.value_text` mean, of those that are there."""
    levels = {f"{one.confidence:.4g}" for one in verdicts if text.limits_text(one) != text.ABSENT}
    if levels:
        yield f"(≥ …) at least, (≤ …) at most, (… … …) between: with a confidence of {', '.join(sorted(levels))}"


def _lowered(judgement: Judgement) -> Iterator[str]:
    """What the site asks less of than the thresholds that it extends."""
    for one in judgement.lowered[:_MOST_LOWERED]:
        was, now = text.lowered_bounds(one)
        yield f"lowered by the site: {text.one_line(one.requirement)}: {was} → {now}"
    hidden = len(judgement.lowered) - _MOST_LOWERED
    if hidden > 0:
        yield f"lowered by the site: {hidden} more, see report.html"


def _warned(judgement: Judgement) -> Iterator[str]:
    """Who certainly misses a bound that only warns, once each; the headline of what is accepted has the first."""
    found = warnings(judgement)
    told = headline(judgement)
    for one in found[:_MOST_CAUSES]:
        if one.sentence not in told:
            yield warning_text(one)


def _waived(judgement: Judgement) -> Iterator[str]:
    for verdict in judgement.waived:
        measured = f"{text.point_text(verdict)}, bound {text.bound_text(verdict)}"
        yield f"{text.one_line(verdict.id)} ({measured}) is {text.waiver_text(verdict)}"


def _table(verdicts: Sequence[Verdict], columns: int) -> Iterator[Line]:
    rows = _rows(verdicts)
    widths, name_width = _layout(rows, columns)
    grouped = any(len(row.name) > name_width for row in rows)
    if grouped:
        # The metric moves to a line of its own, which leaves the row for what differs.
        first = {verdict.metric: i for i, verdict in reversed(list(enumerate(verdicts)))}
        rows.sort(key=lambda row: first[row.verdict.metric])
        rows = [replace(row, name=f"  {text.short_name(row.verdict)}") for row in rows]
    name_width = min(name_width, max(len("requirement"), *(len(row.name) for row in rows)))
    yield _joined("requirement", _HEADER, widths, name_width), "header"
    metric = None
    shared = _shared_notes(verdicts)
    alike = _alike_when_short(rows, name_width)
    for row in rows:
        if grouped and row.verdict.metric != metric:
            metric = row.verdict.metric
            yield metric, ""
        if row.name in alike:
            yield text.shorten(row.name, columns), ""
        name = "" if row.name in alike else row.name
        yield _joined(name, row.cells, widths, name_width), text.verdict_style(row.verdict)
        yield from _explanation(row.verdict, columns, shared)


def _alike_when_short(rows: Sequence[_Row], name_width: int) -> set[str]:
    """Names that could not be told from another one's in the width there is."""
    short: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        short.setdefault((row.verdict.metric, text.shorten(row.name, name_width)), set()).add(row.name)
    return {name for names in short.values() if len(names) > 1 for name in names}


def _rows(verdicts: Sequence[Verdict]) -> list[_Row]:
    # A mark on some bounds takes a column of every bound, or they would not line up.
    unmarked = " " if any(map(text.is_provisional, verdicts)) else ""
    unmarked_interval = " " if any(map(interval_mark, verdicts)) else ""
    return [
        _Row(
            text.one_line(verdict.id),
            (
                text.value_text(verdict) + (interval_mark(verdict) or unmarked_interval),
                text.bound_text(verdict) + ("*" if text.is_provisional(verdict) else unmarked),
                text.margin_text(verdict),
                text.verdict_word(verdict),
            ),
            verdict,
        )
        for verdict in verdicts
    ]


def _layout(rows: Sequence[_Row], columns: int) -> tuple[list[int], int]:
    """Widths of the columns after the name, 0 for one left out, and the width that remains for the name."""
    widths = [max(len(heading), *(len(row.cells[i]) for row in rows)) for i, heading in enumerate(_HEADER)]
    for dispensable in (2, 1, 0):  # margin, bound, value; the verdict stays
        if _remaining(widths, columns) >= _LEAST_NAME:
            break
        widths[dispensable] = 0
    return widths, max(_remaining(widths, columns), _LEAST_NAME)


def _remaining(widths: Sequence[int], columns: int) -> int:
    return columns - sum(width + len(_GAP) for width in widths if width)


def _joined(name: str, cells: Sequence[str], widths: Sequence[int], name_width: int) -> str:
    parts = [text.shorten(name, name_width).ljust(name_width)]
    *numbers, word = zip(cells, widths, strict=True)
    parts += [cell.rjust(width) for cell, width in numbers if width]
    parts.append(word[0])
    return _GAP.join(parts).rstrip()


def _shared_notes(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Notes of several requirements, and of how many: said once below the table, not under every row."""
    counts = Counter(note for verdict in verdicts for note in verdict.notes)
    return {note: count for note, count in counts.items() if count > 1}


def _explanation(verdict: Verdict, columns: int, shared: Collection[str]) -> Iterator[Line]:
    if not verdict.passed:
        if text.check_text(verdict):
            yield from _indented(text.check_text(verdict), columns)
        yield from _indented(text.reason_text(verdict), columns)
        for culprit in verdict.culprits[:_MOST_CULPRITS]:
            yield from _indented(text.culprit_text(culprit), columns)
        hidden = len(verdict.culprits) - _MOST_CULPRITS
        if hidden > 0:
            yield from _indented(f"and {hidden} more: see verdicts.json", columns)
    if verdict.compared is not None:
        yield from _indented(text.compared_text(verdict.compared, with_source=False), columns)
    for note in verdict.notes:
        if note not in shared:
            yield from _indented(f"note: {text.one_line(note)}", columns)


def _indented(content: str, columns: int) -> Iterator[Line]:
    for line in _wrapped(content, columns, _INDENT, _INDENT + "  "):
        yield line, ""


_LONGEST_PATH = 300


def _wrapped(content: str, columns: int, first: str, following: str) -> list[str]:
    return textwrap.wrap(
        content,
        columns,
        initial_indent=first,
        subsequent_indent=following,
        max_lines=_MOST_LINES_OF_A_REASON,
        placeholder=" …",
        break_on_hyphens=False,
        # A path is there to be copied; what is longer is none.
        break_long_words=any(len(word) > _LONGEST_PATH for word in content.split()),
    )
