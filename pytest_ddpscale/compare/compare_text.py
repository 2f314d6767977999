"""A comparison of two runs as text and as JSON."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from pytest_ddpscale.compare.compared_run import ComparedRun
from pytest_ddpscale.compare.comparing import ComparedRequirement, ComparedRuns
from pytest_ddpscale.report import digits
from pytest_ddpscale.report.words.outcome import outcome_word
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Column, Table, text_lines
from pytest_ddpscale.util.listing import count_text
from pytest_ddpscale.util.printable import one_line

COLUMNS = 100  # of a line
_ALIKE = "no difference shown"
_HEADERS = {
    "same SKU": ("REQUIREMENT", "A", "B", "B ÷ A", "INTERVAL", "RESULT"),
    "generations": ("WORKLOAD", "A {unit}/s/GPU", "B {unit}/s/GPU", "RATIO", "INTERVAL", "RESULT"),
}


def compared_lines(found: ComparedRuns) -> Iterator[str]:
    """The answer, the runs, differences of configuration, and each requirement."""
    yield counts_line(found.requirements)
    for letter, run in (("A", found.a), ("B", found.b)):
        yield f"{letter}  {one_line(run.path)}: {_run_text(run)}"
    yield ""
    yield from _configuration(found)
    yield ""
    yield from _requirements(found)


def compared_json(found: ComparedRuns) -> dict[str, Any]:
    """One JSON object; shares and ratios are numbers, not per cent."""
    return {
        "schema_version": 2,
        "kind": found.kind,
        "confidence": found.confidence,
        "a": _run_json(found.a),
        "b": _run_json(found.b),
        "configuration": [asdict(one) for one in found.configuration],
        "requirements": [_requirement_json(one) for one in found.requirements],
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


def _requirement_json(one: ComparedRequirement) -> dict[str, Any]:
    """One requirement as JSON types."""
    said = asdict(one)
    for name in ("a", "b", "change"):
        value = getattr(one, name)
        said[name] = value._asdict() if value is not None else None
    return said


def _configuration(found: ComparedRuns) -> Iterator[str]:
    if not found.configuration:
        yield "Configuration: no difference known."
        return
    yield "Configuration differs:"
    rows = [("", "A", "B"), *((one.name, one.a, one.b) for one in found.configuration)]
    yield from table_lines_of(rows, indent="  ", shrinking=(1, 2))


def _requirements(found: ComparedRuns) -> Iterator[str]:
    """Requirements that differ, worse ones first, and the number of those that do not; of generations all."""
    told = [one for one in found.requirements if one.change]
    alike = [one for one in told if found.kind == "same SKU" and one.difference == _ALIKE]
    unit = found.a.evidence.plan.unit
    header = [one.format(unit=unit) for one in _HEADERS[found.kind]]
    rows = [_row(one) for one in sorted(told, key=_most_telling_first) if one not in alike]
    if rows:
        yield from table_lines_of([header, *rows], shrinking=())
    if alike:
        yield f"{count_text(len(alike), 'requirement')} without a difference: --format=json has each"
    yield ""
    why_not: dict[str, list[str]] = {}
    for one in found.requirements:
        if one.change is None:
            why_not.setdefault(one_line(one.why_not), []).append(one_line(one.id))
    for why, ids in why_not.items():
        yield from wrapped(f"not compared: {', '.join(ids)}: {why}")
    for letter, names in (("A", found.only_a), ("B", found.only_b)):
        if names:
            yield from wrapped(f"only in {letter}: {one_line(', '.join(names))}")
    for sentence in _proviso_sentences(found, told):
        yield from wrapped(sentence)


def _most_telling_first(one: ComparedRequirement) -> tuple[bool, bool, float]:
    size = abs(one.change.size) if one.change else 0.0
    return not one.is_worse, one.difference == _ALIKE, -size


def _row(one: ComparedRequirement) -> tuple[str, ...]:
    of_both = (one.value_a, one.value_b)
    values = [digits.ABSENT if value is None else digits.number_text(value, one.unit) for value in of_both]
    result = digits.ABSENT if one.difference == _ALIKE else one.difference
    return (one.id, *values, *_change_texts(one), result)


def _change_texts(one: ComparedRequirement) -> tuple[str, str]:
    """``0.909×`` and ``0.905 … 0.914``; for shares ``+1.2`` points, for other differences ``+1.2 ms``."""
    assert one.change is not None  # callers pass only compared requirements
    size, low, high = one.change
    if one.is_ratio:
        return f"{1 + size:.3f}×", f"{_floor(1 + low):.3f} … {_ceil(1 + high):.3f}"
    if one.unit != "fraction":
        return f"{_signed(size)} {one.unit}", f"{_signed(low)} … {_signed(high)}"
    return f"{_points(size)} points", f"{_points(_floor(low))} … {_points(_ceil(high))}"


def _points(share: float) -> str:
    shown = f"{100 * share:+.1f}".replace("-", "−")
    return "0.0" if not shown.strip("+−0.") else shown


def _signed(number: float) -> str:
    return f"{number:+.3g}".replace("-", "−")


def _floor(number: float) -> float:
    return math.floor(1000 * number) / 1000


def _ceil(number: float) -> float:
    return math.ceil(1000 * number) / 1000


def _proviso_sentences(found: ComparedRuns, told: Sequence[ComparedRequirement]) -> Iterator[str]:
    count = count_text(len(told), "interval")
    share = 1 - found.confidence
    yield (
        f"{count}, each at {percent(found.confidence)} confidence: noise of rounds alone shows a difference in at most "
        f"{percent(share)} of requirements."
    )
    if not all(one.knows_launches for one in told):
        yield (
            "These two launches only: not all intervals include differences between launches (5 earlier runs in "
            "the history would)."
        )
    places: dict[tuple[str, str], list[str]] = {}
    for one in told:
        if one.place_a != one.place_b:
            places.setdefault((one.place_a or "all", one.place_b or "all"), []).append(one.id)
    if places:
        yield "Where places are judged by themselves, the worst of each run is compared:"
    for (of_a, of_b), ids in places.items():
        yield one_line(f"{of_a} in A, {of_b} in B: {', '.join(ids)}")
    if found.a.is_simulated != found.b.is_simulated:
        yield "One run was simulated: the difference says nothing about a machine."


def counts_line(requirements: Sequence[ComparedRequirement]) -> str:
    """The answer, and how many requirements are worse, better, or neither."""
    told = [one for one in requirements if one.change]
    worse = sum(one.is_worse for one in told)
    same = sum(one.difference == "no difference shown" for one in told)
    better = len(told) - worse - same
    counted = f"of {len(told)} requirements {worse} are worse in B, {better} better, {same} show no difference"
    answers = [word for word, number in (("worse", worse), ("better", better)) if number]
    answer = " and ".join(answers) or ("no difference shown" if told else "nothing to compare")
    return f"{answer.capitalize()}: {counted}."


def table_lines_of(
    rows: Sequence[Sequence[str]], indent: str = "", shrinking: Collection[int] = (0,)
) -> Iterator[str]:  # fmt: skip
    """Rows as lines of at most `COLUMNS` characters, the first with the titles; these columns shrink to it."""
    columns = [Column(title, may_shrink=at in shrinking) for at, title in enumerate(rows[0])]
    lines = text_lines(Table(columns, rows[1:]), width=COLUMNS - len(indent) if shrinking else None)
    return (f"{indent}{line}" for line in lines)


def wrapped(sentence: str) -> list[str]:
    """A sentence as lines of at most `COLUMNS` characters; paths and names stay whole."""
    return textwrap.wrap(
        sentence, COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )  # fmt: skip
