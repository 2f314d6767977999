"""A run and its verdicts, which are in its own directory or, if judged again, in another one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import read_judgement


class JudgedRun(NamedTuple):
    """The directories of a run's measurements and of its verdicts and reports; `judged` may have none yet."""

    measured: RunDirectory
    judged: RunDirectory


def open_judged(path: Path) -> JudgedRun:
    """A run directory, or one that ``--ddp-judge`` made, such as ``RUN/judged-2``.

    Raises:
        RunDirectoryError: it is neither, is broken, or the judged run is missing or has changed.
    """
    judged = RunDirectory(path)
    if judged.run_json.is_file() or not judged.verdicts_json.is_file():
        return JudgedRun(RunDirectory.open(path), judged)
    basis = read_judgement(judged.verdicts_json).basis
    named = Path(basis.get("measurements_path", "")).parent
    # As typed, relative to where pytest was started; inside the run itself; or next to it, if both were moved.
    for place in (named, path.parent, path.parent / named.name):
        run = RunDirectory(place)
        if run.run_json.is_file() and run.measurements_sha256() == basis.get("measurements_sha256"):
            return JudgedRun(RunDirectory.open(place), judged)
    raise RunDirectoryError(
        str(path), f"holds verdicts on {named}, which is missing or has changed", "the judged run, unchanged",
        f"Judge the run again with `pytest --ddp-judge={named}`, or start from the directory that contains it.",
    )  # fmt: skip
