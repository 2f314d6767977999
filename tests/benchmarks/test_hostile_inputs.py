"""A few of the hostile inputs of each family are tried in the suite; the script tries them all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.benchmarks.scripts import BENCHMARKS, benchmark


def test_there_are_many_of_many_families() -> None:
    cases = benchmark("hostile_inputs").cases()
    assert len(cases) >= 400
    assert len({case.family for case in cases}) >= 10


@pytest.mark.parametrize(
    ("sound", "code", "said", "cpu_s", "outcome"),
    [
        (False, 4, "thresholds.yaml:3: no", 0.1, "refused"),
        (False, 4, "thresholds.yaml:3: no", 2.5, "slow"),
        (False, 4, "no", 0.1, "mute"),
        (False, 1, "thresholds.yaml:3: no", 0.1, "mute"),
        (False, 0, "", 0.1, "wrong pass"),
        (False, 4, "Traceback (most", 0.1, "traceback"),
        (False, None, "", 60.0, "hang"),
        (True, 0, "", 3.0, "accepted rightly"),
        (True, 4, "thresholds.yaml:3: no", 0.1, "wrong refusal"),
    ],
)
def test_what_comes_out_is_told_apart(sound: bool, code: int | None, said: str, cpu_s: float, outcome: str) -> None:
    script = benchmark("hostile_inputs")
    case = script.Case("file", "a case", script.CHECK, sound=sound)
    assert script._judged(case, code, said, cpu_s) == outcome


@pytest.mark.lab
def test_some_of_each_family_come_out_right() -> None:
    command = (sys.executable, str(BENCHMARKS / "hostile_inputs.py"), "--every", "100")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "slowest refusal" in done.stdout
