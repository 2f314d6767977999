"""`pytest --gpu-sku=cpu`, for real: ranks train, requirements are judged, reports are written."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
SHORT = ("--ddp-rounds=8", "--ddp-block=0.1s", "-p", "no:cacheprovider")
THRESHOLDS = """
schema_version: 1
skus:
  before:
    description: an earlier generation
    detect: {device: none}
    workloads:
      tiny: &tiny {model: shufflenet_v2_x0_5, precision: fp32, batch_size: 4, image_size: 32,
        memory_format: contiguous, global_batch_size: 8, num_classes: 10}
    requirements:
      - {metric: throughput_per_gpu, workload: tiny, at_least: 1,
         source: &measured {measured: 2, reference: nobody, reasoning: made up for a test}}
  cpu:
    description: any CPU
    detect: {device: cpu}
    workloads: {tiny: *tiny}
    requirements:
      - {metric: throughput_per_gpu, workload: tiny, world_size: 2, at_least: 0.01, source: *measured}
      - {metric: weak_scaling_efficiency, workload: tiny, world_size: 2, at_least: 0.001, source: *measured}
      - {metric: strong_scaling_speedup, workload: tiny, world_size: 2, at_least: 0.001, source: *measured}
      - {metric: strong_scaling_efficiency, workload: tiny, world_size: 2, at_least: 0.001, source: *measured}
      - {metric: device_utilization, workload: tiny, world_size: 2, at_least: 0.001, source: *measured}
      - {metric: generation_ratio, workload: tiny, versus: before, at_least: 0.001, source: *measured}
      - {metric: peak_memory_gib, workload: tiny, world_size: 2, at_most: 30, source: *measured}
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "--gpu-sku=cpu", "--ddp-run-dir=run", *SHORT, *arguments]


def make_site(path: Path) -> Path:
    shutil.copytree(CHECKOUT / "acceptance", path / "acceptance", ignore=shutil.ignore_patterns("__pycache__"))
    (path / "thresholds.yaml").write_text(THRESHOLDS)
    return path


@dataclass(frozen=True)
class Session:
    """A session that measured everything; tests look at it and change nothing.

    Attributes:
        site: where.
        result: how pytest ended.
    """

    site: Path
    result: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Session:
    site = make_site(tmp_path_factory.mktemp("site"))
    return Session(site, pytest_run(site))


def pytest_run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=site, capture_output=True, text=True, timeout=300, check=False)


def judge_again(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--ddp-judge=run", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=120, check=False)


def verdicts(site: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((site / "run" / "verdicts.json").read_text())
    return record


@pytest.mark.timing  # shares of time vary too much for a verdict when others use the cores
def test_every_metric_is_measured_and_judged_in_one_gang(accepted: Session) -> None:
    site, result = accepted.site, accepted.result
    assert result.returncode == 0, result.stdout
    record = verdicts(site)
    assert record["outcome"] == "accepted"
    assert {v["metric"] for v in record["verdicts"]} == {
        "throughput_per_gpu", "weak_scaling_efficiency", "strong_scaling_speedup", "strong_scaling_efficiency",
        "device_utilization", "generation_ratio", "peak_memory_gib",
    }  # fmt: skip
    for v in record["verdicts"]:
        assert v["rounds"] == 8
        assert v["interval"][0] <= v["value"] <= v["interval"][1]
    assert "ACCEPTED: 7 of 7 requirements passed" in result.stdout
    assert "ranks are up: 2" in result.stdout
    assert [path.name for path in (site / "run" / "logs").glob("gang-*.log")] == ["gang-0.log"]


def test_the_run_directory_tells_the_whole_story(accepted: Session) -> None:
    run = accepted.site / "run"
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["hosts"][0]["devices"][0]["uuid"] == "cpu"
    assert record["environment"]["OMP_NUM_THREADS"]
    assert record["startup"]["import_s"] > 0
    assert record["startup"]["first_step_s"] > 0
    assert {"torch", "pytest", "pytest_ddpscale", "python"} <= set(record["versions"])
    for name in ("plan.json", "measurements.jsonl", "report.md", "junit.xml", "pytest-report.json"):
        assert (run / name).stat().st_size > 0
    assert (run / "plots" / "weak-efficiency.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((run / "pytest-report.json").read_text())["tests"]) == 7


def test_judging_the_run_again_gives_the_same_verdicts_without_measuring(accepted: Session, tmp_path: Path) -> None:
    site = shutil.copytree(accepted.site, tmp_path / "site")
    first = verdicts(site)
    began = time.monotonic()
    again = judge_again(site)
    assert again.returncode == 0, again.stdout
    assert time.monotonic() - began < 60
    second = json.loads((site / "run" / "judged-1" / "verdicts.json").read_text())
    assert second["verdicts"] == first["verdicts"]
    assert verdicts(site) == first


def test_a_signal_ends_every_rank_and_keeps_what_was_measured(tmp_path: Path) -> None:
    """What `kill` and `scancel` send; Ctrl-C is the same from where it is heard."""
    site = make_site(tmp_path)
    process = subprocess.Popen(
        command("--ddp-rounds=5000"),
        cwd=site,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    measured = site / "run" / "measurements.jsonl"
    deadline = time.monotonic() + 120
    while not (measured.exists() and '"round":1' in measured.read_text()):
        assert time.monotonic() < deadline, "no round within two minutes"
        assert process.poll() is None
        time.sleep(0.05)
    ranks = [
        pid for line in measured.read_text().splitlines() if '"kind":"gang"' in line for pid in json.loads(line)["pids"]
    ]
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "INCOMPLETE" in output
    assert not [pid for pid in ranks if psutil.pid_exists(pid)]
    assert json.loads((site / "run" / "run.json").read_text())["status"] == "interrupted"
    assert verdicts(site)["outcome"] == "incomplete"
