"""A suite's report as text, report.md and report.html. Import it only to render: it imports jinja2."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

from markupsafe import Markup, escape

from pytest_ddpscale.report.html_page import page_template, printable
from pytest_ddpscale.report.text import headline_of
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import SITE, TICKET
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.suites.suite import MeasuredSuite
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteTable
from pytest_ddpscale.util.atomic_writing import write_atomically
from pytest_ddpscale.util.tables import Table, html, is_wider_than, markdown, markdown_lines, table
from pytest_ddpscale.util.tables import text_lines as table_lines

SUITE_SCHEMA_VERSION = 1


def write_suite_reports(run: RunDirectory, suite: str, report: SuiteReport, measured: MeasuredSuite) -> None:
    """Write suite.json, the suite's own files, report.md and report.html into the run directory.

    Raises:
        OSError: a file cannot be written.
    """
    values = {
        "schema_version": SUITE_SCHEMA_VERSION, "suite": suite, "headline": report.headline,
        "problems": list(report.problems), "failures": list(report.failures), "confidence": measured.confidence,
        **report.values,
    }  # fmt: skip
    run.write_json(run.suite_json, values)
    for name, content in report.files.items():
        run.write_json(run.path / name, content)
    write_atomically(run.path / "report.md", markdown_of(suite, report, measured))
    write_atomically(run.path / "report.html", html_of(suite, report, measured))


def print_report(report: SuiteReport) -> None:
    """Print a report as wide as the terminal; in a pipe, each paragraph is one line."""
    for line in text_lines(report, shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize):
        print(line)


def text_lines(report: SuiteReport, columns: int = sys.maxsize) -> Iterator[str]:
    """Lines for a terminal of `columns` characters; listings keep their width."""

    def wrapped(sentence: str) -> list[str]:
        return textwrap.wrap(sentence, columns, break_long_words=False, break_on_hyphens=False)

    yield from wrapped(report.headline)
    for section in report.sections:
        yield from ("", section.title, "-" * len(section.title))
        for paragraph in section.paragraphs:
            yield from wrapped(paragraph)
        for one in section.tables:
            yield from ("", *([one.title] if one.title else []), *_aligned(one, columns))
        for listing in section.listings:
            yield from ("", *listing.splitlines())
    for failure in report.failures:
        yield from wrapped(f"not as required: {failure}")
    for problem in report.problems:
        yield from wrapped(f"not measured: {headline_of(problem)}")  # report.md has the details of an error


def _aligned(said: SuiteTable, columns: int) -> Iterator[str]:
    """A table with the first column left-aligned and the others right; if it is too wide, one line for each cell."""
    told = _table(said)
    if not is_wider_than(told, columns):
        yield from table_lines(told)
        return
    for name, *cells in said.rows:
        yield name
        named = zip(said.columns[1:], cells, strict=True)
        yield from (f"  {title}: {cell}" for title, cell in named if cell.strip("—"))


def _table(said: SuiteTable) -> Table:
    return table(said.columns, said.rows, of_numbers=True)


def markdown_of(suite: str, report: SuiteReport, measured: MeasuredSuite) -> str:
    """A suite's report.md, for a ticket."""
    lines = [
        f"# {markdown(report.headline)}",
        "",
        *(f"- {markdown(name)}: {markdown(said)}" for name, said in _facts(suite, measured)),
    ]
    for section in report.sections:
        lines += ["", f"## {markdown(section.title)}"]
        for paragraph in section.paragraphs:
            lines += ["", markdown(paragraph)]
        for one in section.tables:
            lines += ["", *([f"{markdown(one.title)}:", ""] if one.title else [])]
            lines += markdown_lines(_table(one))
        for listing in section.listings:
            lines += ["", "```text", listing.replace("```", "'''").rstrip("\n"), "```"]
    if report.failures:
        lines += ["", "## Not as required", "", *(f"- {markdown(failure)}" for failure in report.failures)]
    if report.problems:
        lines += ["", "## Not measured", "", *(f"- {markdown(problem)}" for problem in report.problems)]
    return "\n".join(lines) + "\n"


def html_of(suite: str, report: SuiteReport, measured: MeasuredSuite) -> str:
    """A suite's report.html: one self-contained page."""
    sections = [
        {
            "section": one,
            "figures": [figure for figure in one.figures if figure],
            "tables": [
                Markup(html(_table(told), told.title or one.title))  # noqa: S704 (escaped within)
                for told in one.tables
            ],
            "listings": [escape(printable(listing)) for listing in one.listings],
        }
        for one in report.sections
    ]
    return page_template("suite.html.j2").render(report=report, facts=_facts(suite, measured), sections=sections)


def _facts(suite: str, measured: MeasuredSuite) -> Sequence[tuple[str, str]]:
    """What was tested, when, where and by whom; empty facts are left out."""
    record, ranks = measured.record, ranks_by_host(measured.evidence.gangs)
    hosts = ", ".join(f"{host} ({len(ranks[host])})" for host in list(ranks)[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    versions = ", ".join(f"{name} {version}" for name, version in measured.versions.items())
    facts = (
        ("Suite", suite), ("SKU", record.sku), ("Hosts", hosts + more),
        ("Began", f"{record.began:%Y-%m-%d %H:%M} UTC"), ("Notes", "; ".join(record.notes)),
        ("Site", record.noted.get(SITE, "")), ("By", ", ".join(record.operators)),
        ("Ticket", record.noted.get(TICKET, "")), *record.further_notes.items(), ("Versions", versions),
        ("Command", shlex.join(record.argv)),
    )  # fmt: skip
    return [(name, said) for name, said in facts if said]
