"""The summary at the end of a run, as lines with a style each."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from pytest_ddpscale.report import digits, text
from pytest_ddpscale.report.cause import causes, headline, warning_text, warnings
from pytest_ddpscale.report.cause_lines import cause_lines, screen_lines
from pytest_ddpscale.report.coverage_text import tested_text, took_text
from pytest_ddpscale.report.next_steps import next_steps
from pytest_ddpscale.report.requirement_table import Line, requirement_table
from pytest_ddpscale.report.sentences import (
    TOO_NARROW,
    interval_mark,
    launches_sentence,
    uniform_loss_text,
)
from pytest_ddpscale.report.text import Style
from pytest_ddpscale.report.unmet import counts_text
from pytest_ddpscale.report.words.reasons import said as said_of
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.util.listing import first_few

_INDENT = "    "
_LEAST_COLUMNS = 40
_MOST_LINES_OF_A_REASON = 4
_MOST_CULPRITS = 8
_MOST_LOWERED = 5
_MOST_WARNINGS = 3
_MOST_ROWS = 3
# Codes of notes that only the page and -v tell.
_ON_THE_PAGE = ("low-utilization", "judged-from", "host-bound", "power-unknown")
_MOST_LINES = 20  # without -v
_MOST_QUIET_LINES = 4  # with -q; pytest adds its marks and its counts, and the path of the report follows


def brief_lines(judgement: Judgement, columns: int, run: RunRecord | None = None) -> list[Line]:
    """The outcome with its cause, what to do, other causes, and the worst blocking requirements.

    At most 20 lines on the screen, as pairs like those of `table_lines`, which has all requirements. The first line
    begins with the outcome's word, and only commands are wider than `columns`: they stay one line, to be copied.
    Without `run`, the run's run.json, nothing is said about measuring again.
    """
    columns = max(columns, _LEAST_COLUMNS)
    lines = [*_outcome_lines(judgement, columns), *_plain(map(text.one_line, judgement.notes_of("variable")), columns)]
    lines += [(line, "") for line in cause_lines(judgement, columns, run)]
    blocking = filter(judgement.is_blocked_by, judgement.verdicts)
    shown = sorted(blocking, key=lambda one: (one.outcome != "failed", one.margin or 0.0))[:_MOST_ROWS]
    if shown:
        lines += requirement_table(shown, columns, lambda one: _despite(one, columns), is_brief=True)
        lines += _plain(_signs(shown), columns)
    if not judgement.accepts:
        lines += _plain([f"{counts_text(judgement)} (all: -v)"], columns)
    watermark = _watermark(judgement)
    room = _MOST_LINES - _height(lines, columns) - len(watermark)
    return [*lines, *_as_fit(_remarks(judgement), room, columns), *watermark]


def quiet_lines(judgement: Judgement, columns: int, run: RunRecord | None = None) -> list[Line]:
    """The outcome, and what fits into 4 lines: what to do or, if it accepts, remarks. pytest adds its own counts."""
    columns = max(columns, _LEAST_COLUMNS)
    lines, watermark = _outcome_lines(judgement, columns), _watermark(judgement)
    room = _MOST_QUIET_LINES - len(lines) - len(watermark)
    if judgement.accepts:
        return [*lines, *_as_fit(_remarks(judgement), room, columns), *watermark]
    for cause in causes(judgement)[:1]:
        step = next_steps(cause, judgement, run)[0]
        said = _wrapped(f"{cause.category} {cause.id}: {step.action}", columns, "  ", "", most=1)
        said += [f"    {step.command}"] if step.command else []
        fits = 1 + screen_lines(said[1:], columns) <= room
        lines += [(line, "") for line in (said if fits else said[:1])]
    return [*lines, *watermark]


def tested_line(judgement: Judgement, run: RunRecord | None) -> str:
    """``tested: 8 of 8 nodes, 64 of 64 GPUs, 28 of 28 node pairs · 14.6 min, 15.6 GPU-hours``, as far as known."""
    coverage, took = judgement.coverage, took_text(run, judgement.coverage) if run is not None else ""
    tested = f"tested: {tested_text(coverage)}" if coverage is not None else ""
    if coverage is not None and coverage.is_on_several_nodes:
        tested += f", {len(coverage.paths)} of {text.count_text(coverage.paths_there_are, 'node pair')}"
    return " · ".join(filter(None, (tested, took)))


def _outcome_lines(judgement: Judgement, columns: int) -> list[Line]:
    """``REJECTED: …`` in as many lines as it needs, which nothing else is indented like."""
    style, following = _outcome_style(judgement), " " * len("REJECTED: ")
    return [(line, style) for line in _wrapped(headline(judgement), columns, "", following, most=None)]


def _height(lines: Sequence[Line], columns: int) -> int:
    return screen_lines([line for line, _ in lines], columns)


def _watermark(judgement: Judgement) -> list[Line]:
    return [(WATERMARK, "undecided")] if judgement.simulated else []


def _plain(said: Iterable[str], columns: int) -> list[Line]:
    return [(line, "") for one in said for line in _wrapped(one, columns, "", "  ")]


def _remarks(judgement: Judgement) -> Iterator[Line]:
    """Remarks that qualify the outcome, the most important first."""
    yield from ((said, "warned") for said in (*_warned(judgement), *_waived(judgement), *_lowered(judgement)))
    if judgement.accepts and (loss := uniform_loss_text(judgement)):
        yield loss, ""
    told = [(note, note) for note in (*judgement.notes_of("unseen-loss"), *judgement.other_notes)]
    told += [(note, _noted(note, at)) for note, at in _notes(judgement.verdicts).items()]
    remarks = chain(judgement.remarks, *(one.remarks for one in judgement.verdicts))
    on_the_page = {said_of(one) for one in remarks if one.is_of(_ON_THE_PAGE)}
    for note, said in told:
        if note not in on_the_page:
            yield f"note: {text.one_line(said)}", ""


def _as_fit(remarks: Iterable[Line], room: int, columns: int) -> list[Line]:
    """As many remarks as fit into `room` lines, with a line that counts the others."""
    lines: list[Line] = []
    waiting = [[(line, style) for line in _wrapped(said, columns, "", "  ")] for said, style in remarks]
    while waiting and len(lines) + len(waiting[0]) + (len(waiting) > 1) <= room:
        lines += waiting.pop(0)
    more = f"{text.count_text(len(waiting), 'more remark')} (-v, or report.html)"
    return [*lines, (more, "")] if waiting and len(lines) < room else lines


def _outcome_style(judgement: Judgement) -> Style:
    is_red = judgement.outcome == "incomplete" and judgement.blockers  # without blockers, incomplete was allowed
    return "failed" if is_red else _OUTCOME_STYLES[judgement.outcome]


_OUTCOME_STYLES: dict[str, Style] = {
    "accepted": "passed",
    "accepted_with_waivers": "warned",
    "rejected": "failed",
    "incomplete": "undecided",
    "partial": "undecided",
}


def table_lines(judgement: Judgement, columns: int, run: RunRecord | None = None) -> list[Line]:
    """The judgement as a table `columns` characters wide, with an explanation under each row that did not pass.

    The outcome comes after it, with its causes; its first line begins with its word. Only commands are wider.

    Returns:
        Pairs of a line and its style: ``header``, ``passed``, ``failed``, ``warned``, ``undecided`` or none.
    """
    columns = max(columns, _LEAST_COLUMNS)
    lines: list[Line] = []
    verdicts, shared = judgement.verdicts, {note: at for note, at in _notes(judgement.verdicts).items() if len(at) > 1}
    if verdicts:
        lines += requirement_table(verdicts, columns, lambda one: _explanation(one, columns, shared))
        lines.append(("", ""))
    said = [*dict.fromkeys((*_signs(verdicts), launches_sentence(verdicts))), *_limits_legend(verdicts)]
    said += [f"note: {text.one_line(_noted(*one))}" for one in shared.items()]
    said += [f"note: {text.one_line(note)}" for note in judgement.notes]
    lines += _plain([*said, uniform_loss_text(judgement)], columns)
    for one in (*_warned(judgement), *_lowered(judgement), *_waived(judgement)):
        lines += [(line, "warned") for line in _wrapped(one, columns, "", "  ")]
    lines += _plain([*_changed(judgement), *([counts_text(judgement)] if verdicts else [])], columns)
    found: list[Line] = [(line, "") for line in cause_lines(judgement, columns, run, _MOST_LINES)]
    return [*lines, *_watermark(judgement), *_outcome_lines(judgement, columns), *found]


def _signs(verdicts: Sequence[Verdict]) -> list[str]:
    """What the signs in these rows mean."""
    marked = (
        (text.is_provisional, "* provisional bound: no published figure stands behind it"),
        (interval_mark, TOO_NARROW),
    )
    return [legend for is_marked, legend in marked if any(map(is_marked, verdicts))]


def _limits_legend(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Legend of the limits' signs; nothing if there are no limits."""
    levels = {f"{one.confidence:.4g}" for one in verdicts if digits.limits_text(one) != digits.ABSENT}
    if levels:
        yield f"limit: at least (≥), at most (≤) or between (…) with a confidence of {', '.join(sorted(levels))}"


def _lowered(judgement: Judgement) -> Iterator[str]:
    """Bounds that the site lowered below the thresholds that it extends."""
    for one in judgement.lowered[:_MOST_LOWERED]:
        was, now = digits.lowered_bounds(one)
        yield f"lowered by the site: {text.one_line(one.requirement)}: {was} → {now}"
    hidden = len(judgement.lowered) - _MOST_LOWERED
    if hidden > 0:
        yield f"lowered by the site: {hidden} more, see report.html"


def _changed(judgement: Judgement) -> Iterator[str]:
    """What else the site changed, each on a line of its own if the headline does not name all."""
    if len(text.altered_named(judgement)) < len(judgement.altered):
        yield from (f"changed by the site: {text.one_line(one)}" for one in judgement.altered)


def _warned(judgement: Judgement) -> Iterator[str]:
    """Devices that certainly miss a warning bound, once each, without the one that the headline already names."""
    found = warnings(judgement)
    told = headline(judgement)
    for one in found[:_MOST_WARNINGS]:
        if one.sentence not in told:
            yield warning_text(one)


def _waived(judgement: Judgement) -> Iterator[str]:
    for one in judgement.waived:
        told = f"{text.one_line(one.id)} ({digits.point_text(one)}, bound {digits.bound_text(one)})"
        yield f"{told} is {text.waiver_text(one)}"


