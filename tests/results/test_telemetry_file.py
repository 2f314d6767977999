"""telemetry.jsonl: what GPUs said of themselves, appended and read as strictly as measurements are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.telemetry_record import Spread, Telemetry

ONE = Telemetry(
    "weak/r", "ddp@8", 0, 3, 3, "nöde-1", "GPU-a", 1000.0, 1002.5, polls=3, utilization=Spread(0.97, 0.9, 1.0, 15),
    energy_j=1026.0, sources={"energy_j": "counter"}, unreadable={"power_w": "Not Supported"},
)  # fmt: skip
ROUNDS = [replace(ONE, round=number) for number in range(3)]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with three windows."""
    run = RunDirectory.create(tmp_path / "run")
    run.append_telemetry([one.as_json() for one in ROUNDS])
    return run


def test_it_comes_back_in_order(run: RunDirectory) -> None:
    assert run.read_telemetry() == ROUNDS
    run.append_telemetry([replace(ONE, rank=4).as_json()])
    assert run.read_telemetry() == [*ROUNDS, replace(ONE, rank=4)]


def test_it_is_apart_from_measurements(run: RunDirectory) -> None:
    run.append_record({"kind": "startup"})
    assert run.read_records() == [{"kind": "startup"}]
    assert run.read_telemetry() == ROUNDS


def test_where_none_was_taken_there_is_none(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path / "run").read_telemetry() == []


def test_a_torn_last_line_is_left_out_wherever_it_was_cut(run: RunDirectory) -> None:
    content = run.telemetry_jsonl.read_bytes()
    last_line_starts = content.rindex(b"\n", 0, len(content) - 1) + 1
    for cut in range(last_line_starts, len(content), 7):
        run.telemetry_jsonl.write_bytes(content[:cut])
        assert run.read_telemetry() == ROUNDS[:2], f"cut at byte {cut}"


def test_a_torn_line_is_cut_so_that_the_next_one_does_not_join_it(run: RunDirectory) -> None:
    with run.telemetry_jsonl.open("a", encoding="utf-8") as file:
        file.write('{"kind": "tele')
    run.cut_torn_line()
    run.append_telemetry([ONE.as_json()])
    assert run.read_telemetry() == [*ROUNDS, ONE]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("damage", ["", "{", "[]", '{"kind": NaN}'])
def test_a_broken_line_is_refused_with_its_number(run: RunDirectory, damage: str, number: int) -> None:
    lines = run.telemetry_jsonl.read_text(encoding="utf-8").splitlines()
    lines[number - 1] = damage
    run.telemetry_jsonl.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(RunDirectoryError, match=rf"telemetry\.jsonl: line {number} is not a JSON object"):
        run.read_telemetry()


@pytest.mark.parametrize("change", [{"ended_unix_s": 1000.0}, {"energy_j": -1.0}, {"colour": "red"}, {"host": None}])
def test_impossible_telemetry_is_refused_with_its_number(run: RunDirectory, change: dict[str, Any]) -> None:
    run.append_telemetry([ONE.as_json() | change])
    with pytest.raises(RunDirectoryError, match=r"telemetry\.jsonl: line 4 is no telemetry"):
        run.read_telemetry()
