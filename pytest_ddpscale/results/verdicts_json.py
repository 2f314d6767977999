"""Reading verdicts.json, the record of truth."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.results.run_directory import read_file
from pytest_ddpscale.results.verdicts import VERDICTS_SCHEMA_VERSION, Judgement


def read_judgement(path: Path) -> Judgement:
    """The content of a verdicts.json.

    Raises:
        RunDirectoryError: it is missing or broken, contradicts itself, or a newer version wrote it.
    """
    return read_file(path, Judgement, VERDICTS_SCHEMA_VERSION)
