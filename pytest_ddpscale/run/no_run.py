"""What to say where there should be a run directory and is none."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.errors import RunDirectoryError

RUNS_FOLDER = Path("ddpscale-runs")


def no_run(path: Path) -> RunDirectoryError:
    """That it does not exist, or is no run directory."""
    lists = "`ddpscale runs` lists runs."
    if not path.exists():
        return RunDirectoryError(str(path), "does not exist", action=lists)
    found = "has no run.json" if path.is_dir() else "is a file"
    return RunDirectoryError(str(path), found, "a run directory", lists)
