"""The oracle finds nothing where nothing changed, and says where and how a verdict differs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.scripts import BENCHMARKS, benchmark

RUN, ID = "recorded-rtx-lost-gpu", "node_check[pcie]"
VERDICT = {"outcome": "passed", "value": 1.0, "flags": ["undecided"]}
BEFORE = {"run-a": {ID: VERDICT}, "run-b": {"history": {"x": [1]}}}


def test_it_reports_a_tampered_expectation_and_nothing_else(tmp_path: Path) -> None:
    lines = (BENCHMARKS / "oracle" / "facts" / f"{RUN}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if line.startswith(f'["{ID}",'))
    assert lines[number].count('"failed"') == 1
    lines[number] = lines[number].replace('"failed"', '"passed"')
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / f"{RUN}.jsonl").write_text("".join(lines), encoding="utf-8")
    command = [sys.executable, str(BENCHMARKS / "oracle.py"), "--check", "--only", f"{RUN}*", "--data", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    first, last = done.stdout.splitlines()
    assert (done.returncode, first) == (1, f"{RUN} {ID}: outcome: passed → failed")
    assert last.startswith("1 differences in 1 runs")


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        pytest.param({ID: VERDICT | {"value": 1.00001}}, [], id="the sixth digit"),
        pytest.param({ID: VERDICT | {"value": 1.00003}}, [f"run-a {ID}: value: 1.0 → 1.00003"], id="more"),
        pytest.param({}, [f"run-a {ID}: passed → (absent)"], id="a fact is lost"),
        pytest.param(
            {ID: {"outcome": "failed", "value": 1.0, "flags": ["wrong-data"]}},
            [
                f"run-a {ID}: outcome: passed → failed",
                f"run-a {ID}: flags undecided: True → (absent)",
                f"run-a {ID}: flags wrong-data: (absent) → True",
            ],
            id="outcomes come first",
        ),
    ],
)
def test_a_difference_is_a_line(after: dict[str, dict[str, object]], lines: list[str]) -> None:
    assert benchmark("oracle").fact_differences(BEFORE, BEFORE | {"run-a": after}) == lines


def test_a_run_without_stored_facts_is_no_heap_of_differences() -> None:
    (line,) = benchmark("oracle").fact_differences({}, BEFORE)[1:]
    assert line == "run-b: no facts are stored; --store --only run-b stores them"


def test_what_is_stored_is_a_line_a_fact_and_goes_with_its_run(tmp_path: Path) -> None:
    oracle = benchmark("oracle")
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / "no-run.jsonl").write_text("", encoding="utf-8")
    facts = {RUN: {"b": {"y": [1.5, None], "x": "é"}, "a": {}}}
    oracle.store(tmp_path, facts, {})
    (file,) = (tmp_path / "facts").iterdir()
    assert file.read_text(encoding="utf-8").splitlines() == ['["a",{}]', '["b",{"x":"é","y":[1.5,null]}]']
    assert oracle.stored(tmp_path) == (facts, {})
