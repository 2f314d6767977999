"""A run compared with the site's history, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pytest_ddpscale.compare.against_history import RunBesidePast, ValueBesidePast
from pytest_ddpscale.compare.compare_text import (
    EARLIER_HEADER,
    counts_line,
    requirement_json,
    requirement_lines,
    table_lines_of,
    wrapped,
)
from pytest_ddpscale.report import digits, text
from pytest_ddpscale.util.digits import percent


def past_lines(found: RunBesidePast) -> Iterator[str]:
    """The answer, changes of the software, each requirement and each place compared with its past."""
    slower = sum(one.difference == "slower" for one in found.values)
    faster = sum(one.difference == "faster" for one in found.values)
    yield counts_line(found.requirements, "than before")
    yield from wrapped(
        f"{slower} of {text.count_text(len(found.values), 'value')} slower than before, {faster} faster, all intervals "
        f"together at {percent(found.confidence)} confidence; {found.without_past} have too few earlier runs."
    )
    yield text.one_line(f"{found.run.path} compared with earlier runs of the same nodes in {found.history}")
    for host, changes in found.changes:
        yield from wrapped(text.one_line(f"{host}: {'; '.join(changes)}"))
    yield ""
    yield from requirement_lines(found.requirements, EARLIER_HEADER)
    count = text.count_text(sum(one.change is not None for one in found.requirements), "interval")
    confidence = percent(found.confidence)
    yield f"{count}, each at {confidence} confidence; in brackets: number of earlier runs of these nodes."
    yield ""
    header = ("VALUE", "PLACE", "NOW", "EARLIER", "RATIO", "INTERVAL", "RESULT")
    ordered = sorted(found.values, key=lambda one: (one.difference == "no difference shown", one.ratio))
    yield from table_lines_of([header, *map(_row, ordered)], shrinking=(0, 1))


def past_json(found: RunBesidePast) -> dict[str, Any]:
    """The comparison as one JSON object."""
    values = [asdict(one) | {"difference": one.difference} for one in found.values]
    return {
        "schema_version": 1, "kind": "history", "confidence": found.confidence, "run": found.run.path,
        "history": found.history, "changes": dict(found.changes),
        "requirements": [requirement_json(one) for one in found.requirements], "values": values,
        "without_past": found.without_past,
    }  # fmt: skip


def _row(one: ValueBesidePast) -> tuple[str, ...]:
    value = one.value
    now, before = (f"{number:.4g} {value.unit}" for number in (value.value, one.past))
    interval = f"{one.low:.3f} … {one.high:.3f}"
    result = digits.ABSENT if one.difference == "no difference shown" else one.difference
    return value.what, one.place, now, f"{before} ({one.runs})", f"{one.ratio:.3f}×", interval, result
