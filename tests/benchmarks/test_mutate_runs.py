"""A few mutants of run directories are judged in the suite; the script judges them all."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripts import benchmark

pytestmark = pytest.mark.lab

SCRIPT = benchmark("mutate_runs")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = SCRIPT.simulated(tmp_path_factory.mktemp("mutants") / "run", SCRIPT.SIMULATED_FAULTS[0])
    return found


def test_there_are_many_of_many_families(run: Path) -> None:
    mutants = list(SCRIPT.mutants(run))
    assert len(mutants) >= 200, "and as many of the other run"
    assert len({mutant.family for mutant in mutants}) >= 9


def test_some_are_refused_or_judged_no_better(run: Path, tmp_path: Path) -> None:
    families: dict[str, int] = collections.Counter()

    def is_wanted(number: int) -> bool:
        family = list_of_families[number]
        families[family] += 1
        return families[family] == 3

    list_of_families = [mutant.family for mutant in SCRIPT.mutants(run)]
    tried: list[Any] = list(SCRIPT.tried(run, tmp_path / "mutant", is_wanted))
    assert len(tried) >= 5
    assert [one for one in tried if one[1] not in ("refused", "no better")] == []


def test_what_would_pass_anew_is_told(run: Path, tmp_path: Path) -> None:
    """Seen to fail: a run without its faults is better than with them."""
    before = SCRIPT.judged(run)
    sound = SCRIPT.simulated(tmp_path / "sound", ())
    outcome, said = SCRIPT.outcome_of(sound, before)
    assert outcome == "wrong pass"
    assert "rank_uniformity" in said or "replica_agreement" in said, said
