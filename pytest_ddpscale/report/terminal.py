"""The summary at the end of a run, as lines with a style each: for people at a terminal of 40 columns or more."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from pytest_ddpscale.report import digits
from pytest_ddpscale.report.causes import Cause, causes, counts_text, headline, warning_text, warnings
from pytest_ddpscale.report.machine import tested_text, took_text
from pytest_ddpscale.report.next_steps import next_steps
from pytest_ddpscale.report.sentences import TOO_NARROW, interval_mark, uniform_loss_text
from pytest_ddpscale.report.words.outcome import OUTCOMES, imported, notes
from pytest_ddpscale.report.words.verdicts import (
    Style,
    despite_text,
    is_provisional,
    remarks,
    short_name,
    verdict_style,
    verdict_word,
    waiver_text,
    why_text,
)
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.util.listing import count_text, first_few, shorten
from pytest_ddpscale.util.printable import one_line

Line = tuple[str, Style]

_LEAST_COLUMNS = 40
_MOST_LINES_OF_A_REASON = 4
_OTHER_CAUSES, _OTHER_CAUSES_IN_FULL = 2, 10  # the latter with -v
_MOST_WARNINGS = _MOST_ROWS = 3
# Codes of notes that only the page and -v tell.
_ON_THE_PAGE = ("low-utilization", "judged-from", "host-bound", "power-unknown")
_MOST_REMARKS, _MOST_OF_AN_ACCEPTANCE = 2, 10
_MOST_QUIET_LINES = 4  # with -q
_LEGEND = "limit: at least (≥), at most (≤) or between (…) with a confidence of"
_LONGEST_PATH = 300
_GAP = "  "
_ENOUGH = 12  # width of a name within its metric, for which limits give way
_HEADER: tuple[str, ...] = ("value", "limit ", "bound ", "verdict")


def brief_lines(judgement: Judgement, columns: int, run: RunRecord | None = None) -> list[Line]:
    """The outcome with its cause, what to do, other causes, and the worst blocking requirements.

    About 20 lines on the screen, as pairs like those of `table_lines`, which has all requirements. The first line
    begins with the outcome's word, and only commands are wider than `columns`: they stay one line, to be copied.
    Without `run`, the run's run.json, nothing is said about measuring again.
    """
    columns = max(columns, _LEAST_COLUMNS)
    lines = _outcome(judgement, columns, run)
    valued = imported(judgement, run)
    lines += _cause_lines(judgement, columns, run, 0 if valued else _OTHER_CAUSES)
    blocking = filter(judgement.is_blocked_by, judgement.verdicts)
    shown = (valued or sorted(blocking, key=lambda verdict: (verdict.outcome != "failed", verdict.margin or 0.0)))[
        :_MOST_ROWS
    ]
    lines += _table(shown, columns, lambda verdict: _plain([despite_text(verdict)], columns, indent="    ")[:2])
    lines += _plain(_signs(shown), columns)
    most = _MOST_OF_AN_ACCEPTANCE if judgement.accepts else _MOST_REMARKS
    if not judgement.accepts:
        lines += _plain([f"{counts_text(judgement)} (all: -v)"], columns)
    return [*lines, *_first_remarks(judgement, columns, most), *_watermark(judgement)]


def quiet_lines(judgement: Judgement, columns: int, run: RunRecord | None = None) -> list[Line]:
    """The outcome and, in 4 lines with it, what to do or a remark. pytest adds its counts and the report's path."""
    columns = max(columns, _LEAST_COLUMNS)
    outcome = _outcome(judgement, columns, run)
    lines = [*outcome, *_cause_lines(judgement, columns, run, 0), *_first_remarks(judgement, columns, 1)]
    return [*lines[: max(len(outcome) + 1, _MOST_QUIET_LINES - judgement.simulated)], *_watermark(judgement)]


