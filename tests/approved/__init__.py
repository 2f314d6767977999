"""Outputs that somebody has read: a test compares what is written today with them, as text.

``TESTS_APPROVE=1 pytest -n 0 tests/plugin/test_views.py`` writes them anew; read the difference that git shows, and
commit it alone, with which lines changed and why.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent
APPROVES = "TESTS_APPROVE"
# What differs between two runs of the same: dates, times, durations, the pytest that ran, and where.
MASKS = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:00)?", "DATE"),
    (r"\bin \d+\.\d+s( \(\d+:\d\d:\d\d\))?", "in SECONDS"),
    (r"^platform .*$", "platform …"),
    (r"^plugins: .*$", "plugins: …"),
    (r'"(created|duration)": [\d.e+-]+', r'"\1": "SECONDS"'),
    (r"(timestamp_seconds\S*\{.*\}) [\d.e+]+", r"\1 SECONDS"),
    (r"\b[0-9a-f]{64}\b", "DIGEST"),
    (r"^=+ (.*?) =+$", r"= \1 ="),
)
COUNTS = (
    r"\d+(?= of\s+\d+\s+requirements\s+not\s+selected|\s+requirements\b(?! were)| passed\b| not\s+selected| bounds"
    r"| stay as| more: exact)"
)


def masked(text: str, *paths: Path) -> str:
    """Text without what differs from run to run."""
    for path in paths:
        text = text.replace(str(path), "PATH")
    for pattern, name in MASKS:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    # Numbers that nobody rounded differ in their last digits between machines.
    text = re.sub(r"\b(\d+\.\d{6,}|\d{9,}\.\d+)(e[+-]\d+)?", lambda found: f"{float(found[0]):.6g}", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def without_counts(text: str) -> str:
    """Text without how many requirements there are and pass: one more of each wherever a node check is added."""
    return re.sub(COUNTS, "N", text)


def shape_of(value: object) -> object:
    """JSON with the kind of each value in its place; of a list all kinds of members, once; each code has other args."""
    if isinstance(value, dict):
        return {key: shape_of(one) for key, one in value.items() if key != "args"}
    if isinstance(value, list):
        return [json.loads(one) for one in sorted({json.dumps(shape_of(one)) for one in value})]
    return type(value).__name__


def assert_approved(name: str, text: str) -> None:
    """Compare with tests/approved/NAME, or write it where that was asked for."""
    file = FOLDER / name
    if os.environ.get(APPROVES):
        file.write_text(text, encoding="utf-8")
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    difference = "\n".join(
        difflib.unified_diff(before.splitlines(), text.splitlines(), f"approved/{name}", "now", lineterm="")
    )
    assert before == text, f"{difference}\nif this is right: {APPROVES}=1, read the difference, commit it alone"
