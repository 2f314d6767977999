"""Two runs of one suite: each number with an interval in both, by the row and column that have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddpscale.compare.value_change import ValueChange, ValueInterval, change_between
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.stats import Estimate
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.suites.engine import recorded_suite
from pytest_ddpscale.suites.results import Column, Results, Rows, cell
from pytest_ddpscale.util.document import Section, bullets, text_lines
from pytest_ddpscale.util.listing import count_text


@dataclass(frozen=True)
class SuiteDiff:
    """Rows of numbers that both have, and names of those that only the first one has; `notes` is said above."""

    table: Rows
    lost: Sequence[str]
    kind: str
    notes: Sequence[str]

    def worse_by(self, share: float) -> list[str]:
        """Numbers that certainly are worse by more than `share`."""
        return [row["name"] for row in self.table.rows if row["loss"] > share]

    def lines(self) -> Iterator[str]:
        """How many differ, then each."""
        results = Counter(row["result"] for row in self.table.rows)
        counts = ", ".join(f"{number} {result}" for result, number in results.most_common())
        yield f"Of {count_text(len(self.table.rows), 'number')} in both: {counts}"
        lost = Section("Only in A", [bullets(self.lost)])
        yield from ("", *self.notes, *text_lines(self.table.shown("interval"), lost))

    def json(self) -> dict[str, Any]:
        """One JSON object."""
        return {"schema_version": 2, "kind": self.kind, "numbers": self.table.json()}


def is_suite(path: Path) -> bool:
    """Whether a directory is a suite's run."""
    return (path / "suite.json").is_file()


def read_suite_diff(paths: Sequence[Path]) -> SuiteDiff:
    """The comparison of two runs of one suite. Raises BadInput."""
    a, b = (recorded_suite(RunDirectory.open(path)) for path in paths)
    return diff_of(*(suite.results(measured) for suite, measured in (a, b)))


def diff_of(a: Results, b: Results, *, kind: str = "suite", notes: Sequence[str] = ()) -> SuiteDiff:
    """Each number that has an interval in both, by the names of its row and column.

    Its change is a share of the first, and so is its loss, by which it certainly is worse; values may be negative. A
    number is lost if the second has none, or none with an interval where the first has one.
    """
    before, after = (
        {
            f"{rows.named(row)}: {column.title}": (column, number)
            for rows in results.tables for row in rows.rows for column in rows.columns
            if isinstance(number := row.get(column.key), Estimate)
        }
        for results in (a, b)
    )  # fmt: skip
    rows, lost = list[dict[str, Any]](), list[str]()
    for name, (column, row) in before.items():
        _, other = after.get(name, (column, None))
        if not (other and row.interval and other.interval):
            lost += [name] * bool(row.interval or not other)
            continue
        by_factors = min(row.interval[0], other.interval[0]) > 0
        scale = 1.0 if by_factors else abs(row.value) or 1.0
        estimates = ValueInterval(row.value, row.interval), ValueInterval(other.value, other.interval)
        change = ValueChange(*(size / scale for size in change_between(*estimates, by_factors=by_factors)))
        direction = "higher" if change.size > 0 else "lower"
        rows.append({
            "name": name, "a": cell(row.value, column.form), "b": cell(other.value, column.form),
            "change": Estimate(change.size, (change.low, change.high)),
            "loss": {1: -change.high, -1: change.low}.get(column.better, 0.0),
            "result": direction if change.is_shown else "no difference shown",
        })  # fmt: skip
    names, others = ({rows.named(row): None for rows in results.tables for row in rows.rows} for results in (a, b))
    # A row without any interval, such as a size of whole runs, is lost as well.
    lost += [name for name in names if name not in others and not any(line.startswith(f"{name}: ") for line in lost)]
    if not rows:
        raise OptionError("RUN_DIR", "found no number that has an interval in both", "two runs of one suite")
    columns = (Column("name", "Number"), Column("a", "A"), Column("b", "B"), Column("change", "Change", "{:+.1%}"),
               Column("result", "Result"))  # fmt: skip
    return SuiteDiff(Rows("comparison", "", columns, rows), lost, kind, notes)
