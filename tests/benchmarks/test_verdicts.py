"""Tables of verdicts on simulated clusters: each line is read, and a fault is rejected, named and told apart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks import BENCHMARKS, benchmark

verdicts = benchmark("verdicts")
TABLES = [file for file in sorted((BENCHMARKS / "verdicts").glob("*.txt")) if file.stem != "sequences"]
Capture = pytest.CaptureFixture[str]


def cells(monkeypatch: pytest.MonkeyPatch, capsys: Capture, *arguments: str) -> dict[str, dict[str, str]]:
    """Shares and texts by what follows the colon in a scenario, and by column."""
    monkeypatch.setattr(sys, "argv", ["verdicts.py", *arguments])
    assert verdicts.main() == 0
    lines = [line[2:-2].split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    rows = [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]
    return {
        row["scenario"].rpartition(": ")[2]: {key: cell.partition(" [")[0] for key, cell in row.items()} for row in rows
    }


@pytest.mark.parametrize("file", TABLES, ids=lambda file: str(file.stem))
def test_each_line_is_a_scenario_of_its_own(file: Path) -> None:
    found = list(verdicts.scenarios(file.stem, file.read_text(encoding="utf-8")))
    assert len({one.label for one in found}) == len(found) >= 4
    assert {goal.rpartition(" ")[0].rpartition(" ")[0] for one in found for goal in one.goals} <= {*verdicts.COLUMNS}


def test_a_fault_is_rejected_named_and_told_by_what(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    faults = "none|memory$|host path$|all memories|a GPU 30"
    lines = (
        "b200 8 : none", "b200 8 faults=slow-probe:{rank}:memory-copy:0.5 at=ranks : memory",
        "b200 8 faults=slow-probe:all:memory-copy:0.9 at=all : all memories",
        "b200 8 workloads=resnet50-nchw-fp16 slow=30 at=ranks places=3 : a GPU 30 % slow",
    )  # fmt: skip
    of = cells(monkeypatch, capsys, "--runs=1", f"--match={faults}", *(f"--line={line}" for line in lines))
    assert [of["none"][key] for key in ("accepted", "caught", "accused", "by")] == ["100", "0", "0", "nothing"]
    seen = ("rejected", "caught", "found", "named", "accused")
    assert [of["memory"][key] for key in (*seen, "by")] == [*["100"] * 4, "0", "probe_uniformity[memory-copy]"]
    assert [of["all memories"][key] for key in ("accepted", "named", "by")] == ["100", "–", "nothing"]
    assert [of["a GPU 30 % slow"][key] for key in seen] == [*["100"] * 4, "0"]


def test_what_a_sound_cluster_misses_catches_no_fault(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    given = ("power", "--runs=1", "--with", "workloads=resnet152-fp16", "gpus=8")
    of = cells(monkeypatch, capsys, *given, "--match=none|gpu:1.2|ecc|all:1.1")
    caught = {name: [row[key] for key in ("rejected", "caught", "named")] for name, row in of.items()}
    assert caught["none"] == ["0", "0", "–"], "strong scaling is host-bound"
    assert caught["slow-gpu:1.2"] == caught["bad-gpu:ecc"] == ["100", "100", "100"]
    assert caught["slow-gpu:all:1.1"] == ["100", "100", "–"]
    assert of["bad-gpu:ecc"]["by"].startswith("node_check[ecc]")


def test_a_fault_that_is_none_is_refused_before_anything_is_simulated(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    lines = ("--line=a100 8 : none", "--line=a100 8 faults=slow-gpu:3:0.5 at=ranks : too fast")
    monkeypatch.setattr(sys, "argv", ["verdicts.py", *lines])
    with pytest.raises(SystemExit):
        verdicts.main()
    said = capsys.readouterr()
    assert "FACTOR a number from 1 to 1000" in said.err
    assert not said.out


def test_minutes_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    published = cells(monkeypatch, capsys, "minutes", "--runs=1", "--match=published")["the published matrix"]
    assert 10 < float(published["minutes"].partition(",")[0]) < 30
