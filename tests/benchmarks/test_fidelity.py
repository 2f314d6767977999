"""The ranks of the fidelity benchmark join as an agent's ranks do, and time both loops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.scripts import BENCHMARKS


def test_one_rank_on_a_cpu_times_both_loops(tmp_path: Path) -> None:
    script, result = BENCHMARKS / "fidelity.py", tmp_path / "fidelity.json"
    options = ["--device=cpu", "--ranks=1", "--rounds=2", "--launches=1", "--block-steps=1", "--image-size=32"]
    done = subprocess.run(
        [sys.executable, script, *options, "--batch-size=2", f"--json={result}"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [agreement] = json.loads(result.read_text(encoding="utf-8"))["agreements"]
    assert (agreement["world_size"], agreement["pairs"]) == (1, 2)
    assert set(agreement["samples_per_s"]) == {"bare", "worker"}
