"""What a suite found: rows of named columns. Its table, CSV, JSON and picture follow from them, and so does its report.

A cell is a text, a number, None, or a number with its interval (`Estimate`).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

from pytest_ddpscale.judge.stats import Estimate
from pytest_ddpscale.report.charts import About, BarRow, Curve, LineAxes, Point, bars, curves
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.words.verdicts import headline_of
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.util.document import (
    Block,
    Headline,
    Line,
    Picture,
    Section,
    Table,
    bullets,
    csv_text,
    fact_table,
    text_lines,
)
from pytest_ddpscale.util.listing import count_text, first_few

Row: TypeAlias = Mapping[str, Any]
ON_CPU = "on a CPU: says nothing about GPUs"
Form: TypeAlias = str | Callable[[Any], str]


@dataclass(frozen=True)
class Column:
    """A column of rows.

    Attributes:
        key: of its cells in rows, CSV and JSON, which also have the keys without a column.
        title: in the table.
        form: how a number is written.
        better: 1 if larger is better, -1 if smaller is, which `compare --fail-below` asks; 0 if neither.
    """

    key: str
    title: str
    form: Form = "{:.4g}"
    better: int = 0


@dataclass(frozen=True)
class Drawn:
    """How rows are drawn: as curves over a number, or, if `x` is a text, as a bar for each row.

    Attributes:
        x, ys: keys of the horizontal axis, and of the values; of bars, their parts.
        by: key whose texts have a curve each.
        axes: further attributes of `LineAxes`.
        base: where bars begin.
    """

    title: str
    x: str
    ys: tuple[str, ...]
    by: str = ""
    axes: Mapping[str, Any] = field(default_factory=dict)
    base: float = 0.0


@dataclass(frozen=True)
class Rows:
    """Rows of one kind.

    Attributes:
        name: of the CSV file, the picture, and in suite.json.
        names: how many of the first columns name a row.
        notes: said above the table.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    names: int = 1
    notes: Sequence[str] = ()
    drawn: Drawn | None = None

    def named(self, row: Row) -> str:
        """The name of a row."""
        return ", ".join(cell(row.get(column.key), column.form) for column in self.columns[: self.names])

    def shown(self, interval: str) -> Table:
        """The table; `interval` is the title of intervals."""
        filled = [column for column in self.columns if any(column.key in row for row in self.rows)]
        parts = [
            (title, [write(row.get(column.key), column.form) for row in self.rows])
            for column in filled for title, write in ((column.title, cell), (interval, ends))
            if write is cell or any(isinstance(row.get(column.key), Estimate) for row in self.rows)
        ]  # fmt: skip
        rows = zip(*(cells for _, cells in parts), strict=True)
        return Table([title for title, _ in parts], [*rows], names=self.names)

    @cached_property
    def keys(self) -> dict[str, None]:
        """Of the cells of all rows: those of the columns first."""
        return dict.fromkeys((*(column.key for column in self.columns), *chain(*self.rows)))

    def csv(self) -> str:
        """CSV, with the ends of an interval in columns of their own."""
        parts = dict[str, list[Any]]()
        for key in self.keys:
            cells = [as_estimate(row.get(key)) for row in self.rows]
            parts[key] = [estimate.value for estimate in cells]
            if any(isinstance(row.get(key), Estimate) for row in self.rows):
                for end, name in enumerate(("low", "high")):
                    parts[f"{key}_{name}"] = [estimate.interval and estimate.interval[end] for estimate in cells]
        return csv_text(parts, zip(*parts.values(), strict=True))

    def json(self) -> list[dict[str, Any]]:
        """Rows as JSON types."""
        return [{key: json_value(row.get(key)) for key in self.keys} for row in self.rows]

    def picture(self, mark: str = "") -> Picture | None:
        """The rows as `drawn`, with a warning; None if they are too few."""
        form, columns = self.drawn, {column.key: column for column in self.columns}
        if form is None or not self.rows:
            return None
        about, series, x = About(self.name, form.title, mark=mark), dict[str, list[Point]](), columns[form.x]
        ys = [columns[key] for key in form.ys]
        if isinstance(self.rows[0][x.key], str):
            # Noise may make a difference negative, of which no bar can be a part.
            rows, least = list[BarRow](), 0.0 if ys[1:] else -math.inf
            for row in (row for row in self.rows if all(row.get(key) is not None for key in form.ys)):
                parts = [(column.title, max(least, as_estimate(row[column.key]).value - form.base)) for column in ys]
                text = " + ".join(cell(row[column.key], column.form) for column in ys)
                rows.append(
                    BarRow(self.named(row), parts, text, None if ys[1:] else as_estimate(row[form.ys[0]]).interval)
                )
            return bars(about, " + ".join(column.title for column in ys), rows, base=form.base)
        for row in sorted(self.rows, key=lambda row: row[x.key]):
            for key in (key for key in form.ys if row.get(key) is not None):
                name = cell(row[form.by]) if form.by else columns[key].title
                point = Point(row[x.key], *as_estimate(row[key]))
                series.setdefault(name, []).append(point)
        axes = {"x_is_log": True, "x_name": lambda value: cell(value, x.form), **form.axes}
        drawn = {"": [Curve(*one) for one in series.items()]}
        return curves(about, LineAxes(x.title, ys[0].title, **axes), drawn)


