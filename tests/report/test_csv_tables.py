"""requirements.csv and culprits.csv: nothing is lost, and no spreadsheet computes what stands there."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from pytest_ddpscale.report.csv_tables import render_requirements
from tests.builders.judgements import FAILED, PASSED, hostile_judgement, judgement_with


def test_text_is_no_formula() -> None:
    for start in ["=", "+", "-", "@", "\t=", "\n@", "＝"]:
        verdict = replace(PASSED, reason=f"{start}HYPERLINK(1)")
        (row,) = csv.DictReader(io.StringIO(render_requirements(judgement_with(verdict))))
        assert row["reason"].startswith("'")


def test_negative_numbers_stay_numbers() -> None:
    (row,) = csv.DictReader(io.StringIO(render_requirements(judgement_with(FAILED))))
    assert float(row["margin"]) == FAILED.margin


def test_hostile_text_makes_no_row() -> None:
    judgement = hostile_judgement()
    assert len(render_requirements(judgement).splitlines()) == 1 + len(judgement.verdicts)
