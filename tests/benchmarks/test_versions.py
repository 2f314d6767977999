"""Lowest versions that pyproject.toml allows, and other plugins, for real; what fails, or cannot be tried, is told."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import benchmark
from tests.slurm_lab.fixtures import skip_or_fail

versions = benchmark("versions")
FOUND = " | ".join(["3.10.13", *(f"1.{number}" for number, _ in enumerate(versions.PACKAGES))])
# What an environment of stand-ins says to a step.
PYTHON = {
    "-c *metadata*": f"echo '{FOUND}'",
    "*suite inference*": "echo 'Inference: 55 img/s per rank'",
    "-m pytest*": "echo 'ACCEPTED: 3 of 3 requirements passed'",
}
OFFLINE = "echo 'cause: Failed to fetch: http://127.0.0.1:9/simple/pytest/'; exit 2"


@pytest.mark.lab
def test_the_lowest_versions_measure_and_judge_like_all_others(tmp_path: Path) -> None:
    try:
        wheel = versions.build(tmp_path)
        with tempfile.TemporaryDirectory() as name:  # some 6 GB, which tmp_path would keep for three sessions
            folder = Path(name) / versions.LOWEST
            folder.mkdir()
            installed, *ended = versions.try_steps(wheel, folder).values()
    except versions.StepFailed as error:
        if not error.excuse:
            raise
        skip_or_fail(f"there is no package index: {error}")
    assert ended == ["yes"] * 3, installed
    assert installed.split(" | ")[1] == "2.9.0"


def script(path: Path, answers: Mapping[str, str]) -> None:
    cases = "\n".join(f"{pattern.replace(' ', chr(92) + ' ')}) {does};;" for pattern, does in answers.items())
    path.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}\nesac\n', encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("asked", "uv", "python", "code", "row", "says"),
    [
        (["3.10"], {}, {}, 0, f"| 3.10 | {FOUND} | yes | yes |", ""),
        (["--whole", "lowest"], {}, {}, 0, f"| lowest | {FOUND} | yes | yes | yes |", ""),
        (
            ["--whole", "3.10"], {}, {"-m pytest*": "echo ACCEPTED: 2 of 3 requirements passed"}, 1,
            f"| 3.10 | {FOUND} | yes | yes | FAILED |", "3.10: main job: FAILED\nACCEPTED: 2 of 3 requirements passed",
        ),
        (
            ["3.10"], {}, {"-c *walk_packages*": "echo TypeError: Multiple inheritance; exit 1"}, 1,
            f"| 3.10 | {FOUND} | FAILED | yes |", "TypeError: Multiple inheritance\nexit code 1\n",
        ),
        (
            ["3.10"], {}, {"*oracle.py*": "echo 'outcome: failed → passed'; exit 1"}, 1,
            f"| 3.10 | {FOUND} | yes | FAILED |", "outcome: failed → passed",
        ),
        (["3.12"], {}, {}, 0, "| 3.12 | no such Python on PATH or among pyenv's versions | – | – |", "3.12: Python"),
        (["3.10"], {"*pip*": OFFLINE}, {}, 0, "| 3.10 | not tried, without a package index | – | – |", "Failed to"),
    ],
)  # fmt: skip
def test_each_step_is_tried_and_one_that_fails_is_told(
    asked: list[str], uv: dict[str, str], python: dict[str, str], code: int, row: str, says: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    made, bin_of_uv = tmp_path / "made", tmp_path / "uv"
    made.mkdir()
    script(made / "python", python | {**PYTHON, **python})
    makes = {
        "*venv*3.10*": f"mkdir environment; cp -r {made} environment/bin",
        "*venv*": "echo No interpreter found; exit 2",
    }
    script(bin_of_uv, uv | makes)
    monkeypatch.setattr(versions.sys, "executable", str(bin_of_uv))
    monkeypatch.setattr(versions, "build", lambda folder: folder / "any.whl")
    assert versions.main(asked) == code
    said = capsys.readouterr().out
    assert row in said
    assert says in said


@pytest.mark.lab
def test_plugins_change_no_verdict_or_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pytest-timeout stops no measurement, and pytest-forked is refused."""
    script: Any = benchmark("plugins")
    monkeypatch.setattr(script, "RUNS", {"recorded-cpu": script.RUNS["recorded-cpu"]})
    monkeypatch.setattr("sys.argv", ["plugins.py", "--only", "pytest-forked", "pytest-timeout"])
    assert script.main() == 0, capsys.readouterr().err
    assert capsys.readouterr().out.count("| same verdicts") == 2
