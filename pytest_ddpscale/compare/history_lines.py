"""A run beside the site's history, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from pytest_ddpscale.compare.against_history import RunBesidePast, ValueBesidePast
from pytest_ddpscale.compare.compare_text import table_lines_of
from pytest_ddpscale.report import text
from pytest_ddpscale.results.strict_json import strict_json


def past_lines(found: RunBesidePast, fail_below: float | None) -> Iterator[str]:
    """Changes of the software, each value beside its past, and what it comes to."""
    yield text.one_line(f"{found.run.path} beside earlier runs of the same places in {found.history}")
    for host, changes in found.changes:
        yield text.one_line(f"{host}: {'; '.join(changes)}")
    yield ""
    header = ("VALUE", "PLACE", "NOW", "EARLIER", "RATIO", "INTERVAL", "RESULT")
    ordered = sorted(found.values, key=lambda one: (one.difference == "no difference shown", one.ratio))
    yield from table_lines_of([header, *map(_row, ordered)])
    yield ""
    slower = sum(one.difference == "slower" for one in found.values)
    faster = sum(one.difference == "faster" for one in found.values)
    yield (
        f"{slower} of {text.count_text(len(found.values), 'value')} slower than before, {faster} faster, all intervals "
        f"together at {found.confidence:.0%}; {found.without_past} have too few earlier runs."
    )
    if fail_below is not None:
        failed, limit = found.slower_by(fail_below), f"{100 * fail_below:g} %"
        yield (
            f"FAIL: slower by more than {limit}: {text.count_text(len(failed), 'value')}"
            if failed
            else f"No value is shown to be slower by more than {limit}."
        )


def past_json(found: RunBesidePast, fail_below: float | None) -> str:
    """One JSON object."""
    values = [asdict(one) | {"difference": one.difference} for one in found.values]
    return strict_json(
        {
            "schema_version": 1, "kind": "history", "confidence": found.confidence, "run": found.run.path,
            "history": found.history, "changes": dict(found.changes), "values": values,
            "without_past": found.without_past, "fail_below": fail_below,
            "slower": len(found.slower_by(fail_below)) if fail_below is not None else 0,
        }
    )  # fmt: skip


def _row(one: ValueBesidePast) -> tuple[str, ...]:
    value = one.value
    place = value.host if value.gpu_index is None else f"GPU {value.gpu_index} of {value.host}"
    what = f"{value.metric} {value.subject} {value.arm}@{value.world_size}"
    now, before = (f"{number:.4g} {value.unit}" for number in (value.value, one.past))
    interval = f"{one.low:.3f} … {one.high:.3f}"
    return what, place, now, f"{before} ({one.runs})", f"{one.ratio:.3f}×", interval, one.difference
