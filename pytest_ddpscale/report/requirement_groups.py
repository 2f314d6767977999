"""The requirements of report.html in tables: those with one reason stand together, and the reason once below them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report import digits, text
from pytest_ddpscale.report.causes import Cause
from pytest_ddpscale.report.sentences import interval_mark, launch_sd_text
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.util.tables import Column, Table, html

PROVISIONAL = "*"
_MOST_CULPRITS = 5  # of a requirement; culprits.csv lists all
_COLUMNS = (
    Column("Requirement"), Column("Verdict"),
    *(Column(title, is_number=True) for title in ("Value", "Limits", "Bound", "Margin", "Rounds")),
)  # fmt: skip
_ORDER = ("failed", "error", "undecided", "warned", "passed")


@dataclass(frozen=True)
class Part:
    """Requirements of one kind: how many, as a title, the table as HTML, and whether the page shows it at once."""

    title: str
    table: Markup
    is_open: bool


def sources(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Footnote number of each source of a bound."""
    texts = dict.fromkeys(text.one_line(one.source) for one in verdicts if one.source)
    return {source: number for number, source in enumerate(texts, 1)}


def requirement_parts(judgement: Judgement, causes: Sequence[Cause]) -> list[Part]:
    """What keeps the machine from being accepted and what is waived; then, closed, what only warns and what passed."""
    found = sorted(judgement.verdicts, key=_worst_first)
    blocking = [one for one in found if judgement.is_blocked_by(one)]
    waived = [one for one in found if one.is_waived]
    passed = [one for one in found if one.passed]
    shown = {one.id for one in (*blocking, *waived, *passed)}
    others = [one for one in found if one.id not in shown]
    kinds = (("not met", blocking), ("waived", waived), ("not met, only warnings", others), ("passed", passed))
    numbers = sources(judgement.verdicts)
    of_cause = {name: number for number, one in reversed([*enumerate(causes, 1)]) for name in one.explains}
    parts = []
    for kind, some in kinds:
        if some:
            found_table = _table(f"Requirements: {kind}", some, numbers, of_cause)
            parts.append(Part(f"{len(some)} {kind}", found_table, kind in ("not met", "waived")))
    return parts


def _worst_first(verdict: Verdict) -> int:
    return _ORDER.index("error" if verdict.outcome == "error" else text.verdict_style(verdict))


def _table(
    caption: str, verdicts: Sequence[Verdict], numbers: Mapping[str, int], of_cause: Mapping[str, int]
) -> Markup:
    groups: dict[object, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        groups[_key(verdict)].append(verdict)
    rows, below = [], {}
    for group in groups.values():
        rows += [_cells(one, numbers) for one in group]
        if note := _note(group, of_cause):
            below[len(rows)] = [note]
    return Markup(html(Table(_COLUMNS, rows), caption, below, "requirements"))  # noqa: S704 (escaped within)


def _key(verdict: Verdict) -> object:
    """The same for requirements whose reasons differ only in measured values, which stand in their rows."""
    accused = frozenset((one.identity, one.is_certain) for one in verdict.accused)
    reason = re.sub(r"\d+\.\d+", "", _reason(verdict))
    return verdict.outcome, reason or verdict.metric, accused


def _reason(verdict: Verdict) -> str:
    return text.spread_text(verdict) if verdict.passed else text.reason_text(verdict)


def _cells(verdict: Verdict, numbers: Mapping[str, int]) -> list[str]:
    style, word = text.verdict_style(verdict), text.verdict_word(verdict)
    number = numbers.get(text.one_line(verdict.source))
    note = Markup('<sup><a href="#source-{0}">{0}</a></sup>').format(number) if number else ""
    provisional = PROVISIONAL if text.is_provisional(verdict) else ""
    return [
        f"{METRICS[verdict.metric].title}: {text.short_name(verdict)}",
        Markup('<span class="word {}">{}</span>').format(style, word),
        digits.point_text(verdict),
        digits.limits_text(verdict) + interval_mark(verdict),
        Markup("{}{}{}").format(digits.bound_text(verdict), provisional, note),
        digits.margin_text(verdict),
        text.rounds_text(verdict),
    ]


def _note(group: Sequence[Verdict], of_cause: Mapping[str, int]) -> Markup | str:
    """The reason of all, and in a closed part what else is known of each."""
    first, told = group[0], _reason(group[0])
    number = of_cause.get(first.id)
    cause = Markup('<a href="#cause-{0}">Cause {0}</a>: ').format(number) if number else ""
    remarks = {one.id: _remarks(one, told) for one in group}
    of_all = [remark for remark in remarks[first.id] if all(remark in said for said in remarks.values())]
    own = {one.id: [remark for remark in remarks[one.id] if remark not in of_all] for one in group}
    names = {one.id: f"{text.short_name(one)}: " if group[1:] else "" for one in group}
    lines = [*of_all, *(f"{names[one]}{'; '.join(said)}" for one, said in own.items() if said)]
    listed = Markup().join(Markup("<li>{}</li>").format(text.one_line(line)) for line in lines)
    more = Markup("<details><summary>Evidence</summary><ul>{}</ul></details>").format(listed) if lines else ""
    return Markup("{}{}{}").format(cause, text.one_line(told), more) if told or more else ""


def _remarks(verdict: Verdict, told: str) -> list[str]:
    """What stands in no column: the whole reason, who is named, notes, comparison and launches."""
    said = list[str]()
    if not verdict.passed:
        reason = text.reason_text(verdict)
        said.append(reason if reason != told else "")
        said += [*text.details_of(verdict)[1:], *_named(verdict)]
        said += [text.waiver_text(verdict) if verdict.is_waived else "", *(f"note: {note}" for note in verdict.notes)]
    said.append(text.compared_text(verdict.compared) if verdict.compared else "")
    said.append(launch_sd_text(verdict))
    return [one for one in said if one]


def _named(verdict: Verdict) -> Iterator[str]:
    """Who is at fault or suspected, with the evidence unless the reason already contains it."""
    reason = text.reason_text(verdict)
    for culprit in verdict.accused[:_MOST_CULPRITS]:
        is_told = text.one_line(culprit.evidence) in reason
        who = (text.culprit_name if is_told else text.culprit_text)(culprit, full_uuid=True)
        yield f"{'at fault' if culprit.is_certain else 'suspected'}: {who}"
    if verdict.accused[_MOST_CULPRITS:]:
        yield f"{len(verdict.accused) - _MOST_CULPRITS} more: culprits.csv lists all"
