"""Edits change what they name in a run directory and nothing else; looks are noted where they change."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripts import benchmark

RUNS = benchmark("oracle_runs")


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
    RUNS.edit(folder, edits)
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
        RUNS.note(decided, "speed", rounds, outcome)
    assert decided == {"speed": {8: "inconclusive", 9: "not final", 11: "passed"}}
