"""Verdicts on runs of one line each, as they stand in verdicts.txt; `runs` and `probe_runs` say what the words mean."""

from __future__ import annotations

from pathlib import Path

from tests.judge.probe_runs import run_of
from tests.tables import assert_approved, each_block

VERDICTS = Path(__file__).with_name("verdicts.txt")


@each_block(VERDICTS)
def test_verdicts(block: str) -> None:
    says = block.startswith("# What it says")
    assert_approved(VERDICTS, block, lambda line: run_of(line).said() if says else run_of(line).told())
