"""Differences between facts that benchmarks/oracle.py stored and those it finds, without those that are retired."""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oracle_facts import Facts


class Retired:
    """Lines of retired.txt: what differences they skipped."""

    def __init__(self, file: Path) -> None:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self._patterns = [line.split("  ")[0] for line in lines if line and not line.startswith("#")]
        # Names of requirements have brackets, so that only * and ? are special.
        self._expressions = [re.compile(fnmatch.translate(one.replace("[", "[[]"))) for one in self._patterns]
        self._skipped = [0] * len(self._patterns)

    def __contains__(self, difference: str) -> bool:
        for number, expression in enumerate(self._expressions):
            if expression.match(difference):
                self._skipped[number] += 1
                return True
        return False

    def said(self, *, is_idle_said: bool) -> Iterator[str]:
        """How many differences were skipped, and which patterns skip nothing."""
        if any(self._skipped):
            yield f"{sum(self._skipped)} differences skipped: retired"
        for pattern, skipped in zip(self._patterns, self._skipped, strict=True):
            if is_idle_said and not skipped:
                yield f"retired.txt: {pattern} skips nothing"


def fact_differences(before: Mapping[str, Facts], after: Mapping[str, Facts], retired: Retired) -> list[str]:
    """A line for each change, outcomes first, with the runs and facts where it is the same."""
    lines = [f"{run}: no facts are stored; --store --only {run} stores them" for run in after if run not in before]
    places: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for run in sorted({*before} & {*after}):
        for fact in sorted({*before[run], *after[run]}):
            sides = [facts[run].get(fact) for facts in (before, after)]
            is_in_both = None not in sides
            old, new = (dict(_flat(side)) if is_in_both else _whole(side) for side in sides)
            for field in sorted({*old, *new}):
                was, now = (side.get(field, "(absent)") for side in (old, new))
                if not _is_same(was, now) and f"{run} {fact} {field}".rstrip() not in retired:
                    places[field, str(was), str(now)].append(f"{run} {fact}")
    for (field, was, now), changed in sorted(places.items(), key=lambda change: change[0][0] not in ("", "outcome")):
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        lines.append(f"{', '.join(changed[:3])}{more}: {field}: {was} → {now}".replace(": : ", ": "))
    return lines


def _is_same(was: Any, now: Any) -> bool:
    """Whether it is equal, as numbers within one unit of the sixth digit."""
    if isinstance(was, float) and isinstance(now, float):
        return math.isclose(was, now, rel_tol=1.01e-5, abs_tol=1e-12)
    return (type(was), was) == (type(now), now)


def _whole(fact: Mapping[str, Any] | None) -> dict[str, str]:
    """A fact that only one side has."""
    return {"": "(absent)" if fact is None else fact.get("outcome", "(present)")}


def _flat(said: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path; a list of words is a set."""
    if isinstance(said, list) and all(isinstance(one, str) for one in said):
        said = dict.fromkeys(said, True)
    if isinstance(said, dict | list) and said:
        for key, value in said.items() if isinstance(said, dict) else enumerate(said):
            yield from _flat(value, f"{path} {key}".lstrip())
    else:
        yield path, said


def text_differences(before: Mapping[str, str], after: Mapping[str, str], retired: Retired) -> list[str]:
    """Unified differences of the texts, with a name such as ``recorded-cpu.report.md``."""
    lines: list[str] = []
    for name in sorted({*before, *after}):
        was, now = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        if was != now and name not in retired:
            lines += difflib.unified_diff(was, now, f"{name} before", f"{name} after", lineterm="", n=1)
    return lines
