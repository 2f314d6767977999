"""Where a site's history lies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_ddpscale.results.run_opening import RUNS_FOLDER

HISTORY_VARIABLE = "DDPSCALE_HISTORY"


def default_history_file(environ: Mapping[str, str]) -> Path:
    """The file that ``$DDPSCALE_HISTORY`` names, else ``ddpscale-runs/history.sqlite`` here."""
    named = environ.get(HISTORY_VARIABLE)
    return Path(named) if named else RUNS_FOLDER / "history.sqlite"
