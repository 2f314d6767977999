"""Each decision has a page of its own, so that two that are made at once do not meet in one file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "decisions").glob("*.md"))


def heading(page: Path) -> str:
    first, *_ = page.read_text(encoding="utf-8").splitlines()
    return first


def test_a_page_is_one_decision_with_its_reason() -> None:
    assert len(PAGES) > 100
    for page in PAGES:
        first, blank, *told = page.read_text(encoding="utf-8").splitlines()
        assert first.startswith("# "), page.name
        assert blank == "", page.name
        assert told, page.name
        assert not any(line.startswith(("# ", "## ")) for line in told), f"{page.name}: a page for each"


def test_no_decision_is_there_twice() -> None:
    assert [one for one, number in Counter(map(heading, PAGES)).items() if number > 1] == []


def test_the_first_page_only_says_where_they_are() -> None:
    text = (DOCS / "decisions.md").read_text(encoding="utf-8")
    assert "## " not in text, "a decision has a page of its own in docs/decisions/"
