"""The job scripts, executed as Slurm would: with bash, in the site's directory, with a job id."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.slurm_scripts.stage import Stage

JOB = {"SLURM_JOB_ID": "17", "DDPSCALE_SKU": "b200"}
NIGHTLY = JOB | {"SLURMD_NODENAME": "n7", "DDPSCALE_NIGHT": "2026-01-31"}
NIGHTLY_BUDGET_MIN = 10
JOB_SCRIPTS = ["acceptance.sbatch", "nightly_health.sbatch"]


@pytest.fixture
def job(stage: Stage) -> Stage:
    """A site whose pytest records what it was called with."""
    stage.provide("pytest")
    return stage


def holds_a_run(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "run.json").write_text("{}", encoding="utf-8")


@pytest.mark.parametrize("script", JOB_SCRIPTS)
def test_outside_a_job_it_says_so(job: Stage, script: str) -> None:
    result = job.run(script)
    assert result.returncode != 0
    assert "SLURM_JOB_ID: not set: submit this script with sbatch" in result.stderr
    assert job.calls("pytest") == []


@pytest.mark.parametrize("script", JOB_SCRIPTS)
def test_the_exit_code_is_pytests(job: Stage, script: str) -> None:
    job.provide("pytest", "exit 3")
    assert job.run(script, settings=NIGHTLY).returncode == 3


@pytest.mark.parametrize("script", JOB_SCRIPTS)
def test_arguments_go_to_pytest_as_they_are(job: Stage, script: str) -> None:
    job.run(script, "-k", "a or b", settings=NIGHTLY)
    assert job.calls("pytest")[0][-2:] == ["-k", "a or b"]


@pytest.mark.parametrize("script", JOB_SCRIPTS)
def test_all_runs_of_a_site_go_into_one_history(job: Stage, script: str) -> None:
    job.provide("pytest", 'echo "$DDPSCALE_HISTORY"')
    assert job.run(script, settings=NIGHTLY).stdout == "ddpscale-runs/history.sqlite\n"
    assert job.run(script, settings=NIGHTLY | {"DDPSCALE_RUNS": "/our runs"}).stdout == "/our runs/history.sqlite\n"
    assert job.run(script, settings=NIGHTLY | {"DDPSCALE_HISTORY": "ours.sqlite"}).stdout == "ours.sqlite\n"


def test_a_nightly_check_plans_what_decides_a_node_in_minutes(stage: Stage) -> None:
    settings = NIGHTLY | {"DDPSCALE_VENV": sys.prefix, "DDPSCALE_NIGHTLY_GPUS": "8"}
    arguments = ["--collect-only", "-p", "no:cacheprovider", "--ddp-gpus-per-node=8"]
    result = stage.run("nightly_health.sbatch", *arguments, settings=settings)
    assert result.returncode == 0, result.stderr
    [plan] = re.findall(r"about ([0-9.]+) min on 8 .*\(at most ([0-9.]+) min\)", " ".join(result.stdout.split()))
    assert float(plan[0]) <= 5
    assert float(plan[1]) <= NIGHTLY_BUDGET_MIN, "what takes all its rounds is decided too"
    assert "test_node_check[ecc]" in result.stdout
    assert "test_throughput" not in result.stdout


def test_a_node_without_a_driver_fails_its_job_instead_of_being_judged_as_a_cpu(stage: Stage) -> None:
    settings = NIGHTLY | {"DDPSCALE_SKU": "auto", "DDPSCALE_VENV": sys.prefix, "CUDA_VISIBLE_DEVICES": ""}
    result = stage.run("nightly_health.sbatch", "-p", "no:cacheprovider", settings=settings)
    assert result.returncode == 4
    assert "--gpu-sku=auto: no NVIDIA GPU is visible here" in result.stdout + result.stderr
    assert not list(stage.path.rglob("run.json"))


def test_acceptance_makes_a_run_named_after_its_job(job: Stage) -> None:
    job.run("acceptance.sbatch", settings=JOB)
    assert job.calls("pytest") == [["--gpu-sku=b200", "--ddp-launcher=slurm", "--ddp-run-dir=ddpscale-runs/job-17"]]


def test_acceptance_takes_the_sites_thresholds_and_arguments(job: Stage) -> None:
    settings = {"DDPSCALE_THRESHOLDS": "our thresholds.yaml", "DDPSCALE_ARGS": "--ddp-container=a.sif  --ddp-nvtx"}
    job.provide("pytest", 'echo "$DDPSCALE_THRESHOLDS"')
    assert job.run("acceptance.sbatch", settings=JOB | settings).stdout == "our thresholds.yaml\n"
    [arguments] = job.calls("pytest")
    assert arguments[2:4] == ["--ddp-container=a.sif", "--ddp-nvtx"]


def test_acceptance_goes_on_where_a_requeued_job_was(job: Stage) -> None:
    holds_a_run(job.path / "runs" / "job-17")
    result = job.run("acceptance.sbatch", settings=JOB | {"DDPSCALE_RUNS": "runs", "SLURM_RESTART_COUNT": "1"})
    assert job.calls("pytest") == [["--gpu-sku=b200", "--ddp-launcher=slurm", "--ddp-resume=runs/job-17"]]
    assert "restart 1 of job 17 continues runs/job-17" in result.stdout


def test_acceptance_begins_anew_where_a_requeued_job_had_not_begun(job: Stage) -> None:
    job.run("acceptance.sbatch", settings=JOB | {"SLURM_RESTART_COUNT": "1"})
    assert "--ddp-run-dir=ddpscale-runs/job-17" in job.calls("pytest")[0]


def test_acceptance_finishes_the_run_that_it_is_told_to(job: Stage) -> None:
    holds_a_run(job.path / "ddpscale-runs" / "job-17")
    job.run("acceptance.sbatch", "--ddp-resume=ddpscale-runs/job-3", settings=JOB)
    assert job.calls("pytest")[0][2:] == ["--ddp-resume=ddpscale-runs/job-3"]


def test_nightly_checks_its_node_into_a_directory_of_night_and_node(job: Stage) -> None:
    job.run("nightly_health.sbatch", settings=NIGHTLY)
    assert job.calls("pytest") == [
        [
            "--gpu-sku=b200",
            "--ddp-launcher=torchrun",
            "--ddp-run-dir=ddpscale-runs/nightly/2026-01-31/n7",
            "-m",
            "node_health",
            "--ddp-budget=10m",
        ]
    ]


def test_nightly_asks_for_no_more_gpus_than_the_node_has(job: Stage) -> None:
    job.provide("pytest", 'echo "$DDPSCALE_THRESHOLDS"')
    settings = NIGHTLY | {"SLURM_GPUS_ON_NODE": "4", "DDPSCALE_THRESHOLDS": "t.yaml"}
    assert job.run("nightly_health.sbatch", settings=settings).stdout == "t.yaml\n"
    assert job.calls("pytest")[0][-1] == "--ddp-world-sizes=1,2,3,4"


def test_nightly_checks_a_node_once_a_night(job: Stage) -> None:
    holds_a_run(job.path / "ddpscale-runs" / "nightly" / "2026-01-31" / "n7")
    result = job.run("nightly_health.sbatch", settings=NIGHTLY)
    assert result.returncode == 0
    assert "n7 was already checked" in result.stdout
    assert job.calls("pytest") == []
