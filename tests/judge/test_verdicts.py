"""Verdicts on runs of one line each, as they stand in verdicts.txt; `runs` and `probe_runs` say what the words mean."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.report.words.reasons import said
from tests.judge.probe_runs import run_of
from tests.judge.told import codes
from tests.tables import assert_approved, each_block

VERDICTS = Path(__file__).with_name("verdicts.txt")


@each_block(VERDICTS)
def test_verdicts(block: str) -> None:
    tell = said if block.startswith("# What it says") else codes
    assert_approved(VERDICTS, block, lambda line: run_of(line).told(tell))
