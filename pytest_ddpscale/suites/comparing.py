"""Two runs of one suite: each number with an interval in both, by the row and column that have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddpscale.compare.value_change import Estimate, ValueChange, change_between
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.suites.engine import suite_told
from pytest_ddpscale.suites.results import Column, Results, Rows, cell
from pytest_ddpscale.util.document import Section, bullets, text_lines
from pytest_ddpscale.util.listing import count_text


@dataclass(frozen=True)
class SuiteDiff:
    """Rows of numbers that both have, and names of those that only the first one has; `told` is said above."""

    table: Rows
    lost: Sequence[str]
    kind: str
    told: Sequence[str]

    def worse_by(self, share: float) -> list[str]:
        """Numbers that certainly are worse by more than `share`."""
        return [row["name"] for row in self.table.rows if row["loss"] > share]

    def lines(self) -> Iterator[str]:
        """How many differ, then each."""
        results = Counter(row["result"] for row in self.table.rows)
        said = ", ".join(f"{number} {result}" for result, number in results.most_common())
        yield f"Of {count_text(len(self.table.rows), 'number')} in both: {said}"
        lost = Section("Only in A", [bullets(self.lost)])
        yield from ("", *self.told, *text_lines(self.table.shown("interval"), lost))

    def json(self) -> dict[str, Any]:
        """One JSON object."""
        return {"schema_version": 2, "kind": self.kind, "numbers": self.table.json()}


def is_suite(path: Path) -> bool:
    """Whether a directory is a suite's run."""
    return (path / "suite.json").is_file()


def read_suite_diff(paths: Sequence[Path]) -> SuiteDiff:
    """The comparison of two runs of one suite. Raises BadInput."""
    a, b = (suite_told(RunDirectory.open(path)) for path in paths)
    return diff_of(*(suite.results(measured) for suite, measured in (a, b)))


def diff_of(a: Results, b: Results, *, kind: str = "suite", told: Sequence[str] = ()) -> SuiteDiff:
    """Each number that has an interval in both, by the names of its row and column.

    Its change is a share of the first, and so is its loss, by which it certainly is worse; values may be negative. A
    number is lost if the second has none, or none with an interval where the first has one.
    """
    before, after = (
        {
            f"{rows.named(row)}: {column.title}": (column, number)
            for rows in results.tables for row in rows.rows for column in rows.columns
            if isinstance(number := row.get(column.key), Found)
        }
        for results in (a, b)
    )  # fmt: skip
    rows, lost = list[dict[str, Any]](), list[str]()
    for name, (column, one) in before.items():
        _, other = after.get(name, (column, None))
        if not (other and one.interval and other.interval):
            lost += [name] * bool(one.interval or not other)
            continue
        by_factors = min(one.interval[0], other.interval[0]) > 0
        scale = 1.0 if by_factors else abs(one.value) or 1.0
        estimates = Estimate(one.value, one.interval), Estimate(other.value, other.interval)
        change = ValueChange(*(size / scale for size in change_between(*estimates, by_factors=by_factors)))
        direction = "higher" if change.size > 0 else "lower"
        rows.append({
            "name": name, "a": cell(one.value, column.form), "b": cell(other.value, column.form),
            "change": Found(change.size, (change.low, change.high)),
            "loss": {1: -change.high, -1: change.low}.get(column.better, 0.0),
            "result": direction if change.is_shown else "no difference shown",
        })  # fmt: skip
    names, others = ({rows.named(row): None for rows in one.tables for row in rows.rows} for one in (a, b))
    # A row without any interval, such as a size of whole runs, is lost as well.
    lost += [name for name in names if name not in others and not any(one.startswith(f"{name}: ") for one in lost)]
    if not rows:
        raise OptionError("RUN_DIR", "found no number that has an interval in both", "two runs of one suite")
    columns = (Column("name", "Number"), Column("a", "A"), Column("b", "B"), Column("change", "Change", "{:+.1%}"),
               Column("result", "Result"))  # fmt: skip
    return SuiteDiff(Rows("comparison", "", columns, rows), lost, kind, told)
