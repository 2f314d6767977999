"""Two runs of one suite: each number with an interval in both, by the row and column that have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddpscale.compare.value_change import Estimate, change_between
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.suites.engine import suite_told
from pytest_ddpscale.suites.registry import suite_of
from pytest_ddpscale.suites.results import Column, Rows, cell
from pytest_ddpscale.util.document import text_lines
from pytest_ddpscale.util.listing import count_text


@dataclass(frozen=True)
class SuiteDiff:
    """Rows of numbers that both have, and names of those that only the first one has."""

    table: Rows
    lost: Sequence[str]

    def worse_by(self, share: float) -> list[str]:
        """Numbers that certainly are worse by more than `share`."""
        return [row["name"] for row in self.table.rows if row["better"] and row["loss"] > share]

    def lines(self) -> Iterator[str]:
        """How many differ, then each."""
        differ = sum(row["result"] != "no difference shown" for row in self.table.rows)
        yield f"{differ} of {count_text(len(self.table.rows), 'number')} differ"
        yield from ("", *text_lines(self.table.shown("interval")))

    def json(self) -> dict[str, Any]:
        """One JSON object."""
        return {"schema_version": 1, "kind": "suite", "numbers": self.table.json(), "lost": list(self.lost)}


def is_suite(path: Path) -> bool:
    """Whether a directory is a suite's run."""
    return (path / "suite.json").is_file()


def read_suite_diff(paths: Sequence[Path]) -> SuiteDiff:
    """The comparison of two runs of one suite. Raises BadInput."""
    (suite, a), (other, b) = (suite_told(RunDirectory.open(path), suite_of) for path in paths)
    if suite.name != other.name:
        raise OptionError("RUN_DIR", f"found suites {suite.name} and {other.name}", "two runs of one suite")
    rows, lost = list[dict[str, Any]](), list[str]()
    for one, another in zip(suite.results(a).tables, other.results(b).tables, strict=True):
        there = {_name(another, row): row for row in another.rows}
        for row in one.rows:
            name = _name(one, row)
            for column in one.columns:
                value, now = (of.get(column.key) for of in (row, there.get(name, {})))
                title = f"{name}: {column.title}"
                if not isinstance(value, Found) or value.interval is None:
                    continue
                if isinstance(now, Found) and now.interval is not None:
                    rows.append({"name": title, **_change(value, now, column)})
                else:
                    lost.append(title)
    columns = [Column("name", "Number"), Column("a", "A"), Column("b", "B"), Column("change", "Change", "{:+.1%}"),
               Column("result", "Result")]  # fmt: skip
    return SuiteDiff(Rows("comparison", "", columns, rows), lost)


def _name(rows: Rows, row: Any) -> str:
    return ", ".join(cell(row.get(column.key), column.form) for column in rows.columns[: rows.names])


def _change(a: Found, b: Found, column: Column) -> dict[str, Any]:
    """Of b over a, or in the unit of both where a value may be negative."""
    (low_a, high_a), (low_b, high_b) = a.interval or (a.value,) * 2, b.interval or (b.value,) * 2
    found = change_between(
        Estimate(a.value, (low_a, high_a)), Estimate(b.value, (low_b, high_b)), by_factors=min(low_a, low_b) > 0
    )
    change = Found(found.size, (found.low, found.high))
    return {
        "a": cell(a, column.form), "b": cell(b, column.form), "change": change, "better": column.better,
        "loss": -found.high if column.better > 0 else found.low,
        "result": "no difference shown" if not found.is_shown else "higher" if found.size > 0 else "lower",
    }  # fmt: skip
