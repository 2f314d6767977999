"""Two runs of one suite: each number with an interval in both, by the row and column that have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddpscale.compare.value_change import Estimate, ValueChange, change_between
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.suites.registry import suite_told
from pytest_ddpscale.suites.results import Column, Rows, cell
from pytest_ddpscale.util.document import text_lines
from pytest_ddpscale.util.listing import count_text

CHANGE, RESULT = Column("change", "Change", "{:+.1%}"), Column("result", "Result")


@dataclass(frozen=True)
class SuiteDiff:
    """Two runs, or two reports of PyTorch's DDP benchmark.

    Attributes:
        table: rows of numbers that both have, each with a name, a result, and the share by which it certainly is worse.
        lost: names of those that only the first one has.
        told: lines above the table.
        more: further content in JSON.
    """

    table: Rows
    lost: Sequence[str]
    told: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def worse_by(self, share: float) -> list[str]:
        """Numbers that certainly are worse by more than `share`."""
        return [row["name"] for row in self.table.rows if row["loss"] > share]

    def lines(self) -> Iterator[str]:
        """How many differ, then each."""
        results = Counter(row["result"] for row in self.table.rows)
        said = ", ".join(f"{number} {result}" for result, number in results.most_common())
        yield f"Of {count_text(len(self.table.rows), self.table.title)}: {said or 'none is in both'}"
        yield from ("", *self.told, *text_lines(self.table.shown("interval")))

    def json(self) -> dict[str, Any]:
        """One JSON object."""
        said = {"schema_version": 2, "kind": "suite", f"{self.table.title}s": self.table.json()}
        return {**said, "lost": self.lost, **self.more}


def is_suite(path: Path) -> bool:
    """Whether a directory is a suite's run."""
    return (path / "suite.json").is_file()


def read_suite_diff(paths: Sequence[Path]) -> SuiteDiff:
    """The comparison of two runs of one suite. Raises BadInput."""
    (suite, a), (other, b) = (suite_told(RunDirectory.open(path)) for path in paths)
    if suite.name != other.name:
        raise OptionError("RUN_DIR", f"found suites {suite.name} and {other.name}", "two runs of one suite")
    before, after = (_numbers(suite.results(one).tables) for one in (a, b))
    rows = [
        {"name": name, "a": cell(one, column.form), "b": cell(after[name][0], column.form)}
        | compared(one, after[name][0], column.better)
        for name, (one, column) in before.items() if name in after
    ]  # fmt: skip
    columns = (Column("name", "Number"), Column("a", "A"), Column("b", "B"), CHANGE, RESULT)
    return SuiteDiff(Rows("comparison", "number", columns, rows), [name for name in before if name not in after])


def _numbers(tables: Sequence[Rows]) -> dict[str, tuple[Found, Column]]:
    """Numbers with an interval, by the names of row and column."""
    return {
        f"{', '.join(cell(row.get(one.key), one.form) for one in rows.columns[: rows.names])}: {column.title}":
        (number, column)
        for rows in tables for row in rows.rows for column in rows.columns
        if isinstance(number := row.get(column.key), Found) and number.interval
    }  # fmt: skip


def compared(a: Found, b: Found, better: int, words: Sequence[str] = ("higher", "lower")) -> dict[str, Any]:
    """The change from `a` to `b` as a share of `a`, with its result in `words`; values may be negative."""
    one, other = (Estimate(value, interval or (value, value)) for value, interval in (a, b))
    by_factors = min(one.interval[0], other.interval[0]) > 0
    scale = 1.0 if by_factors else abs(a.value) or 1.0
    change = ValueChange(*(size / scale for size in change_between(one, other, by_factors=by_factors)))
    return {
        "change": Found(change.size, (change.low, change.high)),
        "loss": {1: -change.high, -1: change.low}.get(better, 0.0),
        "result": words[change.size < 0] if change.is_shown else "no difference shown",
    }
