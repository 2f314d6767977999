"""What a user gets: the wheel, installed, run from a directory with nothing in it; test_cpu_run.py measures with it."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path


def run(installed: Path, command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    program = [str(installed / "python"), "-m", "pytest"] if command == "pytest" else [str(installed / command)]
    return subprocess.run(
        [*program, *arguments], capture_output=True, text=True, cwd=cwd, timeout=300, check=False, env=environment
    )


def test_the_wheel_carries_what_a_site_needs_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "acceptance/test_scaling.py",
        "thresholds.yaml",
        "py.typed",
        "slurm/",
    ):
        assert any(name.startswith(f"pytest_ddpscale/{wanted}") for name in names), wanted
    assert {f"pytest_ddpscale/util/{name}" for name in ("page.html", "report.css", "report.js")} <= set(names)
    assert {name.split("/")[0] for name in names} == {"pytest_ddpscale", "pytest_ddpscale-0.1.0.dist-info"}


def test_the_installed_package_is_the_wheels(installed: Path, tmp_path: Path) -> None:
    found = run(installed, "python", "-c", "import pytest_ddpscale; print(pytest_ddpscale.__file__)", cwd=tmp_path)
    assert Path(found.stdout.strip()).is_relative_to(installed.parent)


def test_acceptance_tests_are_found_from_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    result = run(installed, "pytest", "--gpu-sku=b200", "--collect-only", cwd=tmp_path)
    assert result.returncode == 0
    assert "ddpscale plan for b200" in result.stdout
    assert "test_weak_scaling_efficiency[resnet152-fp16-node]" in result.stdout


def test_acceptance_tests_are_found_as_a_package(installed: Path, tmp_path: Path) -> None:
    arguments = ("--pyargs", "pytest_ddpscale.acceptance", "--gpu-sku=a100", "--collect-only", "-q")
    result = run(installed, "pytest", *arguments, "-k", "generation_ratio", cwd=tmp_path)
    assert result.returncode == 0
    assert "test_generation_ratio[resnet152-fp16-1gpu-vs-v100-sxm2-16gb]" in result.stdout


def test_a_site_made_by_init_uses_its_own_thresholds(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "ddpscale", "init", "site", cwd=tmp_path).returncode == 0
    assert (tmp_path / "site" / "thresholds.schema.json").is_file()
    assert os.access(tmp_path / "site" / "slurm" / "acceptance.sbatch", os.X_OK)
    result = run(installed, "pytest", "--gpu-sku=cpu", "--collect-only", cwd=tmp_path / "site")
    assert result.returncode == 0
    assert f"judges by {tmp_path / 'site' / 'thresholds.yaml'}" in result.stdout
