"""Defects that tests have to catch have their places in the code: each, and once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripts import BENCHMARKS, benchmark

TABLE: Any = benchmark("mutation_table")
DEFECT = TABLE.DEFECTS[0]


@pytest.mark.parametrize("defect", TABLE.DEFECTS, ids=lambda defect: defect.id)
def test_a_defect_applies_once_and_names_tests(defect: Any) -> None:
    assert TABLE.without_place(BENCHMARKS.parent, [defect]) == []


def test_there_are_forty_of_many_kinds_each_with_a_name_of_its_own() -> None:
    assert len({defect.id for defect in TABLE.DEFECTS}) == len(TABLE.DEFECTS) >= 40
    assert len(Counter(defect.kind for defect in TABLE.DEFECTS)) >= 10


@pytest.mark.parametrize("text", ["", DEFECT.old * 2])
def test_a_defect_without_one_place_is_refused(tmp_path: Path, text: str) -> None:
    module = tmp_path / "pytest_ddpscale" / DEFECT.file
    module.parent.mkdir(parents=True)
    module.write_text(text)
    with pytest.raises(TABLE.NoPlaceError, match="expected once"):
        TABLE.with_defect(tmp_path, DEFECT)


def test_a_survivor_is_told_and_counted() -> None:
    caught = TABLE.Caught("a", "judge", "wrong", "tests/x.py::test_y", "touched", 1.0)
    table = TABLE.as_table([caught, replace(caught, id="b", by="")])
    assert "| b | judge | wrong | **survives** | touched | 1 |" in table
    assert table.endswith("1 of 2 caught")
