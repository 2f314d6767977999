"""A suite's report says the same as text, Markdown and HTML, and what is from outside stays text."""

from __future__ import annotations

import msgspec

from pytest_ddpscale.report.svg_axes import svg
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable
from pytest_ddpscale.suites.suite_views import html_of, markdown_of, text_lines
from tests.suites.run_records import SUITE_RECORD

REPORT = SuiteReport(
    "2 of 3 were measured",
    [
        SuiteSection(
            "Sizes <script>",
            ["plain | words"],
            [SuiteTable(("size", "img/s"), [("1 MiB", "12.5"), ("25 | MiB", "13")], "By size")],
            ["   aligned\ncolumn"],
            [svg("a", "A picture", "what it shows", 10, 10, "")],
        )
    ],
    ["resnet50: it broke"],
)


def test_text_keeps_columns_and_says_what_is_missing() -> None:
    lines = list(text_lines(REPORT))
    assert lines[0] == "2 of 3 were measured"
    assert lines[lines.index("By size") + 1 :][:3] == ["size      img/s", "1 MiB      12.5", "25 | MiB     13"]
    assert "   aligned" in lines
    assert lines[-1] == "not measured: resnet50: it broke"


def test_markdown_escapes_what_would_be_marks() -> None:
    page = markdown_of("sizes", REPORT, SUITE_RECORD)
    assert "## Sizes \\<script\\>" in page
    assert "| 25 \\| MiB | 13 |" in page
    assert "\n   aligned\ncolumn\n" in page
    assert "- resnet50: it broke" in page


def test_html_is_one_page_with_figures_and_no_script_from_outside() -> None:
    page = html_of("sizes", REPORT, SUITE_RECORD)
    assert "Sizes &lt;script&gt;" in page
    assert "<svg" in page
    assert "   aligned\ncolumn" in page
    assert page.count("<script>") == 1
    assert "&lt;b&gt;" in page


def test_a_record_of_a_run_that_never_began_is_told_too() -> None:
    assert "Hosts" not in markdown_of("sizes", REPORT, msgspec.structs.replace(SUITE_RECORD, hosts=()))
