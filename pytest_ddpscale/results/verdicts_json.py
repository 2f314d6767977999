"""Reading verdicts.json, the record of truth."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.results.run_directory import broken_file, read_versioned
from pytest_ddpscale.results.verdicts import VERDICTS_SCHEMA_VERSION, Judgement


def read_judgement(path: Path) -> Judgement:
    """The content of a verdicts.json.

    Raises:
        RunDirectoryError: it is missing or broken, or a newer version wrote it.
    """
    data = read_versioned(path, VERDICTS_SCHEMA_VERSION, "verdicts.json")
    try:
        return Judgement.from_json(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise broken_file(path, f"does not hold verdicts ({error})") from None
