"""Content of a suite's report, independent of its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.report.charts import About, BarRow, bars
from pytest_ddpscale.util.document import Picture


@dataclass(frozen=True)
class SuiteTable:
    """A table of texts; the first column names the row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class SuiteSection:
    """One part of a report.

    Attributes:
        paragraphs: of plain text.
        listings: preformatted text, such as another tool's output or settings to export.
        figures: None is left out.
    """

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[SuiteTable] = ()
    listings: Sequence[str] = ()
    figures: Sequence[Picture | None] = ()


@dataclass(frozen=True)
class SuiteReport:
    """Results of a suite.

    Attributes:
        headline: the outcome in one sentence.
        problems: what could not be measured and why, one sentence each. The command then exits with 1.
        values: content of suite.json, as JSON types.
        files: further JSON files for the run directory, by name, such as files for another tool.
        failures: measured values that miss a requirement or are undecided. The command then exits with 1.
    """

    headline: str
    sections: Sequence[SuiteSection]
    problems: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    failures: Sequence[str] = ()


def grouped_bars(
    about: About, x: str, cells: Sequence[str], series: Mapping[str, Sequence[Found | float | None]]
) -> Picture | None:
    """A bar of each series for each named cell, from above; `x` is the title of the values, with their unit."""
    rows = []
    for at, cell in enumerate(cells):
        for name, values in series.items():
            one = values[at]
            value = one.value if isinstance(one, Found) else one
            if value is not None:
                rows.append(BarRow(cell, [(name, max(value, 0.0))]))
    return bars(about, x, rows)
