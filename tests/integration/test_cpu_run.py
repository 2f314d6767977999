"""`pytest --gpu-sku=cpu`, for real: ranks train, requirements are judged, reports are written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.builders.tiny_site import tiny_thresholds
from tests.integration.sites import CHECKOUT, QUICK, verdicts_of
from tests.slurm_lab.fixtures import skip_or_fail

# A machine of its own with loopback and one more interface; a session is all that talks in it.
MACHINE = """
set -e
ip link set lo up
ip link add e0 type veth peer name e1
ip address add 192.0.2.1/24 dev e0
ip link set e0 up
ip link set e1 up
exec "$@"
"""
UNSHARE = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", MACHINE, "sh"]
THRESHOLDS = tiny_thresholds(
    "throughput_per_gpu: {2: 500}, bound: 0.01",
    "weak_scaling_efficiency: {2: 0.97}, bound: 0.001",
    "strong_scaling_speedup: {2: 1.9}, bound: 0.001",
    "strong_scaling_efficiency: {2: 0.9}, bound: 0.001",
    "device_utilization: {2: 0.97}, bound: 0.001, severity: warn",  # a share varies with who else uses the cores
    "generation_ratio: {1: 2}, versus: before, bound: 0.001",
    "peak_memory_gib: {2: 44.1}, bound: 30",
    "computation_time: {2: 0.01}, bound: 10000",
    "communication_time: {2: 5}, bound: 10000",
    before=("throughput_per_gpu: {1: 2}, bound: 1",),
)


@dataclass(frozen=True)
class Session:
    """A session that measured everything; tests look at it and change nothing.

    Attributes:
        site: where.
        result: how pytest ended.
        cannot_be_apart: why it had no network of its own; None if it had.
    """

    site: Path
    result: subprocess.CompletedProcess[str]
    cannot_be_apart: str | None


@pytest.fixture(scope="module")
def accepted(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """By the installed wheel, from whose acceptance tests it takes all requirements."""
    site = tmp_path_factory.mktemp("site")
    (site / "thresholds.yaml").write_text(THRESHOLDS, encoding="utf-8")
    only_tests = tmp_path_factory.mktemp("tests")  # of the checkout, beside which nothing else is found
    (only_tests / "tests").symlink_to(CHECKOUT / "tests")
    environ = {**os.environ, "PYTHONPATH": str(only_tests), "TESTS_DRAW": "1"}
    why_not: str | None = None
    words = [str(installed / "python"), "-m", "pytest", "--gpu-sku=cpu", "--ddp-run-dir=run", *QUICK]
    if shutil.which("ip") is None or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        why_not = "needs network namespaces with veth: run as root outside a container, with iproute2"
    else:
        words = [*UNSHARE, sys.executable, str(CHECKOUT / "tests" / "listening.py"), "listened.txt", *words]
    result = subprocess.run(words, cwd=site, env=environ, capture_output=True, text=True, timeout=300, check=False)
    return Session(site, result, why_not)


def test_every_metric_is_measured_and_judged_in_one_gang(accepted: Session) -> None:
    site, result = accepted.site, accepted.result
    assert result.returncode == 0, result.stdout
    record = verdicts_of(site)
    assert record["outcome"] == "accepted"
    assert 'http-equiv="refresh"' not in (site / "run" / "report.html").read_text("utf-8")
    assert {v["metric"] for v in record["verdicts"]} == {
        "throughput_per_gpu", "weak_scaling_efficiency", "strong_scaling_speedup", "strong_scaling_efficiency",
        "device_utilization", "generation_ratio", "peak_memory_gib", "computation_time", "communication_time",
    }  # fmt: skip
    for v in record["verdicts"]:
        assert v["rounds"] == 8
        assert v["metric"] != "computation_time" or v["interval"][0] > 0.02
        assert v["interval"][0] <= v["value"] <= v["interval"][1]
    assert "ACCEPTED: " in result.stdout
    assert "page while measuring: run/report.html" in result.stdout
    assert "ranks are up: 2" in result.stdout
    assert [path.name for path in (site / "run" / "logs").glob("gang-*.log")] == ["gang-0.log"]


def test_on_one_node_nothing_listens_but_on_loopback(accepted: Session) -> None:
    """Torch's stores ask for no password: nobody but a run's own ranks may connect to them."""
    skip_or_fail(accepted.cannot_be_apart)
    assert (accepted.site / "listened.txt").read_text().split() == ["127.0.0.1"]


def test_the_run_directory_tells_the_whole_story(accepted: Session) -> None:
    run = accepted.site / "run"
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "finished"
    assert {"pytest", "pytest_ddpscale", "python"} == set(record["versions"])
    evidence = read_evidence(RunDirectory(run))
    first = next(rank for gang in evidence.gangs for rank in gang.ranks)
    assert first.place.uuid == "cpu"
    assert first.import_s > 0
    assert evidence.environment["OMP_NUM_THREADS"]
    assert evidence.versions["torch"]
    for name in ("plan.json", "measurements.jsonl", "report.md", "junit.xml", "pytest-report.json"):
        assert (run / name).stat().st_size > 0
    assert (run / "plots" / "weak-throughput.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((run / "pytest-report.json").read_text())["tests"]) == 9


def test_judging_the_run_again_gives_the_same_verdicts_without_measuring(
    accepted: Session, installed: Path, tmp_path: Path
) -> None:
    site = shutil.copytree(accepted.site, tmp_path / "site")
    first = verdicts_of(site)
    command = [str(installed / "python"), "-m", "pytest", "--ddp-judge=run", "-p", "no:cacheprovider"]
    again = subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stdout
    assert [path.name for path in (site / "run" / "logs").glob("gang-*.log")] == ["gang-0.log"]
    second = json.loads((site / "run" / "judged-1" / "verdicts.json").read_text())
    assert second["verdicts"] == first["verdicts"]
    assert verdicts_of(site) == first
