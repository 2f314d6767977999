"""What holds for every script of slurm/."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.slurm_scripts.stage import SCRIPTS, SLURM, Stage

NAMES = [script.name for script in SCRIPTS]


def test_every_script_is_known_here() -> None:
    assert set(NAMES) == {
        "acceptance.sbatch",
        "drain_failed.sh",
        "health_check.sh",
        "nightly_health.sbatch",
        "nightly_submit.sh",
    }
    assert (SLURM / "scrontab.example").is_file()


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_it_can_be_executed_and_stops_at_the_first_error(script: Path) -> None:
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
    assert "---- site settings" in text


@pytest.mark.parametrize("name", NAMES)
def test_help_is_its_own_description_and_starts_nothing(stage: Stage, name: str) -> None:
    for program in ("pytest", "ddpscale", "sinfo", "sbatch", "scontrol"):
        stage.provide(program)
    result = stage.run(name, "--help")
    assert result.returncode == 0, result.stderr
    assert name in result.stdout
    assert "#SBATCH" not in result.stdout
    assert not any(stage.calls(program) for program in ("pytest", "ddpscale", "sinfo", "sbatch", "scontrol"))


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".sbatch")])
def test_sbatch_reads_every_option_of_a_job_script(name: str) -> None:
    lines = (SLURM / name).read_text(encoding="utf-8").splitlines()
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert any(line.startswith("#SBATCH --exclusive") for line in lines[:first_command])
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck: apt-get install shellcheck")
def test_scripts_are_clean_to_shellcheck() -> None:
    result = subprocess.run(["shellcheck", *SCRIPTS], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout
