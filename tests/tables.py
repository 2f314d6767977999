"""Tables of cases: text files of a line a case, with what comes of each as somebody has read and approved it.

    # A slow rank is named for whatever it slows              heading of a block: the test's name
    weak_scaling_efficiency:0.9@4 2x2 slow=*1.3/3             a case, typed by a person
        failed 0.7692 (0.7667 … 0.7719)                       what is told of it, approved

A line ``with WORDS`` says what the cases after it begin with, up to the next one. An empty line ends a block.
``TESTS_APPROVE=1 pytest -n 0 FILE`` writes what is told anew: read the difference that git shows, and commit it alone,
with which lines changed and why.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.approved import APPROVES

INDENT = "    "


def each_block(path: Path) -> pytest.MarkDecorator:
    """Parametrizes a test by the ``block`` of a table, named by its heading."""
    blocks = path.read_text(encoding="utf-8").strip("\n").split("\n\n")
    return pytest.mark.parametrize("block", blocks, ids=[block.lstrip("# ").splitlines()[0] for block in blocks])


def assert_approved(path: Path, block: str, tell: Callable[[str], Iterable[str]]) -> None:
    """Compare what is told of each case of a block with what stands there, or write it where that was asked for."""
    now = "\n".join(_told(block, tell))
    if os.environ.get(APPROVES):
        path.write_text(path.read_text(encoding="utf-8").replace(block, now), encoding="utf-8")
    elif now != block:
        lines = difflib.unified_diff(block.splitlines(), now.splitlines(), path.name, "now", lineterm="", n=5)
        pytest.fail("\n".join(lines), pytrace=False)


def assert_rows(block: str, why_wrong: Callable[[str], str]) -> None:
    """Fail with each row of a block that says itself what comes of it, and is wrong."""
    rows = [line for line in block.splitlines() if not line.startswith("#")]
    wrong = [f"{row}\n{INDENT}{why}" for row in rows if (why := why_wrong(row))]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def missed(words: str, message: str) -> str:
    """The first of a row's words that a message does not have after the others; empty if it has all."""
    for word in words.split():
        _, found, message = message.partition(word)
        if not found:
            return word
    return ""


def is_so(expected: str, said: str) -> bool:
    """Whether that is said which a row expects: just that, or ``refused`` and some words."""
    return not missed(expected, said) if expected.startswith("refused") else said == expected


def _told(block: str, tell: Callable[[str], Iterable[str]]) -> Iterator[str]:
    common = ""
    for line in block.splitlines():
        if line.startswith(INDENT):
            continue
        yield line
        if line.partition(" ")[0] == "with":
            common = line.removeprefix("with").strip() + " "
        elif not line.startswith("#"):
            yield from (INDENT + told for told in tell((common + line).strip()))
