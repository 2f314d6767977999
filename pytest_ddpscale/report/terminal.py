"""The summary at the end of a run, as lines with a style each."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pytest_ddpscale.report import text
from pytest_ddpscale.report.cause import headline, warning_text, warnings
from pytest_ddpscale.report.cause_lines import cause_lines, screen_lines
from pytest_ddpscale.report.certainty_text import uniform_loss_text
from pytest_ddpscale.report.launches_text import launches_sentence
from pytest_ddpscale.report.ratio_text import ratio_lines
from pytest_ddpscale.report.requirement_table import Line, requirement_table
from pytest_ddpscale.report.text import Style
from pytest_ddpscale.report.unmet import counts_text, waived_groups
from pytest_ddpscale.run.counting import counted_groups, groups_within, worst_of
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.verdicts import Judgement, Verdict

_INDENT = "    "
_LEAST_COLUMNS = 40
_MOST_LINES_OF_A_REASON = 4
_MOST_CULPRITS = 8
_MOST_LOWERED = 5
_MOST_CAUSES = 3
_MOST_ROWS = 3
_MOST_LINES = 20  # without -v


def brief_lines(judgement: Judgement, columns: int, run: RunRecord | None = None) -> list[tuple[str, str]]:
    """The outcome with its cause, other causes, and the worst blocking requirements.

    At most 20 lines on the screen, as pairs like those of `table_lines`, which has all requirements. Only the first
    line, the outcome, and commands may be longer than `columns`: each stays one line, to be searched for or copied.
    Without `run`, the run's run.json, nothing is said about measuring again.
    """
    columns = max(columns, _LEAST_COLUMNS)
    lines: list[Line] = [(headline(judgement), _outcome_style(judgement))]
    lines += [(line, "") for line in cause_lines(judgement, columns, run)]
    groups = groups_within(filter(judgement.is_blocked_by, judgement.verdicts), judgement.verdicts)
    worst = (worst_of(group, allows_unmeasured=judgement.allows_unmeasured) for group in groups)
    blocking = sorted(worst, key=lambda one: (one.outcome != "failed", one.margin or 0.0))
    shown, ratios = blocking[:_MOST_ROWS], ratio_lines(judgement.verdicts)
    if shown:
        lines += requirement_table(
            shown, columns, lambda one: [*_ratios(one, ratios, columns), *_despite(one, columns)][:2], is_brief=True
        )
    if not judgement.accepts:
        counted = f"{counts_text(judgement)} (all: -v)"
        lines += [(line, "") for line in _wrapped(counted, columns, "", "  ")]
    watermark: list[Line] = [(WATERMARK, "undecided")] if judgement.simulated else []
    room = _MOST_LINES - screen_lines([line for line, _ in lines], columns) - len(watermark)
    return [*lines, *_as_fit(_remarks(judgement), room, columns), *watermark]


def _remarks(judgement: Judgement) -> Iterator[Line]:
    """Remarks that qualify the outcome, the most important first."""
    yield from ((said, "warned") for said in (*_warned(judgement), *_waived(judgement), *_lowered(judgement)))
    if uniform_loss_text(judgement):
        yield uniform_loss_text(judgement), ""
    own = (note for verdict in judgement.verdicts for note in verdict.notes)
    unseen = filter(None, [judgement.unseen_loss])
    for note in dict.fromkeys((*unseen, *judgement.notes, *_shared_notes(judgement.verdicts), *own)):
        yield f"note: {text.one_line(note)}", ""


def _as_fit(remarks: Iterable[Line], room: int, columns: int) -> list[Line]:
    """As many remarks as fit into `room` lines, with a line that counts the others."""
    lines: list[Line] = []
    waiting = [[(line, style) for line in _wrapped(said, columns, "", "  ")] for said, style in remarks]
    while waiting and len(lines) + len(waiting[0]) + (len(waiting) > 1) <= room:
        lines += waiting.pop(0)
    return [*lines, (f"{len(waiting)} more remarks (-v, or report.html)", "")] if waiting else lines


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


def table_lines(judgement: Judgement, columns: int, run: RunRecord | None = None) -> list[tuple[str, str]]:
    """The judgement as a table `columns` characters wide, with an explanation under each row that did not pass.

    Only the outcome and commands may be longer: each stays one line, so that it can be searched for or copied.

    Returns:
        Pairs of a line and its style: ``header``, ``passed``, ``failed``, ``warned``, ``undecided`` or none.
    """
    columns = max(columns, _LEAST_COLUMNS)
    lines: list[Line] = []
    if judgement.verdicts:
        shared_notes, ratios = _shared_notes(judgement.verdicts), ratio_lines(judgement.verdicts)
        lines += requirement_table(
            judgement.verdicts,
            columns,
            lambda one: [*_ratios(one, ratios, columns), *_explanation(one, columns, shared_notes)],
        )
        lines.append(("", ""))
    if any(map(text.is_provisional, judgement.verdicts)):
        legend = "* provisional bound: no published figure stands behind it"
        lines += [(line, "") for line in _wrapped(legend, columns, "", "  ")]
    about_launches = launches_sentence(judgement.verdicts)
    if about_launches:
        lines += [(line, "") for line in _wrapped(about_launches, columns, "", "  ")]
    lines += [(line, "") for said in _limits_legend(judgement.verdicts) for line in _wrapped(said, columns, "", "  ")]
    shared = [
        f"{note} ({text.count_text(count, 'requirement')})" for note, count in _shared_notes(judgement.verdicts).items()
    ]
    for note in (*shared, *judgement.notes):
        lines += [(line, "") for line in _wrapped(f"note: {text.one_line(note)}", columns, "", "  ")]
    lines += [(line, "") for line in _wrapped(uniform_loss_text(judgement), columns, "", "  ")]
    for said in (*_warned(judgement), *_lowered(judgement), *_waived(judgement)):
        lines += [(line, "warned") for line in _wrapped(said, columns, "", "  ")]
    lines += [(line, "") for said in _changed(judgement) for line in _wrapped(said, columns, "", "  ")]
    if judgement.verdicts:
        lines += [(line, "") for line in _wrapped(counts_text(judgement), columns, "", "  ")]
    if judgement.simulated:
        lines.append((WATERMARK, "undecided"))
    causes = [(line, "") for line in cause_lines(judgement, columns, run, _MOST_LINES)]
    return [*lines, (headline(judgement), _outcome_style(judgement)), *causes]


def _limits_legend(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Legend of the limits' signs; nothing if there are no limits."""
    levels = {f"{one.confidence:.4g}" for one in verdicts if text.limits_text(one) != text.ABSENT}
    if levels:
        yield f"limit: at least (≥), at most (≤) or between (…) with a confidence of {', '.join(sorted(levels))}"


