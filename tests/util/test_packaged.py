"""Shipped files are found in an installed package and in a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pytest_ddpscale.util.packaged
from pytest_ddpscale.util.packaged import packaged


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package directory, as if installed there."""
    path = tmp_path / "site-packages" / "pytest_ddpscale"
    path.mkdir(parents=True)
    monkeypatch.setattr(pytest_ddpscale.util.packaged, "_PACKAGE", path)
    return path


def test_the_packages_own_copy_comes_before_a_neighbour_of_that_name(package: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"slurm is missing beside .*: reinstall pytest-ddpscale"):
        packaged("slurm")
    (package.parent / "slurm").mkdir()
    assert packaged("slurm") == package.parent / "slurm"
    (package / "slurm").mkdir()
    assert packaged("slurm") == package / "slurm"


def test_a_zip_archive_is_refused_in_one_line_by_both_commands_and_left_alone_by_others(tmp_path: Path) -> None:
    package = Path(pytest_ddpscale.util.packaged.__file__).parents[1]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in package.rglob("*.py"):
            archive.write(file, file.relative_to(package.parent))
    (tmp_path / "here").mkdir()
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "all.zip")}
    main = "import sys; from pytest_ddpscale.cli import main; sys.exit(main(['init', 'site']))"
    run_pytest = ("-m", "pytest", "-p", "no:cacheprovider")
    for arguments, code in (((*run_pytest, "--gpu-sku=cpu"), 4), (run_pytest, 5), (("-c", main), 4)):
        command = [sys.executable, *arguments]
        result = subprocess.run(
            command, cwd=tmp_path / "here", env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert result.returncode == code, result.stdout + result.stderr
        said = f"pytest_ddpscale: cannot run from a zip archive ({tmp_path / 'all.zip'}); expected an"
        assert [said in line for line in result.stderr.splitlines() if line] == [True] * (code == 4)
        assert list((tmp_path / "here").iterdir()) == []
