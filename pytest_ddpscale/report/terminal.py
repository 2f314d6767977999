"""The summary a person reads at the end of a run, as lines with a style each."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.report import text
from pytest_ddpscale.report.certainty_text import uniform_loss_text
from pytest_ddpscale.report.launches_text import interval_mark, launches_sentence
from pytest_ddpscale.report.text import Style
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
    for said in (*_lowered(judgement), *_waived(judgement)):
        lines += [(line, "warned") for line in _wrapped(said, columns, "", "  ")]
    if judgement.simulated:
        lines.append((WATERMARK, "undecided"))
    is_red = judgement.outcome == "incomplete" and judgement.blockers  # else it was allowed for
    lines.append((text.outcome_text(judgement), "failed" if is_red else _OUTCOME_STYLES[judgement.outcome]))
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
        yield f"lowered by the site: {hidden} more, see report.md"


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
