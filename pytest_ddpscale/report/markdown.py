"""A judgement as Markdown for a ticket (GitHub's dialect), in the order of report.html. It imports jinja2.

`finalize` escapes the template's expressions, so no name or message can change the document. Text that already is
Markdown is marked with `Markdown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from urllib.parse import quote

import jinja2

from pytest_ddpscale.report import causes as cause
from pytest_ddpscale.report import digits, first_page, profile_text, text
from pytest_ddpscale.report.causes import explained_text
from pytest_ddpscale.report.sentences import interval_mark
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement, RunOutcome, Verdict
from pytest_ddpscale.util.tables import Column, Markdown, Table, markdown, markdown_lines, table

TEMPLATES = Path(__file__).parent / "templates"
# Most entries shown here; all are in report.html, culprits.csv or verdicts.json.
_MOST_CAUSES = 10
_MOST_CULPRITS = 8
_MOST_FAILURES = 50
_MOST_LOWERED = 64
_MOST_PROFILES = 16
_UNMET = (
    Column("Requirement"), *(Column(title, is_number=True) for title in ("Value", "Limits", "Bound", "Margin")),
    Column("Verdict"), Column("Cause"),
)  # fmt: skip
_WAIVED = ("Requirement", "Value", "Bound", "Waived by", "Until", "Why")

_MEANINGS: dict[RunOutcome, str] = {
    "accepted": "Every requirement that can reject this machine was measured and met.",
    "accepted_with_waivers": "Every requirement that can reject this machine was measured, and met except those "
    "that are waived: see Waivers.",
    "rejected": "At least one requirement is not met: this machine is not fit to open.",
    "incomplete": "Fitness was not demonstrated; the machine is not accepted.",
    "partial": "Only some of the requirements were selected: this report says nothing about the others "
    "and does not accept the machine.",
}


def code_block(content: str) -> Markdown:
    """One line of shell, fenced by more backticks than it holds in a row."""
    return _fenced("sh", [text.one_line(content)])


def listing(lines: Sequence[str]) -> Markdown:
    """Lines of output, as they are."""
    return _fenced("text", [text.one_line(line) for line in lines])


def _fenced(language: str, lines: Sequence[str]) -> Markdown:
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(longest + 1, 3)
    return Markdown("\n".join([f"{fence}{language}", *lines, fence]))


def link(path: str) -> Markdown:
    """A file of the run directory, by its name."""
    return Markdown(f"[{markdown(Path(path).name)}]({quote(path)})")


def image(path: str) -> Markdown:
    """A picture, with words from its file name as the alternative text."""
    alternative = Path(path).stem.replace("-", " ").replace("_", " ")
    return Markdown(f"![{markdown(alternative)}]({quote(path)})")


@cache
def _template() -> jinja2.Template:
    """The template, compiled once, because a process rewrites its report while it measures."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        # autoescape is for HTML; finalize escapes for Markdown.
        autoescape=False,  # noqa: S701
        finalize=markdown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(
        digits=digits, text=text, profile_text=profile_text, explained_text=explained_text,
        code_block=code_block, image=image, link=link, listing=listing, sentence=_sentence, table=_table,
        most_causes=_MOST_CAUSES, most_culprits=_MOST_CULPRITS, most_profiles=_MOST_PROFILES,
    )  # fmt: skip
    return environment.get_template("report.md.j2")


def render_markdown(
    judgement: Judgement, run: RunRecord, plots: Sequence[str] = (), evidence: Evidence | None = None
) -> str:
    """The report of a run, with pictures by their paths relative to it; surveys and profiles only with evidence."""
    causes = cause.causes(judgement)
    unmet = [one for one in judgement.verdicts if judgement.is_blocked_by(one)]
    warned = [one for one in judgement.verdicts if text.only_warns(one)]
    shown = causes[:_MOST_CAUSES]
    profiles = evidence.profiles if evidence else []
    # Those that say more than fits into a headline, once for all requirements that they ended.
    errors = dict.fromkeys(tuple(text.details_of(one)) for one in judgement.verdicts)
    rendered = _template().render(
        **first_page.shared(judgement, run, evidence, causes),
        headline=cause.headline(judgement),
        meaning=_MEANINGS[judgement.outcome],
        unmet=Table(_UNMET, [_row(one, shown) for one in unmet[:_MOST_FAILURES]]),
        left_out=[(len(unmet[_MOST_FAILURES:]), "more"), (len(warned), "more did not pass and only warn")],
        by_spread=[verdict for verdict in judgement.verdicts if text.spread_text(verdict)],
        errors=[lines for lines in errors if lines][:_MOST_CAUSES],
        waived=table(_WAIVED, _waivers(judgement)) if judgement.waived else None,
        lowered=_lowered(judgement) if judgement.lowered else None,
        plots=plots,
        traces=[one.trace for one in profiles if one.trace],
        parts=profile_text.part_rows(profiles)[:_MOST_PROFILES],
        device_type=evidence.plan.device_type if evidence else "",
    )
    return re.sub(r"\n{3,}", "\n\n", rendered)


def _table(titles: Sequence[str] | Table, rows: Sequence[Sequence[str]] = (), names: int | None = None) -> Markdown:
    """A table; with `names`, the columns after that many are aligned to the right."""
    found = titles if isinstance(titles, Table) else table(titles, rows, of_numbers=names is not None, names=names or 0)
    return Markdown("\n".join(markdown_lines(found)))


def _row(verdict: Verdict, shown: Sequence[cause.Cause]) -> tuple[str, ...]:
    """A requirement that did not pass."""
    provisional = " (provisional)" if text.is_provisional(verdict) else ""
    return (
        verdict.id, digits.point_text(verdict),
        digits.limits_text(verdict) + interval_mark(verdict), digits.bound_text(verdict) + provisional,
        digits.margin_text(verdict), _mark(verdict), _cause_of(verdict, shown),
    )  # fmt: skip


def _waivers(judgement: Judgement) -> Iterator[tuple[str, ...]]:
    for one in judgement.waived:
        if waiver := one.waiver:
            yield one.id, digits.point_text(one), digits.bound_text(one), waiver.who, str(waiver.until), waiver.why


def _lowered(judgement: Judgement) -> Table:
    rows = [(one.requirement, *digits.lowered_bounds(one)) for one in judgement.lowered]
    more = [(f"{len(rows) - _MOST_LOWERED} more: verdicts.json lists all", "", "")] if rows[_MOST_LOWERED:] else []
    return table(("Requirement", "Before", "Here"), [*rows[:_MOST_LOWERED], *more], of_numbers=True)


def _cause_of(verdict: Verdict, shown: Sequence[cause.Cause]) -> str:
    """Numbers of the shown causes that explain a verdict, with its reason where its value does not; or the reason."""
    numbers = [str(number) for number, one in enumerate(shown, 1) if verdict.id in one.explains]
    despite = text.despite_text(verdict)
    return f"{', '.join(numbers)}{': ' if despite else ''}{despite}" if numbers else text.reason_text(verdict)


def _mark(verdict: Verdict) -> Markdown:
    """The verdict's word, in bold unless it passed."""
    word = text.verdict_word(verdict)
    if verdict.passed:
        return Markdown(word)
    suffix = " (only warns)" if text.only_warns(verdict) and word != "WARN" else ""
    return Markdown(f"**{word}**{suffix}")


def _sentence(content: str) -> str:
    """The text as one line that ends in a full stop."""
    line = text.one_line(content)
    return line if line.endswith((".", "!", "?")) else f"{line}."
