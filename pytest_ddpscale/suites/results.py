"""What a suite found: rows of named columns. Its table, CSV, JSON and picture follow from them, and so does its report.

A cell is a text, a number, None, or a number with its interval (`Found`).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.report.charts import About, BarRow, Curve, LineAxes, Point, bars, curves
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.words.verdicts import headline_of
from pytest_ddpscale.run.run_json import SITE, TICKET, RunRecord
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.util.document import (
    Block,
    Facts,
    Gallery,
    Headline,
    Line,
    Picture,
    Section,
    Table,
    bullets,
    csv_text,
    table,
    text_lines,
)
from pytest_ddpscale.util.listing import count_text

Row: TypeAlias = Mapping[str, Any]
Form: TypeAlias = str | Callable[[Any], str]


@dataclass(frozen=True)
class Column:
    """A column of rows.

    Attributes:
        key: of its cells in rows, CSV and JSON, which also have the keys without a column.
        title: in the table.
        form: how a number is written.
        above: why a share may be above 100 %, which is said where one is.
        bare: whether the table leaves out its intervals.
        better: 1 if larger is better, -1 if smaller is, which `compare --fail-below` asks; 0 if neither.
    """

    key: str
    title: str
    form: Form = "{:.4g}"
    above: str = ""
    bare: bool = False
    better: int = 0


@dataclass(frozen=True)
class Drawn:
    """How rows are drawn: curves over a number, or bars of texts.

    Attributes:
        x, ys: keys of the horizontal axis, and of the values.
        by: key whose texts have a curve each.
        axes: further attributes of `LineAxes`.
    """

    title: str
    x: str
    ys: tuple[str, ...]
    by: str = ""
    axes: Mapping[str, Any] = field(default_factory=dict)


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

    def ratios_above(self) -> Iterator[str]:
        """Why shares are above 100 %, of each column that has one."""
        for column in self.columns:
            values = [row.get(column.key) or 0 for row in self.rows] if column.above else []
            if any((one.value if isinstance(one, Found) else one) > 1 for one in values):
                yield f"{column.title} above 100 %: {column.above}."

    def shown(self, interval: str) -> Table:
        """The table; `interval` is the title of intervals."""
        titles, cells = list[str](), [list[str]() for _ in self.rows]
        for column in self.columns:
            values = [row.get(column.key) for row in self.rows]
            if any(column.key in row for row in self.rows):
                has_interval = not column.bare and any(isinstance(one, Found) for one in values)
                titles += [column.title, *[interval] * has_interval]
                for row, value in zip(cells, values, strict=True):
                    row += [cell(value, column.form), *[ends(value, column.form)] * has_interval]
        return table(titles, cells, of_numbers=True, names=self.names)

    @property
    def keys(self) -> list[str]:
        """Of all cells: those of the columns first."""
        return [*dict.fromkeys([*(column.key for column in self.columns), *(key for row in self.rows for key in row)])]

    def csv(self) -> str:
        """CSV, with the ends of an interval in columns of their own."""
        titles, lines = list[str](), [list[Any]() for _ in self.rows]
        for key in self.keys:
            values = [row.get(key) for row in self.rows]
            is_found = any(isinstance(one, Found) for one in values)
            titles += [key, *[f"{key}_low", f"{key}_high"] * is_found]
            for line, one in zip(lines, values, strict=True):
                value, interval = one if isinstance(one, Found) else (one, None)
                line += [value, *((interval or (None, None)) if is_found else ())]
        return csv_text(titles, lines)

    def json(self) -> list[dict[str, Any]]:
        """Rows as JSON types."""
        return [{key: json_value(row.get(key)) for key in self.keys} for row in self.rows]

    def picture(self) -> Picture | None:
        """The rows as `drawn`; None if they are too few."""
        told, columns = self.drawn, {column.key: column for column in self.columns}
        if told is None:
            return None
        about, y = About(self.name, told.title), columns[told.ys[0]].title
        drawn = [
            (
                row[told.by] if told.by else columns[key].title, row[told.x],
                row[key] if isinstance(row[key], Found) else Found(row[key], None), bool(row.get("is_missed")),
            )
            for row in self.rows for key in told.ys if row[key] is not None
        ]  # fmt: skip
        if not drawn:
            return None
        if any(isinstance(at, str) for _, at, _, _ in drawn):
            return bars(about, y, [BarRow(at, [(name, max(one.value, 0.0))]) for name, at, one, _ in drawn])
        series, x = dict[str, list[Point]](), columns[told.x]
        for name, at, one, is_missed in sorted(drawn, key=lambda one: one[1]):
            series.setdefault(name, []).append(Point(at, one.value, one.interval, is_missed))
        axes = {"x_is_log": True, "x_name": lambda value: cell(value, x.form), **told.axes}
        return curves(about, LineAxes(x.title, y, **axes), {"": [Curve(*one) for one in series.items()]})


def cell(value: Any, form: Form = "{:.4g}") -> str:
    """A cell as text; a dash for None."""
    if value is None or isinstance(value, str):
        return ABSENT if value is None else value
    number = value.value if isinstance(value, Found) else value
    if callable(form):
        return form(number)
    if isinstance(number, int) and form == Column.form:
        return str(number)
    return form.format(number).replace("-", "−").replace("%", " %")


def ends(value: Any, form: Form = "{:.4g}") -> str:
    """The interval of a cell as text; a dash without one."""
    interval = value.interval if isinstance(value, Found) else None
    return " … ".join(cell(end, form) for end in interval or ()) or ABSENT


def json_value(value: Any) -> Any:
    """A cell in JSON, which has no infinity."""
    if not isinstance(value, Found):
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
        pictures: beside those of the tables; None is left out.
        values: further content of suite.json, as JSON types.
        files: further JSON files for the run directory, by name, such as files for another tool.
    """

    what: str
    findings: Sequence[str] = ()
    tables: Sequence[Rows] = ()
    problems: Sequence[str] = ()
    failures: Sequence[str] = ()
    more: Sequence[Block] = ()
    pictures: Sequence[Picture | None] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """The outcome in one sentence."""
        missing = [f"{count_text(len(self.problems), 'part')} not measured in full"] * bool(self.problems)
        return f"{self.what}: {'; '.join([*(self.findings or ['nothing was measured']), *missing])}"

    @property
    def drawn(self) -> list[Picture]:
        """All pictures."""
        return [one for one in (*(rows.picture() for rows in self.tables), *self.pictures) if one is not None]

    def parts(self, confidence: float) -> list[Block]:
        """All but the answer."""
        interval = f"{100 * confidence:g} % interval"
        parts = [
            Section(one.title, [*map(Line, (*one.notes, *one.ratios_above())), one.shown(interval)])
            for one in self.tables if one.rows and one.title
        ]  # fmt: skip
        return [*parts, *self.more]

    def answer(self, *, is_short: bool = False) -> list[Block]:
        """Headline, and what is not as required or not measured; of an error, if short, its first line."""
        problems = [headline_of(one) if is_short else one for one in self.problems]
        short = ("Not as required", self.failures), ("Not measured", problems)
        return [Headline(self.headline), *(Section(title, [bullets(lines)]) for title, lines in short)]

    def lines(self, confidence: float = 0.95, columns: int | None = None) -> Iterator[str]:
        """Lines for a terminal."""
        headline, *short = self.answer(is_short=True)
        return text_lines(headline, *self.parts(confidence), *short, width=columns)

    def document(self, facts: Facts, confidence: float, drawn: Sequence[Picture]) -> list[Block]:
        """What report.md and report.html say."""
        headline, *short = self.answer()
        first = Section("", [headline, facts, *short], style="first")
        return [first, *self.parts(confidence), Section("Figures", [Gallery(drawn)])]


def facts_of(suite: str, record: RunRecord, gangs: Any, versions: Mapping[str, str]) -> Facts:
    """What was tested, when, where and by whom; empty facts are left out."""
    ranks = ranks_by_host(gangs)
    hosts = ", ".join(f"{host} ({len(ranks[host])})" for host in list(ranks)[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    facts = (
        ("Suite", suite), ("SKU", record.sku), ("Hosts", hosts + more),
        ("Began", f"{record.began:%Y-%m-%d %H:%M} UTC"), ("Notes", "; ".join(record.notes)),
        ("Site", record.noted.get(SITE, "")), ("By", ", ".join(record.operators)),
        ("Ticket", record.noted.get(TICKET, "")), *record.further_notes.items(),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Command", shlex.join(record.argv)),
    )  # fmt: skip
    return Facts([(name, said) for name, said in facts if said])
