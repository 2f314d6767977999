"""The changelog is kept as keepachangelog.com has it, one sentence a line."""

from __future__ import annotations

import pytest

from docs_pages.changelog import CHANGELOG, one_sentence_a_line

TEXT = CHANGELOG.read_text(encoding="utf-8")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_each_sentence_has_a_line() -> None:
    assert one_sentence_a_line(TEXT) == TEXT, "write it: python -m docs_pages.changelog"


def test_a_release_has_kinds_of_changes_in_order() -> None:
    releases = TEXT.split("\n## ")[1:]
    assert releases[0].startswith("[Unreleased]")
    for release in releases:
        found = [line.removeprefix("### ") for line in release.splitlines() if line.startswith("### ")]
        assert found == [kind for kind in KINDS if kind in found]
        assert found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- One is. Two\n  is too.\n", "- One is.\n  Two is too.\n"),
        ("- With `a`. `b` is\n  there.\n- Next.\n", "- With `a`.\n  `b` is there.\n- Next.\n"),
        ("- torch 2.15 and 1.5 s, n1.example\n", "- torch 2.15 and 1.5 s, n1.example\n"),
        ("### Added\n\n- One.\n\n### Fixed\n", "### Added\n\n- One.\n\n### Fixed\n"),
        ("- Done.\n  Already.\n", "- Done.\n  Already.\n"),
    ],
)
def test_only_line_breaks_are_changed(text: str, expected: str) -> None:
    assert one_sentence_a_line(text) == expected