def as_estimate(value: Any) -> Estimate:
    """A cell with its interval, if it has one."""
    return value if isinstance(value, Estimate) else Estimate(value, None)


def cell(value: Any, form: Form = "{:.4g}") -> str:
    """A cell as text; a dash for None."""
    number = as_estimate(value).value
    if number is None or isinstance(number, str):
        return ABSENT if number is None else number
    if callable(form):
        return form(number)
    form = "{}" if isinstance(number, int) and form == Column.form else form
    return form.format(number).replace("-", "−").replace("%", " %")


def ends(value: Any, form: Form = "{:.4g}") -> str:
    """The interval of a cell as text; a dash without one."""
    return " … ".join(cell(end, form) for end in as_estimate(value).interval or ()) or ABSENT


def cell_with_ends(value: Any, form: Form = "{:.4g}") -> str:
    """A cell with its interval, if it has one, in brackets."""
    limits = f" ({ends(value, form)})" if as_estimate(value).interval else ""
    return cell(value, form) + limits


def json_value(value: Any) -> Any:
    """A cell in JSON, which has no infinity."""
    if not isinstance(value, Estimate):
        return value
    interval = value.interval and [end if math.isfinite(end) else None for end in value.interval]
    return {"value": value.value, "interval": interval}


@dataclass(frozen=True)
class Results:
    """Results of a suite.

    Attributes:
        what: was measured; begins the headline.
        findings: at most three clauses, which end it.
        problems: what could not be measured and why, one sentence each. The command then exits with 1.
        failures: measured values that miss a requirement or are undecided. The command then exits with 1.
        more: further parts of the report, such as another tool's lines.
        pictures: of rows that are only drawn.
        files: further JSON files for the run directory, by name, such as files for another tool.
        mark: a warning on each picture.
    """

    what: str
    findings: Sequence[str] = ()
    tables: Sequence[Rows] = ()
    problems: Sequence[str] = ()
    failures: Sequence[str] = ()
    more: Sequence[Block] = ()
    pictures: Sequence[Rows] = ()
    files: Mapping[str, Any] = field(default_factory=dict)
    mark: str = ""

    @property
    def headline(self) -> str:
        """The outcome in one sentence."""
        missing = [f"{count_text(len(self.problems), 'part')} not measured in full"] * bool(self.problems)
        return f"{self.what}: {'; '.join([*(self.findings or ['nothing was measured']), *missing])}"

    @cached_property
    def drawn(self) -> list[Picture]:
        """All pictures."""
        pictures = (rows.picture(self.mark) for rows in (*self.tables, *self.pictures))
        return [picture for picture in pictures if picture is not None]

    def blocks(self, confidence: float, facts: Table | None = None) -> list[Block]:
        """What a terminal shows, of an error its first line; with facts, what report.md and report.html say."""
        interval = f"{100 * confidence:g} % interval"
        parts = [
            Section(table.title, [*map(Line, table.notes), table.shown(interval)])
            for table in self.tables if table.rows and table.title
        ]  # fmt: skip
        problems = self.problems if facts else [headline_of(problem) for problem in self.problems]
        wrong = (Section("Not as required", [bullets(self.failures)]), Section("Not measured", [bullets(problems)]))
        headline, figures = Headline(self.headline), Section("Figures", self.drawn)
        if facts is None:
            return [headline, *parts, *self.more, *wrong]
        return [Section("", [headline, facts, *wrong], style="first"), *parts, *self.more, figures]

    def lines(self, confidence: float = 0.95, columns: int | None = None) -> Iterator[str]:
        """Lines for a terminal."""
        return text_lines(*self.blocks(confidence), width=columns)


def facts_of(suite: str, record: RunRecord, gangs: Any, versions: Mapping[str, str]) -> Table:
    """What was tested, when, where and by whom; empty facts are left out."""
    hosts = [f"{host} ({len(ranks)})" for host, ranks in ranks_by_host(gangs).items()]
    facts = {
        "Suite": suite, "SKU": record.sku, "Hosts": first_few(hosts, 8), "Began": f"{record.began:%Y-%m-%d %H:%M} UTC",
        **{name.capitalize(): text for name, text in record.noted.items()},
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Command": shlex.join(record.argv),
    }  # fmt: skip
    return fact_table([fact for fact in facts.items() if fact[1]])
