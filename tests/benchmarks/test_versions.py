"""Versions: the lowest that pyproject.toml allows are installed and used for real; the table says what failed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.benchmarks.scripts import benchmark
from tests.slurm_lab.fixtures import skip_or_fail

versions = benchmark("versions")


@pytest.mark.lab
def test_the_lowest_versions_measure_and_judge_like_all_others(tmp_path: Path) -> None:
    try:
        wheel = versions.build(tmp_path)
    except versions.StepFailed as error:
        if not error.is_offline:
            raise
        skip_or_fail(f"there is no package index: {error}")
    with tempfile.TemporaryDirectory() as folder:  # some 6 GB, which tmp_path would keep for three sessions
        tried = versions.try_versions(versions.LOWEST, wheel, Path(folder))
    assert tried.is_as_expected, tried.ended
    assert tried.versions["torch"] == "2.9.0"


def test_each_step_is_tried_and_one_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = tmp_path / "environment" / "bin"
    environment.mkdir(parents=True)
    packages = ", ".join(f'"{name}": "1.{number}"' for number, name in enumerate(versions.PACKAGES))
    scripts = {
        "python": (
            f"""case "$1 $2" in "-c "*) echo '{{"Python": "3.10.13", {packages}}}' ;;"""
            """ "-m pytest") echo "ACCEPTED: 2 of 3 requirements passed" ;; esac"""
        ),
        "ddpscale": 'echo "Inference: 55 img/s per rank"',
    }
    for name, script in scripts.items():
        (environment / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (environment / name).chmod(0o755)
    monkeypatch.setattr(versions, "build", lambda folder: folder / "any.whl")
    monkeypatch.setattr(versions, "interpreter", lambda version: Path("python3") if version == "3.10" else None)
    monkeypatch.setattr(versions, "install", lambda *_: environment / "python")
    assert versions.main(["3.10", "3.12"]) == 1
    said = capsys.readouterr()
    found = " | ".join(f"1.{number}" for number in range(len(versions.PACKAGES)))
    assert f"| 3.10 | 3.10.13 | {found} | yes | yes | NO | 0 |\n" in said.out
    assert "| NO | NO | NO | 0 |\n" in said.out
    assert "3.10: main job: ACCEPTED: 2 of 3 requirements passed" in said.err
    assert "3.12: installed: no Python 3.12 on PATH" in said.err
