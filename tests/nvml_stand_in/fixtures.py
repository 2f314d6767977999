"""The fixtures that a conftest.py imports to play machines with GPUs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.nvml_stand_in.machine import PlayedMachine, build_library


@pytest.fixture(scope="session")
def nvml_library_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stand-in for libnvidia-ml.so.1 lies, compiled once."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler to build the stand-in for libnvidia-ml.so.1")
    return build_library(tmp_path_factory.mktemp("nvml_stand_in"))


@pytest.fixture
def machine(nvml_library_directory: Path, tmp_path: Path) -> PlayedMachine:
    """A machine without GPUs until `play` gives it some."""
    return PlayedMachine(nvml_library_directory, tmp_path / "machine.json").play([])
