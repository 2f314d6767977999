"""What judging costs is counted for the processes that do it, and for each round that is steered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks.scripts import benchmark

pytestmark = pytest.mark.lab

script = benchmark("judging")


def test_a_cluster_is_simulated_judged_and_steered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = script.measure(8, 8, tmp_path, steering=True)
    assert min(found.simulating.cpu_s, found.judging.cpu_s) > 0.1
    assert found.file_mib > 0.01
    assert (tmp_path / "gpus8" / "plots").is_dir()
    assert len(found.steering_s) == 8 * len(script.RunDirectory(tmp_path / "gpus8").read_plan().study_ids)
    script.show([found])
    assert "s of CPU at 8,192 GPUs" in capsys.readouterr().out
    assert script.result_of([found])["sizes"][0]["cpu_s"] == found.cpu_s


def test_cpu_time_is_that_of_the_process_that_worked(tmp_path: Path) -> None:
    cost = script.cost_of([sys.executable, "-c", "while __import__('time').process_time() < 0.5: pass"], tmp_path, 0)
    assert 0.5 <= cost.cpu_s < 5


def test_a_command_that_ends_otherwise_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"exited with 3:\nbroken"):
        script.cost_of([sys.executable, "-c", "print('broken'); raise SystemExit(3)"], tmp_path, 0)
