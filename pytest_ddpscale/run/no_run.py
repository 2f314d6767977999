"""What to say where there should be a run directory and is none."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.util.nearest import did_you_mean_path

RUNS_FOLDER = Path("ddpscale-runs")


def no_run(path: Path) -> RunDirectoryError:
    """That it does not exist, or is no run directory; with the name of one that was probably meant."""
    lists = "`ddpscale runs` lists runs."
    if path.is_dir():
        within = next(iter(_runs_in(path)), None)
        near = f"; did you mean '{within}'?" if within else ""
        return RunDirectoryError(str(path), f"has no run.json{near}", "" if near else "a run directory", lists)
    if path.exists():
        return RunDirectoryError(str(path), "is a file", "a run directory", lists)
    near = did_you_mean_path(path, (*_runs_in(path.parent), *_runs_in(RUNS_FOLDER)))
    return RunDirectoryError(str(path), f"does not exist{near}", action=lists)


def _runs_in(folder: Path) -> list[Path]:
    """The run directories directly in a folder, `latest` first; none of a folder that cannot be read."""
    try:
        found = [path for path in folder.iterdir() if (path / "run.json").is_file()]
    except OSError:
        return []
    return sorted(found, key=lambda path: (path.name != "latest", path.name))
