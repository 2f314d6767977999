"""The README can be read at one go: short, narrow, and it leads to everything else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_LINES, MOST_COLUMNS = 100, 110


def test_it_is_short_and_narrow() -> None:
    lines = TEXT.splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > MOST_COLUMNS] == []


def test_its_links_lead_to_files_that_are_there() -> None:
    links = re.findall(r"\]\(([^)#]+)", TEXT)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []
