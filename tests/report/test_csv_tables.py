"""requirements.csv and culprits.csv: nothing is lost, and no spreadsheet computes what stands there."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.report.csv_tables import render_culprits, render_requirements
from tests.builders.judgements import ALL, FAILED, JUDGEMENT, PASSED, hostile_judgement, judgement_with

GOLDEN = Path(__file__).parents[1] / "data" / "exports"


def test_they_are_what_was_looked_at_before() -> None:
    assert render_requirements(JUDGEMENT) == (GOLDEN / "requirements.csv").read_text(encoding="utf-8")
    assert render_culprits(JUDGEMENT) == (GOLDEN / "culprits.csv").read_text(encoding="utf-8")


def test_a_row_for_each_requirement_and_for_each_culprit() -> None:
    rows = list(csv.DictReader(io.StringIO(render_requirements(JUDGEMENT))))
    assert [row["id"] for row in rows] == [verdict.id for verdict in ALL]
    assert len(list(csv.DictReader(io.StringIO(render_culprits(JUDGEMENT))))) == len(FAILED.culprits)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\n@", "＝"])
def test_text_is_no_formula(start: str) -> None:
    verdict = replace(PASSED, reason=f"{start}HYPERLINK(1)")
    (row,) = csv.DictReader(io.StringIO(render_requirements(judgement_with(verdict))))
    assert row["reason"].startswith("'")


def test_negative_numbers_stay_numbers() -> None:
    (row,) = csv.DictReader(io.StringIO(render_requirements(judgement_with(FAILED))))
    assert float(row["margin"]) == FAILED.margin


def test_hostile_text_makes_no_row() -> None:
    judgement = hostile_judgement()
    assert len(render_requirements(judgement).splitlines()) == 1 + len(judgement.verdicts)
