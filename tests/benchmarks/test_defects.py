"""Twenty of the written-down defects, in places that the oracle does not see: each fails the test that watches it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripts import BENCHMARKS, benchmark

pytestmark = pytest.mark.lab

TABLE: Any = benchmark("mutation_table")
DEFECTS = {defect.id: defect for defect in TABLE.DEFECTS}
ROOT = BENCHMARKS.parent
# The test that has to fail, below tests/.
WATCHED_BY = {
    "exit-code-swallowed": "launch/test_gang.py",
    "kill-not-sent": "node/test_processes.py::test_who_ignores_sigterm_is_gone",
    "environment-leaked": "launch/test_environment.py",
    "node-order": "plan/test_layout.py",
    "hang-not-ended": "launch/test_gang.py",
    "torn-line": "results/test_other_records.py",
    "duplicates": "evidence/test_validate.py",
    "key-twice": "results/test_records.py",
    "copied-round": "evidence/test_validate.py",
    "nan": "results/test_paik.py",
    "half-written": "results/test_full_disk.py",
    "shared-gpu": "evidence/test_validate.py",
    "steps-contradict": "evidence/test_validate.py",
    "no-sync": "worker/test_device.py",
    "steps-off-by-one": "worker/test_device.py",
    "cold-start": "worker/test_arms.py",
    "no-checksum": "worker/test_arms.py",
    "event-order": "worker/test_device.py",
    "synced-no-sync": "worker/test_arms.py",
    "same-images": "worker/test_arms.py",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout, as it is now."""
    copy = tmp_path_factory.mktemp("defects") / "tree"
    copy.mkdir()
    for entry in ROOT.iterdir():
        if entry.is_dir() and entry.name in ("pytest_ddpscale", "tests", "benchmarks", "acceptance", "slurm", "docs"):
            shutil.copytree(entry, copy / entry.name)
        elif entry.is_file():
            shutil.copy2(entry, copy)
    return copy


def test_each_of_twenty_defects_is_caught_and_nothing_fails_without_one(tree: Path) -> None:
    watching = sorted({f"tests/{test}" for test in WATCHED_BY.values()})
    assert TABLE.first_failure(tree, watching) == ""
    survived = [
        name for name, test in WATCHED_BY.items() if not TABLE.caught_by(tree, DEFECTS[name], [f"tests/{test}"])
    ]
    assert survived == []