def _lowered(judgement: Judgement) -> Iterator[str]:
    """Bounds that the site lowered below the thresholds that it extends."""
    for one in judgement.lowered[:_MOST_LOWERED]:
        was, now = text.lowered_bounds(one)
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
    for one in found[:_MOST_CAUSES]:
        if one.sentence not in told:
            yield warning_text(one, judgement)


def _waived(judgement: Judgement) -> Iterator[str]:
    for group in waived_groups(judgement):
        told = [f"{text.one_line(one.id)} ({text.point_text(one)}, bound {text.bound_text(one)})" for one in group]
        yield f"{' and '.join(told)} {'are' if group[1:] else 'is'} {text.waiver_text(group[0])}"


def _shared_notes(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Notes that several requirements share, with their number; they are printed once, below the table."""
    counts = Counter(note for verdict in verdicts for note in verdict.notes)
    of_groups = Counter(note for group in counted_groups(verdicts) for note in {n for one in group for n in one.notes})
    return {note: of_groups[note] for note, count in counts.items() if count > 1}


def _explanation(verdict: Verdict, columns: int, shared: Collection[str]) -> Iterator[Line]:
    if not verdict.passed:
        if text.check_text(verdict):
            yield from _indented(text.check_text(verdict), columns)
        yield from _indented(text.reason_text(verdict), columns)
        for line in text.details_of(verdict)[1:]:
            yield from _indented(line, columns)
        for culprit in verdict.culprits[:_MOST_CULPRITS]:
            yield from _indented(text.culprit_text(culprit), columns)
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


def _ratios(verdict: Verdict, ratios: Mapping[str, Sequence[str]], columns: int) -> Iterator[Line]:
    """The ratios that are counted with a throughput, below its row."""
    for said in ratios.get(verdict.id, ()):
        yield from _indented(said, columns)


def _despite(verdict: Verdict, columns: int) -> list[Line]:
    """Why it failed although its value meets the bound, in two lines."""
    despite = text.despite_text(verdict)
    return list(_indented(despite, columns))[:2] if despite else []


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
        # Keep words whole so that paths can be copied; longer words are not paths.
        break_long_words=any(len(word) > _LONGEST_PATH for word in content.split()),
    )
