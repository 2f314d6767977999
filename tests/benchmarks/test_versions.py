"""Versions: the lowest that pyproject.toml allows are installed and used for real; the table says what failed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.benchmarks.scripts import benchmark
from tests.slurm_lab.fixtures import skip_or_fail

pythons, versions = benchmark("pythons"), benchmark("versions")


@pytest.mark.lab
def test_the_lowest_versions_measure_and_judge_like_all_others(tmp_path: Path) -> None:
    try:
        steps = versions.steps_with(versions.build(tmp_path))
    except pythons.StepFailed as error:
        if not error.is_offline:
            raise
        skip_or_fail(f"there is no package index: {error}")
    with tempfile.TemporaryDirectory() as name:  # some 6 GB, which tmp_path would keep for three sessions
        folder = Path(name) / pythons.LOWEST
        folder.mkdir()
        installed, *ended = pythons.try_steps(pythons.python_of(pythons.LOWEST), steps, folder).values()
    assert ended == ["yes"] * 3, installed
    assert installed.split(" | ")[1] == "2.9.0"


def test_each_step_is_tried_and_one_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions_found = " | ".join(["3.10.13", *(f"1.{number}" for number, _ in enumerate(versions.PACKAGES))])
    scripts = {
        "python": (
            f"""case "$1 $2" in "-c "*) echo '{versions_found}' ;;"""
            """ "-m pytest") echo "ACCEPTED: 2 of 3 requirements passed" ;; esac"""
        ),
        "ddpscale": 'echo "Inference: 55 img/s per rank"',
    }

    def install(_: object, folder: Path, *__: object) -> Path:
        made = folder / "environment" / "bin"
        made.mkdir(parents=True)
        for name, script in scripts.items():
            (made / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            (made / name).chmod(0o755)
        return made / "python"

    monkeypatch.setattr(versions, "build", lambda folder: folder / "any.whl")
    monkeypatch.setattr(pythons, "interpreter", lambda version: Path("python3") if version == "3.10" else None)
    monkeypatch.setattr(versions, "install", install)
    assert versions.main(["3.10", "3.12"]) == 1
    said = capsys.readouterr().out
    assert f"| 3.10 | {versions_found} | yes | yes | FAILED | 0 |\n" in said
    assert "3.10: main job: FAILED\nACCEPTED: 2 of 3 requirements passed" in said
    assert "3.12: no such Python" in said
