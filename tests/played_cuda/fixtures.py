"""The fixtures that a conftest.py imports to play CUDA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.played_cuda.compiling import build, reason_not_to_build


@pytest.fixture(scope="session")
def played_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the played libraries of CUDA and NVML lie, compiled once for all workers of a session."""
    if reason := reason_not_to_build():
        pytest.skip(reason)
    own = tmp_path_factory.getbasetemp()
    return build(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)
