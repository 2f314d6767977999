"""Written-down defects: each rule has one that is seen; those that the oracle misses fail the test that watches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripts import BENCHMARKS, benchmark

TABLE: Any = benchmark("defects")
DEFECTS = {defect.id: defect for defect in TABLE.DEFECTS}
ROOT = BENCHMARKS.parent


@pytest.mark.lab
def test_each_defect_fails_the_test_that_watches_it(tmp_path: Path) -> None:
    for folder in ("pytest_ddpscale", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("pyproject.toml", "thresholds.yaml"):
        shutil.copy2(ROOT / file, tmp_path)
    watched = {name: f"tests/{one.watched_by}" for name, one in DEFECTS.items() if one.watched_by}
    assert len(watched) >= 18
    assert TABLE.first_failure(tmp_path, sorted(set(watched.values()))) == "", "without a defect"
    failed = {name: TABLE.caught_by(tmp_path, DEFECTS[name], [test]) for name, test in watched.items()}
    assert {name: test.partition("[")[0] for name, test in failed.items()} == watched


def test_each_rule_has_one_defect() -> None:
    rules = [defect.rule for defect in TABLE.DEFECTS if defect.rule]
    assert len(rules) == len(set(rules)) == 34


@pytest.mark.parametrize("defect", [pytest.param(one, id=one.id) for one in TABLE.DEFECTS if one.rule])
def test_what_sees_the_defect_of_a_rule_is_there(defect: Any) -> None:
    if not defect.seen_by.startswith("oracle: "):
        file, _, name = defect.seen_by.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")
        return
    _, run, *fact, field = defect.seen_by.split()
    lines = (BENCHMARKS / "oracle" / "facts" / f"{run}.jsonl").read_text(encoding="utf-8").splitlines()
    assert field in dict(map(json.loads, lines))[" ".join(fact)]
