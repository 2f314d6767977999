"""Scripts that try to get a wrong verdict out of the package, or plant a defect into it: a few of their cases."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import BENCHMARKS, benchmark
from tests.forks.start import BARE, address, command_at

MUTATE_RUNS = benchmark("mutate_runs")
TABLE: Any = benchmark("defects")
ROOT, REFUSAL = BENCHMARKS.parent, "thresholds.yaml:3: no"


@pytest.mark.lab
def test_each_defect_fails_the_test_that_watches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = address("", "bare")
    monkeypatch.setenv(BARE, bare)
    monkeypatch.setattr(TABLE, "PYTEST", command_at(bare, "pytest"))
    for folder in ("pytest_ddpscale", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("pyproject.toml", "thresholds.yaml"):
        shutil.copy2(ROOT / file, tmp_path)
    tests = {defect.id: f"tests/{defect.seen_by}" for defect in TABLE.DEFECTS if "::" in defect.seen_by}
    assert len(tests) >= 20
    assert TABLE.first_failure(tmp_path, sorted(set(tests.values()))) == "", "without a defect"
    defects = [defect for defect in TABLE.DEFECTS if defect.id in tests]
    failed = {defect.id: TABLE.caught_by(tmp_path, defect, [tests[defect.id]]) for defect in defects}
    assert not {id_: by for id_, by in failed.items() if not f"{by}[".startswith(f"{tests[id_]}[")}


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
    assert MUTATE_RUNS.outcome_of(sound, MUTATE_RUNS.judged(run)[0])[0] == "wrong pass"


@pytest.mark.lab
def test_some_hostile_inputs_of_each_family_come_out_right() -> None:
    command = (sys.executable, str(BENCHMARKS / "hostile_inputs.py"), "--every", "100")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "slowest refusal" in done.stdout


@pytest.mark.parametrize(
    ("sound", "code", "said", "cpu_s", "outcome"),
    [
        (False, 4, REFUSAL, 0.1, "refused"),
        (False, 4, REFUSAL, 2.5, "slow"),
        (False, 4, "no", 0.1, "mute"),
        (False, 1, REFUSAL, 0.1, "mute"),
        (False, 0, "", 0.1, "wrong pass"),
        (False, 4, "Traceback (most", 0.1, "traceback"),
        (False, None, "", 60.0, "hang"),
        (True, 0, "", 3.0, "accepted rightly"),
        (True, 4, REFUSAL, 0.1, "wrong refusal"),
    ],
)
def test_what_comes_out_of_a_hostile_input_is_told_apart(
    sound: bool, code: int | None, said: str, cpu_s: float, outcome: str
) -> None:
    script, reporting = benchmark("hostile_inputs"), benchmark("reporting")
    assert script.judged(script.Case("file", "a case", sound=sound), reporting.Ended(code, cpu_s, 0.0, said)) == outcome


def test_each_rule_has_one_defect() -> None:
    rules = [defect.rule for defect in TABLE.DEFECTS if defect.rule]
    assert len(rules) == len(set(rules)) == 34


@pytest.mark.parametrize("defect", [pytest.param(defect, id=defect.id) for defect in TABLE.DEFECTS if defect.seen_by])
def test_what_sees_a_defect_is_there(defect: Any) -> None:
    if not defect.seen_by.startswith("oracle: "):
        file, *_, name = defect.seen_by.split("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")
        return
    _, run, *fact, field = defect.seen_by.split()
    lines = (BENCHMARKS / "oracle" / "facts" / f"{run}.jsonl").read_text(encoding="utf-8").splitlines()
    assert field in dict(map(json.loads, lines))[" ".join(fact)]
