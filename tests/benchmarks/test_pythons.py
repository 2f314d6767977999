"""Other Pythons: which are found, and what a failure looks like. `.ci/run` tries the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.scripts import benchmark

pythons = benchmark("pythons")
Capture = pytest.CaptureFixture[str]


def stand_in(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The newest Python 3.10 of pyenv's, behind a shim that does not start and a Python 3.1."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    stand_in(tmp_path / "bin" / "python3.10", "exit 127")
    for version in ("3.1.5", "3.10.9", "3.10.13", "3.10-dev"):
        stand_in(tmp_path / "pyenv" / "versions" / version / "bin" / "python3", f"echo {version}")
    return tmp_path / "pyenv" / "versions" / "3.10.13" / "bin" / "python3"


def test_only_a_python_that_starts_and_says_that_version_counts(found: Path, tmp_path: Path) -> None:
    assert (pythons.interpreter("3.10"), pythons.interpreter("3.12")) == (found, None)
    assert (pythons.python_of("lowest"), pythons.python_of("3.12")) == (found, None)
    on_path = stand_in(tmp_path / "bin" / "python3.10", "echo 3.10.2")
    assert pythons.interpreter("3.10") == on_path


def test_without_a_package_index_nothing_is_tried_and_that_is_said(
    found: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    uv = "error: Request failed after 3 retries\n  cause: Failed to fetch: http://127.0.0.1:9/simple/pytest/"
    monkeypatch.setattr(pythons, "install", lambda *_: (_ for _ in ()).throw(pythons.StepFailed(uv)))
    assert pythons.main(["3.10"]) == 0
    said = capsys.readouterr().out
    assert "| 3.10 | not tried, without a package index | – | – | 0 |" in said
    assert "3.10: Python: not tried, without a package index\nerror: Request" in said


@pytest.mark.parametrize(
    ("step", "says", "cells"),
    [
        ("-c", "TypeError: Multiple inheritance", "3.10.13 | FAILED | yes"),
        ("*oracle.py", "outcome: failed → passed", "3.10.13 | yes | FAILED"),
    ],
)
def test_each_step_that_fails_is_shown_and_fails_it(
    found: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, step: str, says: str, cells: str
) -> None:
    def install(python: Path, folder: Path, *_: object) -> Path:
        return stand_in(folder / "environment" / "bin" / "python", f'case "$1" in {step}) echo "{says}"; exit 1;; esac')

    monkeypatch.setattr(pythons, "install", install)
    assert pythons.main(["3.10", "3.12"]) == 1
    said = capsys.readouterr().out
    assert f"| 3.10 | {cells} | 0 |" in said
    assert f"{says}\nexit code 1, expected 0\n" in said
    assert "3.12: no such Python" in said
