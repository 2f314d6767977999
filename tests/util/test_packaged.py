"""Shipped files are found in an installed package and in a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

import pytest_ddpscale.util.packaged
from pytest_ddpscale.util.packaged import packaged


def test_the_packages_own_copy_comes_before_a_neighbour_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pytest_ddpscale"
    monkeypatch.setattr(pytest_ddpscale.util.packaged, "_PACKAGE", package)
    with pytest.raises(FileNotFoundError, match=r"slurm is missing beside .*: reinstall pytest-ddpscale"):
        packaged("slurm")
    for owner in (tmp_path, package):
        (owner / "slurm").mkdir(parents=True)
        assert packaged("slurm") == owner / "slurm"
