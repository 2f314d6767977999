"""A run whose pytest is killed in the middle, for real: its ranks end, and another session finishes it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.builders.tiny_site import tiny_thresholds
from tests.integration.test_cpu_run import CHECKOUT, SHORT

pytestmark = pytest.mark.slow

FIRST, SECOND = "weak/tiny", "strong/tiny"  # in the order in which they are measured
THRESHOLDS = tiny_thresholds(
    "strong_scaling_speedup: {2: 2}, bound: 0.001", "weak_scaling_efficiency: {2: 0.97}, bound: 0.001"
)
PATIENCE_S = 120.0


def pytest_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "--ddp-gpus-per-node=2", *SHORT, *arguments]


def records(path: Path) -> list[dict[str, Any]]:
    """Complete lines of a file that may be growing."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE_S:g} s"
        time.sleep(0.05)


def test_a_run_that_was_killed_is_finished_by_another_session(tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / "acceptance", tmp_path / "acceptance", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "thresholds.yaml").write_text(THRESHOLDS)
    run = tmp_path / "run"
    measured = run / "measurements.jsonl"

    def has_rounds_of_the_second_study() -> bool:
        assert killed.poll() is None, "it ended before it could be killed"
        return any(r["kind"] == "round_end" and r["study"] == SECOND for r in records(measured))

    with (tmp_path / "output").open("wb") as output:
        command = pytest_command("--gpu-sku=cpu", "--ddp-run-dir=run")
        killed = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for("a round of the second study", has_rounds_of_the_second_study)
    finally:
        killed.kill()
        killed.wait(timeout=30)
    ranks = [pid for record in records(measured) if record["kind"] == "gang" for pid in record["pids"]]
    assert len(ranks) == 2
    wait_for("the end of the ranks", lambda: not any(psutil.pid_exists(pid) for pid in ranks))
    assert (run / "run.lock").exists()
    assert json.loads((run / "verdicts.json").read_text())["outcome"] == "incomplete", "written after the first study"
    kept = [record for record in records(measured) if record.get("study") == FIRST]
    assert kept[-1]["kind"] == "study_end"

    resumed = subprocess.run(
        pytest_command("--ddp-resume=run"), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert resumed.returncode == 0, resumed.stdout
    assert "1 of 2 studies were measured and are kept" in resumed.stdout
    assert "ACCEPTED: 2 of 2 requirements passed" in resumed.stdout
    assert json.loads((run / "verdicts.json").read_text())["outcome"] == "accepted"
    assert [record for record in records(measured) if record.get("study") == FIRST] == kept
    rounds = [r["round"] for r in records(measured) if r["kind"] == "round_end" and r["study"] == SECOND]
    assert rounds == list(range(len(rounds))), "of one session only"
    assert any(record["kind"] == "round_end" for record in records(run / "superseded.jsonl"))
    assert sorted(log.name for log in (run / "logs").glob("gang-*.log")) == ["gang-0.log", "gang-1.log"]
    assert not (run / "run.lock").exists()
