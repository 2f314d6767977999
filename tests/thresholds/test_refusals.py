"""What is refused of a thresholds file, and what is remarked on: a line of refusals.txt each.

EDITS | 21 | WORDS              edits (see `edited`), the line that is named, words of what was found and expected
EDITS | base.yaml:21 | WORDS    a line of another file than the one that is read
EDITS | remark 21 | WORDS       not refused, but a remark
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.tables import assert_rows, each_block, missed
from tests.thresholds.edited import edited, spelt

TABLE = Path(__file__).with_name("refusals.txt")
MOST_S = 5.0  # of CPU, also for files that would take for ever
LONGEST = 1500
OF_PYDANTIC = ("CheckRow", ".Row", "Workload")


@each_block(TABLE)
def test_a_mistake_is_told_with_its_line(block: str, tmp_path: Path) -> None:
    assert_rows(block, lambda row: _why_wrong(row, tmp_path))


def _why_wrong(row: str, folder: Path) -> str:
    *edits, where, words = row.split(" | ")
    path, besides = edited(folder, edits)
    began = time.process_time()
    kind, error = next(_told(path, besides.get("ask")), ("ok", BadInput("", "accepted")))
    text = str(error)
    place = error.where.removeprefix(f"{path}:").rpartition("/")[2]
    lacks = missed(spelt(words), text.removeprefix(error.where).partition(" Then run")[0])
    is_plain = text.isprintable() and len(text) < LONGEST and not any(map(text.count, OF_PYDANTIC))
    is_right = f"{kind} {place}".strip() == where and not lacks and is_plain and (error.action or kind)
    is_quick = time.process_time() - began < MOST_S
    return "" if is_right and is_quick else f"{kind} {place}, without {lacks!r}: {error}"


def _told(path: Path, asked: str | None) -> Iterator[tuple[str, BadInput]]:
    try:
        file = load_thresholds(path)
        if asked:
            file.sku_name(asked)
    except BadInput as error:
        yield "", error
        return
    for remark in (one for sku in file.thresholds.skus for one in file.remarks(sku)):
        yield "remark", BadInput(*remark.split(": ", 1))