def _notes(verdicts: Sequence[Verdict]) -> dict[str, list[str]]:
    """The notes on requirements, each with the ids of those that have it."""
    found: dict[str, list[str]] = {}
    for one in verdicts:
        for note in dict.fromkeys(one.notes):
            found.setdefault(note, []).append(one.id)
    return found


def _noted(note: str, of: Sequence[str]) -> str:
    return f"{first_few(of, 2)}: {note}"


def _explanation(verdict: Verdict, columns: int, shared: Collection[str]) -> Iterator[Line]:
    if not verdict.passed:
        if text.check_text(verdict):
            yield from _indented(text.check_text(verdict), columns)
        yield from _indented(text.reason_text(verdict), columns)
        for line in text.details_of(verdict)[1:]:
            yield from _indented(line, columns)
        for culprit in verdict.culprits[:_MOST_CULPRITS]:
            is_told = text.one_line(culprit.evidence) in text.reason_text(verdict)
            yield from _indented((text.culprit_name if is_told else text.culprit_text)(culprit), columns)
        hidden = len(verdict.culprits) - _MOST_CULPRITS
        if hidden > 0:
            yield from _indented(f"and {hidden} more: see verdicts.json", columns)
    if text.spread_text(verdict):
        yield from _indented(text.spread_text(verdict), columns)
    if verdict.compared is not None:
        yield from _indented(text.compared_text(verdict.compared, with_source=False), columns)
    for note in verdict.notes:
        if note not in shared:
            yield from _indented(f"note: {text.one_line(note)}", columns)


def _despite(verdict: Verdict, columns: int) -> list[Line]:
    """Why it failed although its value meets the bound, in two lines."""
    despite = text.despite_text(verdict)
    return list(_indented(despite, columns))[:2] if despite else []


def _indented(content: str, columns: int) -> Iterator[Line]:
    for line in _wrapped(content, columns, _INDENT, _INDENT + "  "):
        yield line, ""


_LONGEST_PATH = 300


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
