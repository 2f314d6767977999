"""One document in all forms: what is aligned and shortened, and what cannot break out of its place."""

from __future__ import annotations

import base64
import re
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.util.document import (
    Block,
    Closed,
    Code,
    Headline,
    Items,
    Line,
    Link,
    Listing,
    Note,
    Picture,
    Section,
    Table,
    Text,
    Word,
    above_headline,
    bullets,
    csv_text,
    escaped,
    fact_table,
    first_rows,
    html,
    html_page,
    markdown,
    text_lines,
)
from tests.approved import assert_approved
from tests.builders.judgements import HOSTILE

ATTACK = HOSTILE + "</script><img src=x onerror=alert(1)>\u202egnp.exe\x07|\n| --- |\n=1+1"
SPEEDS = Table(("host", "GB/s"), [("n0", "9.1"), ("node-12", "55")], names=1)
INVISIBLE = re.compile("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f]")


def every_block(words: str) -> list[Block]:
    """Each kind of block and of text, with these words wherever there can be any."""
    texts: list[Text] = [words, (words, Word(words), Word(words, "failed"), Link(words, words), Code(words))]
    rows = Table((words, words), [(text, text) for text in texts], words, 1, below={1: Note(texts, texts)})
    inner: list[Block] = [
        Headline(words), *map(Line, texts), bullets(texts), Items([[Line(words), Listing(words)]], start=1, name="i"),
        fact_table([(text, text) for text in texts]), rows, Listing(words),
        Picture(words, words, words, words, b"<svg/>", bytes, rows, False, words),
    ]  # fmt: skip
    return [Section(words, [*inner, Closed(words, inner[:1]), Closed(words, inner[:1], is_open=True)])]


def test_what_comes_from_outside_stays_text() -> None:
    """In the title of a page, HTML, Markdown and a terminal; and a spreadsheet reads numbers, and runs no formula."""
    blocks = every_block(ATTACK)
    title = html_page(ATTACK, []).partition("<title>")[2].partition("</title>")[0]
    terminal = ("\n".join(text_lines(*blocks, width=width)) for width in (None, 40))
    cells = [("=1+1", -1.5, True, None), (" @SUM(A1)", 3, False, ATTACK)]
    table = csv_text(("a", "b", "c", "d"), cells)
    written = "\n--\n".join([title, html(*blocks), markdown(*blocks), *terminal, table])
    assert not INVISIBLE.search(written)
    assert_approved("from-outside.txt", written)


def test_only_our_script_runs_and_nothing_is_asked_of_the_network() -> None:
    page = html_page("t", every_block("words"))
    digest = base64.b64encode(sha256(page.split("<script>")[1].split("</script>")[0].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in page
    assert not re.search(r'(src|href)="(?!#|data:image)|url\(|@import', page)


def test_what_holds_nothing_is_not_written() -> None:
    nothing = [Section("S", [Closed("C", [bullets([]), fact_table([]), Table(("a",), []), Line("")])])]
    assert (html(*nothing), markdown(*nothing), list(text_lines(*nothing))) == ("", "", [])


def test_what_goes_on_stands_above_the_headline_and_no_text_is_one() -> None:
    said, goes_on = Line("<h1>"), Line("42 %")
    assert above_headline(html(said, Headline("a"), Headline("b")), goes_on) == html(
        said, goes_on, Headline("a"), Headline("b")
    )


def test_tables_are_written_as_approved() -> None:
    """Numbers to the right, notes below their rows, a last column that is cut, no titles, and a named region."""
    noted = SPEEDS._replace(below={1: Note([(Word("why"), ": load")], ["GPU 3"]), 2: Note(["slow"])})
    tables = [
        SPEEDS._replace(caption='Speeds, "GB/s"'), noted, fact_table([("a", "1"), ("bb", "")]),
        Table(("host", "reason"), [("node-12", "the whole interval misses it")]),
        first_rows(SPEEDS, 1), first_rows(SPEEDS, 2),
    ]  # fmt: skip
    written = [f"{html(one)}\n\n{markdown(one)}" for one in tables]
    written += ["\n".join(text_lines(one, width=width)) for one in tables for width in (None, 20, 9)]
    assert_approved("tables.txt", "\n--\n".join(written) + "\n")


def test_escaping() -> None:
    plain = "a|b `code` *bold* _it_ snake_case [a](b) <b>&amp; back\\slash|\ntwo"
    assert escaped(plain) == (r"a\|b \`code\` \*bold\* \_it\_ snake_case [a\](b) &lt;b&gt;&amp;amp; back\\slash\| two")


@given(st.text())
def test_escaped_text_is_one_cell_of_a_table(content: str) -> None:
    line = escaped(content)
    assert "\n" not in line
    assert "<" not in line
    # A pipe is inert only after an odd number of backslashes.
    assert all(len(run.group(1)) % 2 for run in re.finditer(r"(\\*)[|`*]", line))


@given(st.text("`ab \n", min_size=1))
def test_code_cannot_leave_its_fence(content: str) -> None:
    fence, *inside, end = markdown(Listing(content)).splitlines()
    assert fence == f"{end}text"
    assert all(end not in line for line in inside)
    command = markdown(Line(Code(content)))
    fence = command[: len(command) - len(command.lstrip("`"))]
    inner = command[len(fence) : len(command) - len(fence)]
    assert max(map(len, re.findall("`+", inner)), default=0) < len(fence)
