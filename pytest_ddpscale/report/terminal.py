"""The summary at the end of a run, as lines with a style each: for people at a terminal of 40 columns or more."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from pytest_ddpscale.report import digits, text
from pytest_ddpscale.report.causes import Cause, causes, counts_text, headline, warning_text, warnings
from pytest_ddpscale.report.machine import tested_text, took_text
from pytest_ddpscale.report.next_steps import next_steps
from pytest_ddpscale.report.sentences import TOO_NARROW, interval_mark, uniform_loss_text
from pytest_ddpscale.report.text import Style
from pytest_ddpscale.report.words.reasons import said as said_of
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.verdicts import Judgement, NextStep, Verdict
from pytest_ddpscale.util.listing import first_few

Line = tuple[str, Style]

_LEAST_COLUMNS = 40
_MOST_LINES_OF_A_REASON = 4
_MOST_CAUSE_LINES = 8  # on the screen, without -v
_MOST_LOWERED = 5
_MOST_WARNINGS = 3
_MOST_ROWS = 3
# Codes of notes that only the page and -v tell.
_ON_THE_PAGE = ("low-utilization", "judged-from", "host-bound", "power-unknown")
_MOST_LINES = 20  # without -v
_MOST_QUIET_LINES = 4  # with -q; pytest adds its marks and its counts, and the path of the report follows
_LONGEST_PATH = 300
_GAP = "  "
_HEADER: tuple[str, ...] = ("value", "limit", "bound", "verdict")
_ENOUGH = 25  # width of a name within its metric, for which the far end of intervals gives way
_OUTCOME_STYLES: dict[str, Style] = {
    "accepted": "passed",
    "accepted_with_waivers": "warned",
    "rejected": "failed",
    "incomplete": "undecided",
    "partial": "undecided",
}


def brief_lines(judgement: Judgement, columns: int, run: RunRecord | None = None) -> list[Line]:
    """The outcome with its cause, what to do, other causes, and the worst blocking requirements.

    At most 20 lines on the screen, as pairs like those of `table_lines`, which has all requirements. The first line
    begins with the outcome's word, and only commands are wider than `columns`: they stay one line, to be copied.
    Without `run`, the run's run.json, nothing is said about measuring again.
    """
    columns = max(columns, _LEAST_COLUMNS)
    lines = [*_outcome(judgement, columns), *_plain(map(text.one_line, judgement.notes_of("variable")), columns)]
    lines += [(line, "") for line in cause_lines(judgement, columns, run, _MOST_CAUSE_LINES)]
    blocking = filter(judgement.is_blocked_by, judgement.verdicts)
    shown = sorted(blocking, key=lambda one: (one.outcome != "failed", one.margin or 0.0))[:_MOST_ROWS]
    if shown:
        lines += _table(shown, columns, lambda one: [*_indented(text.despite_text(one), columns)][:2])
        lines += _plain(_signs(shown), columns)
    if not judgement.accepts:
        lines += _plain([f"{counts_text(judgement)} (all: -v)"], columns)
    return [*lines, *_as_fit(judgement, _MOST_LINES, lines, columns)]


def quiet_lines(judgement: Judgement, columns: int, run: RunRecord | None = None) -> list[Line]:
    """The outcome, and what fits into 4 lines: what to do or, if it accepts, remarks. pytest adds its own counts."""
    columns = max(columns, _LEAST_COLUMNS)
    lines, watermark = _outcome(judgement, columns), _watermark(judgement)
    if judgement.accepts:
        return [*lines, *_as_fit(judgement, _MOST_QUIET_LINES, lines, columns)]
    for cause in causes(judgement)[:1]:
        step = next_steps(cause, judgement, run)[0]
        said = _wrapped(f"{_label(cause)}{step.action}", columns, "  ", "", most=1)
        said += [f"    {step.command}"] if step.command else []
        fits = 1 + screen_lines(said[1:], columns) <= _MOST_QUIET_LINES - len(lines) - len(watermark)
        lines += [(line, "") for line in (said if fits else said[:1])]
    return [*lines, *watermark]


def cause_lines(judgement: Judgement, columns: int, run: RunRecord | None, most: int) -> list[str]:
    """Next steps of the first cause, which the headline tells, and the other causes, in at most so many lines.

    Only commands may be longer than `columns`: they stay one line, so that they can be copied.
    """
    if judgement.accepts or not (found := causes(judgement)):
        return []
    lines = list(_steps(next_steps(found[0], judgement, run), _label(found[0]), columns))
    for number, cause in enumerate(found[1:], 1):
        own = _wrapped(f"also: {text.one_line(cause.sentence)}", columns, "  ", "    ", 2)
        own += _wrapped(f"{_label(cause)}{next_steps(cause, judgement, run)[0].action}", columns, "    ", "", 1)
        more = len(found) - number
        if screen_lines(lines, columns) + len(own) + (more > 1) > most:
            return [*lines, f"  also: {text.count_text(more, 'more cause')}, see report.html"]
        lines += own
    return lines


def _steps(steps: Sequence[NextStep], label: str, columns: int) -> Iterator[str]:
    """Each action with its command, on a line of its own if both do not fit into one."""
    for step in steps:
        said, label = f"  {label}{step.action}", ""
        if step.command and len(said) + len(step.command) + 2 <= columns:
            yield f"{said}: {step.command}"
            continue
        yield from _wrapped(said, columns, "", "    ", 2)
        if step.command:
            yield f"    {step.command}"


def _label(cause: Cause) -> str:
    return f"{cause.category} {cause.id}: "


def screen_lines(lines: Sequence[str], columns: int) -> int:
    """How many lines of a screen they take."""
    return sum(max(1, -(-len(line) // columns)) for line in lines)


def table_lines(judgement: Judgement, columns: int, run: RunRecord | None = None) -> list[Line]:
    """The judgement as a table `columns` characters wide, with an explanation under each row that did not pass.

    The outcome comes after it, with its causes; its first line begins with its word. Only commands are wider.

    Returns:
        Pairs of a line and its style: ``header``, ``passed``, ``failed``, ``warned``, ``undecided`` or none.
    """
    columns = max(columns, _LEAST_COLUMNS)
    verdicts, shared = (
        judgement.verdicts,
        {text.one_line(note): at for note, at in _notes(judgement.verdicts).items() if len(at) > 1},
    )

    def explained(verdict: Verdict) -> Iterator[Line]:
        own = [one for one in text.remarks(verdict) if one.removeprefix("note: ") not in shared]
        why = text.spread_text(verdict) if verdict.passed else text.reason_text(verdict)
        return chain.from_iterable(_indented(one, columns) for one in (why, *own))

    lines = _table(verdicts, columns, explained) if verdicts else []
    levels = {f"{one.confidence:.4g}" for one in verdicts if digits.limits_text(one) != digits.ABSENT}
    legend = f"limit: at least (≥), at most (≤) or between (…) with a confidence of {', '.join(sorted(levels))}"
    told = [*_signs(verdicts), legend if levels else ""]
    lines += [("", "")] if verdicts else []
    lines += [*_plain(filter(None, told), columns)]
    for said, style in _remarks(judgement, shared):
        lines += _plain([said], columns, style)
    counted = [counts_text(judgement)] if verdicts else []
    lines += [*_plain([*_changed(judgement), *counted], columns), *_watermark(judgement), *_outcome(judgement, columns)]
    return [*lines, *((line, "") for line in cause_lines(judgement, columns, run, _MOST_LINES))]


def tested_line(judgement: Judgement, run: RunRecord | None) -> str:
    """``tested: 8 of 8 nodes, 64 of 64 GPUs, 28 of 28 node pairs · 14.6 min, 15.6 GPU-hours``, as far as known."""
    coverage, took = judgement.coverage, took_text(run, judgement.coverage) if run is not None else ""
    tested = f"tested: {tested_text(coverage)}" if coverage is not None else ""
    if coverage is not None and coverage.is_on_several_nodes:
        tested += f", {len(coverage.paths)} of {text.count_text(coverage.paths_there_are, 'node pair')}"
    return " · ".join(filter(None, (tested, took)))


def _table(verdicts: Sequence[Verdict], columns: int, explained: Callable[[Verdict], Iterable[Line]]) -> list[Line]:
    """Rows of at least one requirement by metric, each followed by the lines that explain it.

    If space is short, the far end of intervals and long units that the value has already give way, below 80 columns
    also limit and bound; a name that does not fit stands on a line of its own, so that no two names look alike.
    """
    names = [f"{_GAP}{text.short_name(one)}" for one in verdicts]
    unmarked = [" " * any(map(is_marked, verdicts)) for is_marked in (interval_mark, text.is_provisional)]
    for least, is_narrow, shown in ((min(_ENOUGH, max(map(len, names))), False, 4), (0, True, 4), (-columns, True, 2)):
        rows = [_HEADER, *(_cells(one, is_narrow, unmarked) for one in verdicts)]
        rows = [(*row[: shown - 1], row[-1]) for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        room = columns - sum(width + len(_GAP) for width in widths)
        if room >= least:
            break
    width = max((len(name) for name in ("requirement", *names) if len(name) <= room), default=0)

    def joined(name: str, cells: Sequence[str]) -> str:
        numbers = [cell.rjust(width) for cell, width in zip(cells[:-1], widths, strict=False)]
        return _GAP.join([name.ljust(width) if len(name) <= width else " " * width, *numbers, cells[-1]]).rstrip()

    lines: list[Line] = [(joined("requirement", rows[0]), "header")]
    first = {one.metric: at for at, one in reversed([*enumerate(verdicts)])}
    metric = ""
    for at in sorted(range(len(verdicts)), key=lambda at: first[verdicts[at].metric]):
        one = verdicts[at]
        lines += [(text.shorten(one.metric, columns), "")] * (one.metric != metric)
        lines += [(text.shorten(names[at], columns), "")] * (len(names[at]) > width)
        lines += [(joined(names[at], rows[at + 1]), text.verdict_style(one)), *explained(one)]
        metric = one.metric
    return lines


def _cells(verdict: Verdict, is_narrow: bool, unmarked: Sequence[str]) -> tuple[str, ...]:
    """Of `_HEADER`; `unmarked` stand in place of the marks of limit and bound, so that numbers line up."""
    limit = digits.limits_text(verdict, nearer_end=is_narrow).replace("at least", "≥").replace("at most", "≤")
    bound, unit = digits.bound_text(verdict), digits.suffix(verdict.unit)
    if is_narrow and verdict.value is not None and len(unit) > len(" %"):
        limit, bound = limit.removesuffix(unit), bound.removesuffix(unit)
    limit += interval_mark(verdict) or unmarked[0]
    bound += "*" if text.is_provisional(verdict) else unmarked[1]
    return digits.point_text(verdict), limit, bound, text.verdict_word(verdict)


def _outcome(judgement: Judgement, columns: int) -> list[Line]:
    """``REJECTED: …`` in as many lines as it needs, which nothing else is indented like."""
    # Without blockers, incomplete was allowed.
    is_red = judgement.outcome == "incomplete" and judgement.blockers and not judgement.rehearsed
    style = "failed" if is_red else _OUTCOME_STYLES[judgement.outcome]
    following = " " * len("REJECTED: ")
    return [(line, style) for line in _wrapped(headline(judgement), columns, "", following, most=None)]


def _watermark(judgement: Judgement) -> list[Line]:
    return [(WATERMARK, "undecided")] if judgement.simulated else []


def _signs(verdicts: Sequence[Verdict]) -> list[str]:
    """What the signs in these rows mean."""
    marked = (
        (text.is_provisional, "* provisional bound: no published figure stands behind it"),
        (interval_mark, TOO_NARROW),
    )
    return [legend for is_marked, legend in marked if any(map(is_marked, verdicts))]


def _remarks(judgement: Judgement, notes: Mapping[str, Sequence[str]]) -> Iterator[Line]:
    """Remarks that qualify the outcome, the most important first; `notes` are those on requirements, by their ids."""
    told = headline(judgement)
    for warning in warnings(judgement)[:_MOST_WARNINGS]:
        if warning.sentence not in told:
            yield warning_text(warning), "warned"
    for one in judgement.waived:
        what = f"{text.one_line(one.id)} ({digits.point_text(one)}, bound {digits.bound_text(one)})"
        yield f"{what} is {text.waiver_text(one)}", "warned"
    for lowered in judgement.lowered[:_MOST_LOWERED]:
        was, now = digits.lowered_bounds(lowered)
        yield f"lowered by the site: {text.one_line(lowered.requirement)}: {was} → {now}", "warned"
    if (hidden := len(judgement.lowered) - _MOST_LOWERED) > 0:
        yield f"lowered by the site: {hidden} more, see report.html", "warned"
    if loss := uniform_loss_text(judgement):
        yield loss, ""
    for note in (*judgement.notes_of("unseen-loss"), *judgement.other_notes):
        yield f"note: {text.one_line(note)}", ""
    for note, of in notes.items():
        yield f"note: {text.one_line(f'{first_few(of, 2)}: {note}')}", ""


def _as_fit(judgement: Judgement, most: int, before: Sequence[Line], columns: int) -> Iterator[Line]:
    """As many remarks as fit below other lines, with a line that counts the others, and the watermark."""
    remarks = chain(judgement.remarks, *(one.remarks for one in judgement.verdicts))
    on_the_page = {said_of(one) for one in remarks if one.is_of(_ON_THE_PAGE)}
    notes = {text.one_line(note): at for note, at in _notes(judgement.verdicts).items() if note not in on_the_page}
    is_told = {f"note: {text.one_line(note)}" for note in on_the_page}
    is_told |= set() if judgement.accepts else {uniform_loss_text(judgement)}
    waiting = [_plain([said], columns, style) for said, style in _remarks(judgement, notes) if said not in is_told]
    watermark = _watermark(judgement)
    room = most - screen_lines([line for line, _ in before], columns) - len(watermark)
    while waiting and len(waiting[0]) + (len(waiting) > 1) <= room:
        room -= len(waiting[0])
        yield from waiting.pop(0)
    if waiting and room > 0:
        yield f"{text.count_text(len(waiting), 'more remark')} (-v, or report.html)", ""
    yield from watermark


def _changed(judgement: Judgement) -> Iterator[str]:
    """What else the site changed, each on a line of its own if the headline does not name all."""
    if len(text.altered_named(judgement)) < len(judgement.altered):
        yield from (f"changed by the site: {text.one_line(one)}" for one in judgement.altered)


def _notes(verdicts: Sequence[Verdict]) -> dict[str, list[str]]:
    """The notes on requirements, each with the ids of those that have it."""
    found: dict[str, list[str]] = {}
    for one in verdicts:
        for note in dict.fromkeys(one.notes):
            found.setdefault(note, []).append(one.id)
    return found


def _plain(said: Iterable[str], columns: int, style: Style = "") -> list[Line]:
    return [(line, style) for one in said for line in _wrapped(one, columns, "", "  ")]


def _indented(content: str, columns: int) -> Iterator[Line]:
    return ((line, "") for line in _wrapped(content, columns, "    ", "      "))


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
        # Keep words whole so that paths can be copied; longer words are not paths.
        break_long_words=any(len(word) > _LONGEST_PATH for word in content.split()),
    )
