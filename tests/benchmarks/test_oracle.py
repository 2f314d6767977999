"""The oracle finds nothing where nothing changed, and says how a verdict differs; edits change what they name."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import BENCHMARKS, benchmark
from tests.forks.start import python

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
    command = python(BENCHMARKS / "oracle.py", "--check", "--only", f"{RUN}*", "--data", tmp_path)
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


def block(number: int = 0, **changes: Any) -> dict[str, Any]:
    steps = base64.b64encode(struct.pack("<4f", 1, 1, 2, 2)).decode()
    said = {"study": "weak/net", "arm": "ddp@2", "round": number, "gang": 0, "ranks": [4, 5], "seconds": [2.0, 4.0]}
    return (
        said
        | {"kind": "timed", "readings": {"utilization": 0.9}, "series": {"step_s": steps}, "digests": "a" * 16}
        | changes
    )


def edited(folder: Path, *edits: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines of two rounds of a run with telemetry, after edits."""
    ends: list[dict[str, Any]] = [
        {"kind": "round_end", "study": "weak/net", "round": number, "arms": []} for number in (0, 1)
    ]
    lines = [block(0), ends[0], block(1), ends[1], {"kind": "study_end", "study": "weak/net", "reason": "rounds"}]
    window = {"kind": "telemetry", "study": "weak/net", "arm": "ddp@2", "ranks": [4, 5]}
    files: dict[str, list[dict[str, Any]]] = {
        "run.json": [{}],
        "measurements.jsonl": [window | {"round": 0}, window | {"round": 1}, *lines],
    }
    for name, said in files.items():
        (folder / name).write_text("\n".join(map(json.dumps, said)))
    benchmark("oracle_runs").edit(folder, edits)
    after = list(map(json.loads, (folder / "measurements.jsonl").read_text().splitlines()))
    lines, telemetry = ([one for one in after if (one["kind"] == "telemetry") == is_told] for is_told in (False, True))
    return lines, telemetry


@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        ("reading weak/* 5 utilization 0.5 1-1", {"readings": {"utilization": [0.9, 0.5]}}),
        ("reading weak/* all utilization 0.5", {"readings": {"utilization": [0.5, 0.5]}}),
        ("reading strong/* all utilization 0.5", {}),
        ("parameters weak/net/ddp@2 4 1-1", {"digests": "f" * 16 + "a" * 16}),
    ],
)
def test_an_edit_changes_what_it_names(edit: str, changed: dict[str, Any], tmp_path: Path) -> None:
    lines, _ = edited(tmp_path, edit)
    assert lines[2] == block(1, **changed)


def test_a_slower_rank_has_slower_steps(tmp_path: Path) -> None:
    lines, _ = edited(tmp_path, "scale weak/net/* 5 1.5")
    assert lines[0]["seconds"] == [2.0, 6.0]
    assert struct.unpack("<4f", base64.b64decode(lines[0]["series"]["step_s"])) == (1, 1, 3, 3)


def test_a_stopped_session_has_nothing_of_later_rounds(tmp_path: Path) -> None:
    lines, telemetry = edited(tmp_path, "stop weak/net 1")
    assert [line.get("round") for line in lines] == [0, 0, None]
    assert lines[-1]["reason"] == "interrupted"
    assert [window["round"] for window in telemetry] == [0]


def test_decisions_are_noted_where_they_change() -> None:
    decided: dict[str, dict[int, str]] = {}
    for rounds, outcome in (8, "inconclusive"), (9, "not final"), (10, "not final"), (11, "passed"):
        benchmark("oracle_runs").note(decided, "speed", rounds, outcome)
    assert decided == {"speed": {8: "inconclusive", 9: "not final", 11: "passed"}}
