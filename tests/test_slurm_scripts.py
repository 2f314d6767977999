"""The job scripts, executed as Slurm would: with bash, in the site's directory, with a job id."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "slurm" / "one_node.sbatch"


def run_script(cwd: Path, *arguments: str, job_id: str | None = "17") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
    environment |= {"DDPSCALE_VENV": sys.prefix, "DDPSCALE_SKU": "cpu"}
    if job_id is not None:
        environment["SLURM_JOB_ID"] = job_id
    command = ["bash", str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_one_node_plans_the_sku_of_the_site(tmp_path: Path) -> None:
    result = run_script(tmp_path, "--collect-only", "-p", "no:cacheprovider")
    assert result.returncode == 0, result.stderr
    assert "ddpscale plan for cpu" in result.stdout


def test_one_node_outside_a_job_says_so(tmp_path: Path) -> None:
    result = run_script(tmp_path, job_id=None)
    assert result.returncode != 0
    assert "SLURM_JOB_ID: started by sbatch" in result.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck: apt-get install shellcheck")
def test_job_scripts_are_clean_to_shellcheck() -> None:
    result = subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout
