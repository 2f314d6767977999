"""A suite's report as a document: on the terminal, report.md and report.html."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_ddpscale.report.words.verdicts import headline_of
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import SITE, TICKET
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.suites.suite import MeasuredSuite
from pytest_ddpscale.suites.suite_report import SuiteReport
from pytest_ddpscale.util.atomic_writing import write_atomically
from pytest_ddpscale.util.document import (
    Block,
    Facts,
    Gallery,
    Headline,
    Line,
    Listing,
    Section,
    bullets,
    html_page,
    markdown_page,
    table,
    text_lines,
)

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
    blocks = document(suite, report, measured)
    write_atomically(run.path / "report.md", markdown_page(blocks))
    write_atomically(run.path / "report.html", html_page(report.headline, blocks))


def print_report(report: SuiteReport) -> None:
    """Print a report as wide as the terminal; in a pipe, each paragraph is one line."""
    for line in report_lines(report, shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        print(line)


def report_lines(report: SuiteReport, columns: int | None = None) -> Iterator[str]:
    """Lines for a terminal: of an error its first line, which report.md has in full."""
    problems = [headline_of(problem) for problem in report.problems]
    headline, *short = _answer(replace(report, problems=problems))
    return text_lines(headline, *_sections(report), *short, width=columns)


def document(suite: str, report: SuiteReport, measured: MeasuredSuite) -> list[Block]:
    """What report.md and report.html say."""
    headline, *short = _answer(report)
    return [Section("", [headline, Facts(_facts(suite, measured)), *short], style="first"), *_sections(report)]


def _answer(report: SuiteReport) -> list[Block]:
    short = ("Not as required", report.failures), ("Not measured", report.problems)
    return [Headline(report.headline), *(Section(title, [bullets(lines)]) for title, lines in short)]


def _sections(report: SuiteReport) -> Iterator[Section]:
    for one in report.sections:
        tables = [table(told.columns, told.rows, of_numbers=True, caption=told.title) for told in one.tables]
        gallery = Gallery([*filter(None, one.figures)])
        yield Section(one.title, [*map(Line, one.paragraphs), gallery, *tables, *map(Listing, one.listings)])


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
