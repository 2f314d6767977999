"""What a suite has to say, before it is a page, a text or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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
        listings: text that keeps its lines: another tool's form, settings to paste.
        figures: of `pytest_ddpscale.report.svg_axes.svg`.
    """

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[SuiteTable] = ()
    listings: Sequence[str] = ()
    figures: Sequence[str] = ()


@dataclass(frozen=True)
class SuiteReport:
    """All that a suite found.

    Attributes:
        headline: the outcome in one sentence.
        problems: what could not be measured, and why: one sentence each. The command then exits 1.
        values: the same for programs, of JSON types: suite.json.
    """

    headline: str
    sections: Sequence[SuiteSection]
    problems: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
