"""Shipped files are found in an installed package and in a checkout."""

from __future__ import annotations

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
