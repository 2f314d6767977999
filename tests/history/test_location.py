"""Where the history of a run lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.history.database import DEFAULT_HISTORY, history_file_of
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_opening import RUNS_FOLDER


def test_it_is_the_file_that_was_asked_for(tmp_path: Path) -> None:
    asked = tmp_path / "site.sqlite"
    assert history_file_of(asked, RunDirectory(RUNS_FOLDER / "run")) == asked


def test_it_lies_beside_the_runs_of_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert history_file_of(None, RunDirectory(RUNS_FOLDER / "run")) == DEFAULT_HISTORY
    absolute = tmp_path / RUNS_FOLDER / "run"
    assert history_file_of(None, RunDirectory(absolute)) == tmp_path / DEFAULT_HISTORY


@pytest.mark.parametrize("path", ["run", "elsewhere/run", f"{RUNS_FOLDER}/run/judged-1"])
def test_a_run_elsewhere_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert history_file_of(None, RunDirectory(Path(path))) is None
