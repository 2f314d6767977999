"""What a version on which a step fails, or that cannot be tried, comes to; .ci/run tries some for real."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.benchmarks import benchmark

versions = benchmark("versions")
FOUND = " | ".join(["3.10.13", "2.9.0", *(f"1.{number}" for number, _ in enumerate(versions.PACKAGES[1:]))])
# What an environment of stand-ins says to a step.
PYTHON = {
    "-c *metadata*": f"echo '{FOUND}'",
    "*suite inference*": "echo 'Inference: 55 img/s per rank'",
    "-m pytest*": "echo 'ACCEPTED: 3 of 3 requirements passed'",
}
OFFLINE = "echo 'cause: Failed to fetch: http://127.0.0.1:9/simple/pytest/'; exit 2"


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
        (
            ["--whole", "lowest"], {}, {"-c *metadata*": "echo '3.10.13 | 2.11.0 | 1.0'"}, 1,
            "| lowest | FAILED | – | – | – |", "lowest: Python: FAILED\n3.10.13 | 2.11.0 | 1.0\nexit code 0",
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
