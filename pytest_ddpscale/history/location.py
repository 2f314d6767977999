"""Where a site's history lies."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_opening import RUNS_FOLDER

DEFAULT_HISTORY = RUNS_FOLDER / "history.sqlite"


def history_file_of(asked: Path | None, run: RunDirectory) -> Path | None:
    """The site's history: the file asked for, else the one beside a run in ``ddpscale-runs``; None if there is none."""
    if asked is not None:
        return asked
    folder = run.path.parent
    return folder / DEFAULT_HISTORY.name if folder.resolve() == RUNS_FOLDER.resolve() else None
