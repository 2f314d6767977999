"""What a user gets: the wheel, installed, run from a directory with nothing in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(CHECKOUT)]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts folder of a virtual environment with the wheel, which borrows only its dependencies from here."""
    pytest.importorskip("pip", reason="pip installs the wheel, and `uv venv` without --seed has none")
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    purelib = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    # A path in a .pth file is searched, but its own .pth files, such as that of an editable install, are not read.
    Path(purelib, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, "--force-reinstall", str(wheel)], check=True, timeout=180)
    return environment / "bin"


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
        "thresholds.schema.json",
        "py.typed",
        "slurm/",
    ):
        assert any(name.startswith(f"pytest_ddpscale/{wanted}") for name in names), wanted
    assert any(name.startswith("pytest_ddpscale/report/templates/") for name in names)
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
    assert os.access(tmp_path / "site" / "slurm" / "acceptance.sbatch", os.X_OK)
    result = run(installed, "pytest", "--gpu-sku=cpu", "--collect-only", cwd=tmp_path / "site")
    assert result.returncode == 0
    assert f"judges by {tmp_path / 'site' / 'thresholds.yaml'}" in result.stdout


def test_the_installed_wheel_measures(installed: Path, tmp_path: Path) -> None:
    arguments = ("--gpu-sku=cpu", "--ddp-gpus-per-node=1", "--ddp-rounds=8", "--ddp-block=0.1s", "--ddp-run-dir=run")
    result = run(installed, "pytest", *arguments, "-k", "throughput_per_gpu and 1rank", cwd=tmp_path)
    (verdict,) = json.loads((tmp_path / "run" / "verdicts.json").read_text())["verdicts"]
    assert verdict["value"] > 0, result.stdout
    assert verdict["rounds"] == 8
    assert (tmp_path / "run" / "report.md").is_file()
    assert (tmp_path / "run" / "plots" / "weak-throughput.png").is_file()