def _cause_lines(judgement: Judgement, columns: int, run: RunRecord | None, others: int) -> list[Line]:
    """Next steps of the first cause, which the headline tells, and so many other causes; with 0, the first step alone.

    Only commands may be longer than `columns`: they stay one line, to be copied.
    """
    if judgement.accepts or not (ranked := causes(judgement)):
        return []
    steps = next_steps(ranked[0], judgement, run)[: None if others else 1]
    lines, label = list[str](), _label(ranked[0])
    for step in steps:
        lines += _wrapped(f"{label}{step.action}", columns, "  ", "    ", 2)
        lines += [f"    {step.command}"] * bool(step.command)
        label = ""
    for cause in ranked[1 : others + 1]:
        lines += _wrapped(f"also: {one_line(cause.sentence)}", columns, "  ", "    ", 2)
        lines += _wrapped(f"{_label(cause)}{next_steps(cause, judgement, run)[0].action}", columns, "    ", "", 1)
    more = len(ranked) - 1 - others
    lines += [f"  also: {count_text(more, 'more cause')}, see report.html"] * bool(others and more > 0)
    return [(line, "") for line in lines]


def _label(cause: Cause) -> str:
    return f"{cause.category} {cause.id}: "


def table_lines(judgement: Judgement, columns: int, run: RunRecord | None = None) -> list[Line]:
    """The judgement as a table `columns` characters wide, with an explanation under each row that did not pass.

    The outcome comes after it, with its causes; its first line begins with its word. Only commands are wider.

    Returns:
        Pairs of a line and its style: ``header``, ``passed``, ``failed``, ``warned``, ``undecided`` or none.
    """
    columns, verdicts = max(columns, _LEAST_COLUMNS), judgement.verdicts

    def explained(verdict: Verdict) -> list[Line]:
        own = [remark for remark in remarks(verdict) if not remark.startswith("note: ")]  # notes follow the table
        return _plain((why_text(verdict), *own), columns, indent="    ")

    lines: list[Line] = []
    if verdicts:
        legend = f"{_LEGEND} {', '.join(sorted({f'{one.confidence:.4g}' for one in verdicts}))}"
        lines = [*_table(verdicts, columns, explained), ("", ""), *_plain([*_signs(verdicts), legend], columns)]
    for text, style in _remarks(judgement):
        lines += _plain([text], columns, style)
    if verdicts:
        lines += _plain([counts_text(judgement)], columns)
    lines += [*_watermark(judgement), *_outcome(judgement, columns, run)]
    return [*lines, *_cause_lines(judgement, columns, run, _OTHER_CAUSES_IN_FULL)]


def tested_line(judgement: Judgement, run: RunRecord | None) -> str:
    """``tested: 8 of 8 nodes, 64 of 64 GPUs, 28 of 28 node pairs · 14.6 min, 15.6 GPU-hours``, as far as known."""
    coverage = judgement.coverage
    tested = f"tested: {tested_text(coverage)}" if coverage else ""
    return " · ".join(filter(None, (tested, took_text(run, coverage) if run else "")))


def _table(verdicts: Sequence[Verdict], columns: int, explained: Callable[[Verdict], Iterable[Line]]) -> list[Line]:
    """Rows of requirements by metric, each followed by the lines that explain it.

    If space is short, limits give way; a name that does not fit stands on a line of its own, so that no two names look
    alike.
    """
    if not verdicts:
        return []
    names = [f"{_GAP}{short_name(verdict)}" for verdict in verdicts]
    least = min(_ENOUGH, max(map(len, names)))
    for dropped in (0, 1):
        rows = [(value, *others[dropped:]) for value, *others in (_HEADER, *map(_cells, verdicts))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        room = columns - sum(width + len(_GAP) for width in widths)
        if room >= least:
            break
    width = max((len(name) for name in ("requirement", *names) if len(name) <= room), default=0)

    def joined(name: str, cells: Sequence[str]) -> str:
        numbers = [cell.rjust(width) for cell, width in zip(cells[:-1], widths, strict=False)]
        line = _GAP.join([(name if len(name) <= width else "").ljust(width), *numbers, cells[-1]]).rstrip()
        return shorten(line if width else line.lstrip(), columns)

    lines: list[Line] = [(joined("requirement", rows[0]), "header")]
    for metric in dict.fromkeys(verdict.metric for verdict in verdicts):
        lines.append((shorten(metric, columns), ""))
        for name, cells, verdict in zip(names, rows[1:], verdicts, strict=True):
            if verdict.metric == metric:
                lines += [(shorten(name, columns), "")] * (len(name) > width)
                lines += [(joined(name, cells), verdict_style(verdict)), *explained(verdict)]
    return lines


def _cells(verdict: Verdict) -> tuple[str, ...]:
    """Of `_HEADER`: limit and bound without the unit that the value has, and with a mark or a space after each."""
    limit = digits.limits_text(verdict).replace("at least", "≥").replace("at most", "≤")
    bound, unit = digits.bound_text(verdict), digits.suffix(verdict.unit) * (verdict.value is not None)
    limit = limit.removesuffix(unit) + (interval_mark(verdict) or " ")
    bound = bound.removesuffix(unit) + ("*" if is_provisional(verdict) else " ")
    return digits.point_text(verdict), limit, bound, verdict_word(verdict)


def _outcome(judgement: Judgement, columns: int, run: RunRecord | None) -> list[Line]:
    """``REJECTED: …`` in as many lines as it needs, which nothing else is indented like; variables that qualify it."""
    # Without blockers, incomplete was allowed.
    is_red = judgement.outcome == "incomplete" and judgement.blockers and not judgement.rehearsed
    style = "failed" if is_red else OUTCOMES[judgement.outcome][0]
    following = " " * len("REJECTED: ")
    lines: list[Line] = [
        (line, style) for line in _wrapped(headline(judgement, run), columns, "", following, most=None)
    ]
    return lines + _plain(map(one_line, judgement.notes_of("variable")), columns)


def _watermark(judgement: Judgement) -> list[Line]:
    return [(WATERMARK, "undecided")] * judgement.simulated


def _signs(verdicts: Sequence[Verdict]) -> list[str]:
    """What the signs in these rows mean."""
    provisional = ["* provisional bound: no published figure stands behind it"] * any(map(is_provisional, verdicts))
    return provisional + [TOO_NARROW] * any(map(interval_mark, verdicts))


def _remarks(judgement: Judgement, *, is_brief: bool = False) -> Iterator[Line]:
    """Remarks that qualify the outcome, the most important first; in brief without those that the page tells."""
    headline_text = headline(judgement)
    for warning in warnings(judgement)[:_MOST_WARNINGS]:
        if warning.sentence not in headline_text:
            yield warning_text(warning), "warned"
    yield from ((one_line(f"{verdict.id}: {waiver_text(verdict)}"), "warned") for verdict in judgement.waived)
    if (loss := uniform_loss_text(judgement)) and (judgement.accepts or not is_brief):
        yield loss, ""
    hidden = _ON_THE_PAGE * is_brief
    by_note: dict[str, list[str]] = {
        note: [] for note in (*judgement.notes_of("unseen-loss"), *notes(judgement, hidden))
    }
    for verdict in filter(judgement.is_blocked_by, judgement.verdicts) if is_brief else judgement.verdicts:
        for note in dict.fromkeys(verdict.notes):
            by_note.setdefault(note, []).append(verdict.id)
    for note, of in by_note.items():
        yield f"note: {one_line(': '.join(filter(None, (first_few(of, 2), note))))}", ""


def _first_remarks(judgement: Judgement, columns: int, most: int) -> Iterator[Line]:
    """So many remarks, and a line that counts the others."""
    remarks = [*_remarks(judgement, is_brief=True)]
    for text, style in remarks[:most]:
        yield from _plain([text], columns, style)
    if remarks[most:]:
        yield f"{count_text(len(remarks) - most, 'more remark')} (-v, or report.html)", ""


def _plain(texts: Iterable[str], columns: int, style: Style = "", indent: str = "") -> list[Line]:
    return [(line, style) for text in texts for line in _wrapped(text, columns, indent, f"{indent}  ")]


def _wrapped(
    content: str, columns: int, first: str, following: str, most: int | None = _MOST_LINES_OF_A_REASON
) -> list[str]:
    return textwrap.wrap(
        content,
        columns,
        initial_indent=first,
        subsequent_indent=following,
        max_lines=most,
        placeholder=" …",
        break_on_hyphens=False,
        # Paths stay whole, to be copied; longer words are not paths.
        break_long_words=any(len(word) > (_LONGEST_PATH if "/" in word else columns - 4) for word in content.split()),
    )
