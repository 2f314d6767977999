"""The ranks of the fidelity benchmark join as an agent's ranks do, and time both loops."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import benchmark
from tests.forks.script import python_exec
from tests.forks.start import command

fidelity = benchmark("fidelity")
POPEN = subprocess.Popen


def forked(ranks: str, program: list[str], env: dict[str, str], **options: Any) -> Any:
    """torchrun, from a fork, whose ranks are forks."""
    _, _, module, *arguments = program
    return POPEN(command(module, *arguments), env=env | {"PYTHON_EXEC": ranks}, **options)


def test_one_rank_on_a_cpu_times_both_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tmp_path / "fidelity.json"
    options = ["--device=cpu", "--ranks=1", "--rounds=2", "--launches=1", "--block-steps=1", "--image-size=32",
               "--model=shufflenet_v2_x0_5"]  # fmt: skip
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(fidelity.subprocess, "Popen", partial(forked, python_exec(tmp_path)))
    monkeypatch.setattr(sys, "argv", ["fidelity.py", *options, "--batch-size=2", f"--json={result}"])
    assert fidelity.main() == 0
    [agreement] = json.loads(result.read_text(encoding="utf-8"))["agreements"]
    assert (agreement["world_size"], agreement["pairs"]) == (1, 2)
    assert set(agreement["samples_per_s"]) == {"bare", "worker"}
