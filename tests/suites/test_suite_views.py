"""A suite's report says the same as text, Markdown and HTML, and what is from outside stays text."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.report.charts import About
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable, grouped_bars
from pytest_ddpscale.suites.suite_views import document, report_lines
from pytest_ddpscale.util.document import html, markdown
from tests.suites.run_records import SUITE

PICTURE = grouped_bars(About("a", "A <picture>"), "ms", ["1"], {"time": [2.0]})
SIZES = SuiteTable(("size", "img/s"), [("1 MiB", "12.5"), ("25 | MiB", "13")], "By size")
REPORT = SuiteReport(
    "2 of 3 were measured",
    [SuiteSection("Sizes <script>", ["plain | words"], [SIZES], ["   aligned\ncolumn"], [PICTURE, None])],
    ["resnet50: it broke"],
)


def html_of(report: SuiteReport) -> str:
    return html(*document("sizes", report, SUITE))


def markdown_of(report: SuiteReport) -> str:
    return markdown(*document("sizes", report, SUITE))


def test_text_fits_a_narrow_terminal_and_tables_lose_nothing() -> None:
    settings = SuiteTable(
        ("setting", "throughput", "note"), [("bucket_cap_mb=5", "1.043×", ""), ("b", "1×", "x " * 20)]
    )
    report = SuiteReport(
        "so many words " * 9, [SuiteSection("All", ["a sentence " * 12], [settings])], ["it broke " * 9]
    )
    lines = list(report_lines(report, 40))
    assert max(map(len, lines)) <= 40 + len("  note: ")
    assert lines[lines.index("bucket_cap_mb=5") :][:4] == [
        "bucket_cap_mb=5",
        "  throughput: 1.043×",
        "b",
        "  throughput: 1×",
    ]
    assert " ".join(lines).count("so many words") == 9
    assert len(list(report_lines(report))) < len(lines), "in a pipe a sentence is a line"


def test_markdown_escapes_what_would_be_marks() -> None:
    page = markdown_of(REPORT)
    assert "## Sizes &lt;script&gt;" in page
    assert "| 25 \\| MiB | 13 |" in page
    assert "\n   aligned\ncolumn\n" in page
    assert "- resnet50: it broke" in page


def test_html_has_figures_and_nothing_from_outside_is_markup() -> None:
    page = html_of(REPORT)
    assert "Sizes &lt;script&gt;" in page
    assert page.count('<img alt="A &lt;picture&gt;: 1, time, 2" src="data:image/svg+xml;base64,') == 1
    assert "   aligned\ncolumn" in page
    assert "<script>" not in page
    assert "&lt;b&gt;" in page


def test_what_is_not_as_required_is_told_before_what_was_not_measured() -> None:
    report = replace(REPORT, failures=["broadcast <1 KiB> gave wrong results"])
    *_, title, _, failure, _, _, _, problem = report_lines(report)
    assert (title, failure, problem) == (
        "Not as required", "- broadcast <1 KiB> gave wrong results", "- resnet50: it broke"
    )  # fmt: skip
    page = markdown_of(report)
    assert page.index("## Not as required\n\n- broadcast &lt;1 KiB&gt; gave") < page.index("## Not measured")
    assert "<li>broadcast &lt;1 KiB&gt; gave wrong results</li>" in html_of(report)
    assert "Not as required" not in html_of(REPORT)


def test_of_an_error_the_terminal_has_the_first_line_and_the_reports_all() -> None:
    report = replace(REPORT, problems=["batch 32: rank 0 failed: CUDA error\nlast lines of its NCCL log:\n  x"])
    assert list(report_lines(report))[-1] == "- batch 32: rank 0 failed: CUDA error"
    for page in (markdown_of(report), html_of(report)):
        assert "last lines of its NCCL log:" in page
