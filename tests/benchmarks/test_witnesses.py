"""Scripts that try to get a wrong verdict out of the package: a few of their cases here, all of them by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.scripts import BENCHMARKS, benchmark

MUTATE_RUNS = benchmark("mutate_runs")


@pytest.mark.lab
def test_mutants_of_a_run_are_refused_or_judged_no_better_and_a_better_one_is_told(tmp_path: Path) -> None:
    run = MUTATE_RUNS.simulated(tmp_path / "run", MUTATE_RUNS.SIMULATED_FAULTS[0])
    families = [mutant.family for mutant in MUTATE_RUNS.mutants(run)]
    assert len(families) >= 200
    assert len(set(families)) >= 9
    third = {number for number, family in enumerate(families) if families[:number].count(family) == 2}
    tried = list(MUTATE_RUNS.tried(run, tmp_path / "mutant", third.__contains__))
    assert len(tried) >= 5
    assert [one for one in tried if one[1] not in ("refused", "no better")] == []
    sound = MUTATE_RUNS.simulated(tmp_path / "sound", ())
    assert MUTATE_RUNS.outcome_of(sound, MUTATE_RUNS.judged(run))[0] == "wrong pass"


@pytest.mark.lab
def test_some_hostile_inputs_of_each_family_come_out_right() -> None:
    command = (sys.executable, str(BENCHMARKS / "hostile_inputs.py"), "--every", "100")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "slowest refusal" in done.stdout


def test_what_comes_out_of_a_hostile_input_is_told_apart() -> None:
    script = benchmark("hostile_inputs")
    refusal = "thresholds.yaml:3: no"
    for sound, code, said, cpu_s, outcome in (
        (False, 4, refusal, 0.1, "refused"),
        (False, 4, refusal, 2.5, "slow"),
        (False, 4, "no", 0.1, "mute"),
        (False, 1, refusal, 0.1, "mute"),
        (False, 0, "", 0.1, "wrong pass"),
        (False, 4, "Traceback (most", 0.1, "traceback"),
        (False, None, "", 60.0, "hang"),
        (True, 0, "", 3.0, "accepted rightly"),
        (True, 4, refusal, 0.1, "wrong refusal"),
    ):
        case = script.Case("file", "a case", sound=sound)
        assert script.judged(case, code, said, cpu_s) == outcome
