from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm_scripts.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A directory with stand-ins for programs."""
    return Stage(tmp_path)
