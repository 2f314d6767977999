"""A comparison of two runs as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_ddpscale.compare.comparing import ALIKE, ComparedRequirement, ComparedRun, ComparedRuns
from pytest_ddpscale.compare.configuration import configuration_differences
from pytest_ddpscale.report import digits
from pytest_ddpscale.report.words.outcome import outcome_word
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Column, Line, Table, bullets, table, text_lines
from pytest_ddpscale.util.listing import count_text
from pytest_ddpscale.util.printable import one_line

COLUMNS = 100  # of a line
_CONFIGURATION = [Column("differs"), Column("A", may_shrink=True), Column("B", may_shrink=True)]
_TITLES = {
    "same SKU": ("REQUIREMENT", "A", "B", "B ÷ A", "INTERVAL", "RESULT"),
    "generations": ("WORKLOAD", "A {unit}/s/GPU", "B {unit}/s/GPU", "RATIO", "INTERVAL", "RESULT"),
}


def compared_lines(found: ComparedRuns) -> Iterator[str]:
    """The answer, the runs, differences of configuration, and each requirement that differs; of generations all."""
    told = [one for one in found.requirements if one.change]
    shown = [one for one in told if found.kind == "generations" or one.difference != ALIKE]
    shown.sort(key=lambda one: (not one.is_worse, one.difference == ALIKE, -abs(one.change.size if one.change else 0)))
    titles = [one.format(unit=found.a.evidence.plan.unit) for one in _TITLES[found.kind]]
    differences = configuration_differences(found.a, found.b)
    yield counts_line(found.requirements)
    yield from (f"{letter}  {one_line(run.path)}: {_run_text(run)}" for letter, run in (("A", found.a), ("B", found.b)))
    yield ""
    same = Line("" if differences else "Configuration: no difference known.")
    yield from text_lines(Table(_CONFIGURATION, differences), same, width=COLUMNS)
    yield ""
    if shown:
        yield from text_lines(table(titles, map(_row, shown)))
        yield ""
    yield from text_lines(bullets(_notes(found, told, len(told) - len(shown))), width=COLUMNS)


def compared_json(found: ComparedRuns) -> dict[str, Any]:
    """One JSON object; shares and ratios are numbers, not per cent."""
    differences = configuration_differences(found.a, found.b)
    return {
        "schema_version": 3,
        "kind": found.kind,
        "confidence": found.confidence,
        "a": _run_json(found.a),
        "b": _run_json(found.b),
        "configuration": [dict(zip(("name", "a", "b"), one, strict=True)) for one in differences],
        "requirements": [one.as_json() for one in found.requirements],
        "only_a": found.only_a,
        "only_b": found.only_b,
    }


def _run_text(run: ComparedRun) -> str:
    what = (
        outcome_word(run.judgement.outcome),
        one_line(run.record.sku),
        run.record.began.strftime("%Y-%m-%d %H:%M UTC"),
        "SIMULATED: no machine was measured" if run.is_simulated else "",
        "imported" if run.record.is_imported else "",
    )
    return ", ".join(filter(None, what))


def _run_json(run: ComparedRun) -> dict[str, Any]:
    return {
        "path": run.path, "sku": run.record.sku, "outcome": run.judgement.outcome, "started_at": run.record.started_at,
        "simulated": run.is_simulated, "imported": run.record.is_imported, "hosts": run.hosts,
        "measurements_sha256": run.digest,
    }  # fmt: skip


def _row(one: ComparedRequirement) -> tuple[str, ...]:
    """``0.909×`` and ``0.905 … 0.914``; of shares ``+1.2 points``, of other differences ``+1.2 ms``."""
    assert one.change is not None  # callers pass only compared requirements
    values = [digits.number_text(side.value or 0.0, side.unit) for side in (one.a, one.b)]
    form, factor, unit = ("{:+.3g}", 1, f" {one.a.unit}")
    if one.is_ratio:
        form, unit = "{:.3f}", "×"
    elif one.a.unit == "fraction":
        form, factor, unit = "{:+.1f}", 100, " points"
    size, low, high = (form.format(factor * (one.is_ratio + x)).replace("-", "−") for x in one.change)
    result = digits.ABSENT if one.difference == ALIKE else one.difference
    return one.a.id, *values, f"{size}{unit}", f"{low} … {high}", result


def _notes(found: ComparedRuns, told: Sequence[ComparedRequirement], alike: int) -> Iterator[str]:
    if alike:
        yield f"{count_text(alike, 'requirement')} without a difference: --format=json has each"
    why_not: dict[str, list[str]] = {}
    places: dict[str, list[str]] = {}
    for one in found.requirements:
        if one.change is None:
            why_not.setdefault(one.why_not, []).append(one.a.id)
        elif one.a.place != one.b.place:
            places.setdefault(f"{one.a.place or 'all'} in A, {one.b.place or 'all'} in B", []).append(one.a.id)
    yield from (f"not compared: {', '.join(ids)}: {why}" for why, ids in why_not.items())
    for letter, names in (("A", found.only_a), ("B", found.only_b)):
        if names:
            yield f"only in {letter}: {', '.join(names)}"
    yield (
        f"{count_text(len(told), 'interval')}, each at {percent(found.confidence)} confidence: noise of rounds alone "
        f"shows a difference in at most {percent(1 - found.confidence)} of requirements."
    )
    if not all(one.knows_launches for one in told):
        yield (
            "These two launches only: not all intervals include differences between launches (5 earlier runs in "
            "the history would)."
        )
    if places:
        yield "Where places are judged by themselves, the worst of each run is compared:"
        yield from (f"{of_both}: {', '.join(ids)}" for of_both, ids in places.items())
    if found.a.is_simulated != found.b.is_simulated:
        yield "One run was simulated: the difference says nothing about a machine."


def counts_line(requirements: Sequence[ComparedRequirement]) -> str:
    """The answer, and how many requirements are worse, better, or neither."""
    told = [one for one in requirements if one.change]
    worse, same = sum(one.is_worse for one in told), sum(one.difference == ALIKE for one in told)
    better = len(told) - worse - same
    answers = [word for word, number in (("worse", worse), ("better", better)) if number]
    answer = " and ".join(answers) or (ALIKE if told else "nothing to compare")
    counted = f"of {len(told)} requirements {worse} are worse in B, {better} better, {same} show no difference"
    return f"{answer.capitalize()}: {counted}."


def wrapped(sentence: str) -> list[str]:
    """A sentence as lines of at most `COLUMNS` characters; paths and names stay whole."""
    return textwrap.wrap(
        sentence, COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )  # fmt: skip
