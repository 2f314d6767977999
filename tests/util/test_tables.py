"""One table in four forms: what is aligned, what is shortened, and what cannot break out of a cell."""

from __future__ import annotations

import csv
import io
from xml.etree import ElementTree

from markupsafe import Markup

from pytest_ddpscale.util.tables import (
    Column,
    Table,
    csv_text,
    html,
    is_wider_than,
    markdown_lines,
    table,
    text_lines,
)

HOSTILE = "a|b\n<script>*x*</script> \x1b[31m`c`"
SPEEDS = table(("host", "GB/s"), [("n0", "9.1"), ("node-12", "55")], of_numbers=True)


def test_text_is_aligned_and_lines_have_no_trailing_spaces() -> None:
    assert list(text_lines(SPEEDS)) == ["host     GB/s", "n0        9.1", "node-12    55"]
    assert list(text_lines(table(("host", "why"), [("n0", ""), ("n1", "slow")]))) == ["host  why", "n0", "n1    slow"]


def test_a_table_without_titles_begins_with_its_first_row() -> None:
    assert list(text_lines(table(("", ""), [("a", "1"), ("bb", "2")]))) == ["a   1", "bb  2"]


def test_only_columns_that_may_shrink_are_shortened_and_no_further_than_their_title() -> None:
    long = Table([Column("host"), Column("reason", may_shrink=True)], [("node-12", "the whole interval misses it")])
    assert is_wider_than(long, 20)
    assert not is_wider_than(long, 37)
    assert list(text_lines(long, 20)) == ["host     reason", "node-12  the whole…"]
    assert list(text_lines(long, 3)) == ["host     reason", "node-12  the w…"]
    assert list(text_lines(SPEEDS, 3)) == list(text_lines(SPEEDS)), "written whole"


def test_numbers_are_aligned_to_the_right_in_markdown_too() -> None:
    assert list(markdown_lines(SPEEDS)) == ["| host | GB/s |", "| --- | ---: |", "| n0 | 9.1 |", "| node-12 | 55 |"]


def test_no_text_breaks_out_of_its_cell() -> None:
    hostile = table(("x", "y"), [(HOSTILE, "1")])
    assert len(list(text_lines(hostile))) == 2
    assert "\x1b" not in "".join(text_lines(hostile))
    row = list(markdown_lines(hostile))[-1]
    assert row.replace("\\|", "").count("|") == 3
    assert "&lt;script&gt;\\*x\\*" in row
    assert html(hostile, HOSTILE).count("<script") == 0
    cells = [cell.text for cell in ElementTree.fromstring(html(hostile)).iter() if cell.tag in ("th", "td")]
    assert cells == ["x", "y", "a|b <script>*x*</script> [31m`c`", "1"]


def test_an_html_table_with_a_caption_can_be_sorted_and_is_a_named_region() -> None:
    box = ElementTree.fromstring(html(SPEEDS, 'Speeds, "GB/s"'))
    assert box.attrib["aria-label"] == box.findtext("table/caption") == 'Speeds, "GB/s"'
    assert [part.attrib.get("class") for part in box.iter() if part.tag != "div"].count("n") == 3, "a title, two cells"
    assert box[0].attrib == {"class": "sortable"}
    assert "class" not in ElementTree.fromstring(html(SPEEDS))[0].attrib


def test_a_spreadsheet_reads_numbers_as_numbers_and_runs_no_formula() -> None:
    written = csv_text(("a", "b", "c", "d"), [("=1+1", -1.5, True, None), (" @SUM(A1)", 3, False, "x,\ny")])
    assert list(csv.reader(io.StringIO(written))) == [
        ["a", "b", "c", "d"], ["'=1+1", "-1.5", "true", ""], ["'@SUM(A1)", "3", "false", "x, y"],
    ]  # fmt: skip


def test_notes_as_wide_as_the_table_stand_below_their_rows() -> None:
    notes: dict[int, list[str]] = {1: [Markup("<b>why</b>")], 2: [HOSTILE]}
    found = ElementTree.fromstring(html(SPEEDS, "Speeds", notes))
    bodies = [[cell.tag for cell in body.iter() if cell.tag in ("th", "td", "b")] for body in found.iter("tbody")]
    assert bodies == [["th", "td", "td", "b"], ["th", "td", "td"]]
    assert {cell.get("colspan") for cell in found.iter("td") if cell.get("colspan")} == {"2"}
