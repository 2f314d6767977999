"""Each requirement beside what earlier runs of exactly the same nodes reached."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.history.recording import add_run
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import RunOutcome, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.nights import at, conclude, judged_run, verdict

PACES = (100.0, 100.4, 99.7, 100.1, 99.8)
Printed = pytest.CaptureFixture[str]


def night(
    path: Path, number: int, *verdicts: Verdict, outcome: RunOutcome = "accepted", hosts: Sequence[str] = ("n1",)
) -> Path:  # fmt: skip
    """A run with those verdicts."""
    run = judged_run(path, number, {host: [100.0] * 2 for host in hosts})
    conclude(run, outcome, at(number), *verdicts)
    return path


def reached(pace: float, **changes: Any) -> Verdict:
    return verdict(value=pace, interval=(pace - 0.1, pace + 0.1), **changes)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Five nights of one node."""
    file = tmp_path / "history.sqlite"
    for number, pace in enumerate(PACES):
        add_run(file, night(tmp_path / f"n{number}", number, reached(pace)))
    return file


def beside(history: Path, run: Path, capsys: Printed, *more: str) -> tuple[int, dict[str, Any]]:
    code = main(["compare", str(run), "--history", str(history), "--format", "json", *more])
    return code, json.loads(capsys.readouterr().out)


def only(said: dict[str, Any]) -> dict[str, Any]:
    (one,) = said["requirements"]
    assert isinstance(one, dict)
    return one


def test_the_interval_is_the_prediction_interval_of_one_more_run(
    history: Path, tmp_path: Path, capsys: Printed
) -> None:
    one = only(beside(history, night(tmp_path / "last", 9, reached(98.0)), capsys)[1])
    logs = [math.log(pace) for pace in PACES]
    mean = math.fsum(logs) / 5
    sd = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / 4)
    reach = 2.7764451 * sd * math.sqrt(1 + 1 / 5)
    ratio = math.log(98.0) - mean
    assert one["change"]["size"] == pytest.approx(math.expm1(ratio))
    assert one["change"]["low"] == pytest.approx(math.expm1(ratio - reach), rel=1e-6)
    assert one["change"]["high"] == pytest.approx(math.expm1(ratio + reach), rel=1e-6)
    assert (one["difference"], one["earlier_runs"]) == ("slower", 5)


def test_a_run_whose_own_rounds_say_less_has_a_wider_interval(history: Path, tmp_path: Path, capsys: Printed) -> None:
    vague = verdict(value=98.0, interval=(90.0, 106.0))
    one = only(beside(history, night(tmp_path / "last", 9, vague), capsys)[1])
    assert one["difference"] == "no difference shown"
    assert one["change"]["low"] == pytest.approx(0.9 - 1, abs=0.01)


def test_a_requirement_that_fell_fails_the_gate(history: Path, tmp_path: Path, capsys: Printed) -> None:
    code, said = beside(history, night(tmp_path / "last", 9, reached(90.0)), capsys, "--fail-below", "5%")
    assert (code, said["worse"]) == (1, ["throughput_per_gpu[r-2gpu]"])


def test_one_that_the_latest_run_has_and_this_has_not_fails_the_gate(
    history: Path, tmp_path: Path, capsys: Printed
) -> None:  # fmt: skip
    other = reached(100.0, id="throughput_per_gpu[new]")
    code, said = beside(history, night(tmp_path / "last", 9, other), capsys, "--fail-below", "5%")
    assert (code, said["lost"]) == (1, ["throughput_per_gpu[r-2gpu]"])
    assert "0 earlier values of exactly these nodes; at least 5 are needed" in only(said)["why_not"]


@pytest.mark.parametrize("outcome", ["rejected", "accepted_with_waivers"])
def test_a_run_that_broke_is_no_norm_though_it_was_waived(tmp_path: Path, outcome: Any, capsys: Printed) -> None:
    file = tmp_path / "history.sqlite"
    for number, pace in enumerate(PACES[:4]):
        add_run(file, night(tmp_path / f"n{number}", number, reached(pace)))
    waiver = None if outcome == "rejected" else Waiver("A. Name", "a fan is ordered", date(2026, 12, 31))
    missed = reached(50.0, outcome="failed", waiver=waiver)
    add_run(file, night(tmp_path / "n4", 4, missed, outcome=outcome))
    add_run(file, night(tmp_path / "n5", 5, reached(100.0)))
    one = only(beside(file, night(tmp_path / "last", 9, reached(100.0)), capsys)[1])
    assert (one["earlier_runs"], one["difference"]) == (5, "no difference shown")
    assert one["a"]["value"] == pytest.approx(100.0, abs=0.2)


def error_of(history: Path, run: Path, capsys: Printed) -> str:
    main(["compare", str(run), "--history", str(history)])
    return capsys.readouterr().err


def test_runs_of_other_nodes_do_not_count(tmp_path: Path, history: Path, capsys: Printed) -> None:
    add_run(history, night(tmp_path / "more", 6, reached(50.0), hosts=("n1", "n2")))
    assert only(beside(history, night(tmp_path / "last", 9, reached(100.0)), capsys)[1])["earlier_runs"] == 5


def test_runs_with_another_batch_do_not_count(tmp_path: Path, history: Path, capsys: Printed) -> None:
    run = RunDirectory.open(night(tmp_path / "last", 9, reached(100.0)))
    for file in (run.plan_json, run.measurements_jsonl):
        file.write_text(
            file.read_text().replace('"batch_size":4', '"batch_size":8').replace('"work":4.0', '"work":8.0')
        )
    conclude(run, "accepted", at(9), reached(100.0))
    assert "none of its values" in error_of(history, run.path, capsys)


@pytest.mark.parametrize("value", ["'a'", "9e999"])
def test_a_history_that_holds_no_numbers_is_refused(tmp_path: Path, history: Path, value: str, capsys: Printed) -> None:
    with closing(sqlite3.connect(history)) as connection, connection:
        connection.execute(f"UPDATE verdicts SET value = {value}")
    said = error_of(history, night(tmp_path / "last", 9, reached(100.0)), capsys)
    assert "is damaged (throughput_per_gpu[r-2gpu] is [" in said
    assert said.count("\n") == 1


def test_a_generation_ratio_is_left_out(tmp_path: Path, history: Path, capsys: Printed) -> None:
    ratio = verdict(id="generation_ratio[r-2gpu]", metric="generation_ratio", value=2.0, interval=(1.9, 2.1))
    one = only(beside(history, night(tmp_path / "last", 9, reached(100.0), ratio), capsys)[1])
    assert one["metric"] == "throughput_per_gpu"


def test_as_text_it_says_the_mean_and_how_many_runs(tmp_path: Path, history: Path, capsys: Printed) -> None:
    main(["compare", str(night(tmp_path / "last", 9, reached(100.0))), "--history", str(history)])
    printed = capsys.readouterr().out
    assert "100.0 img/s (5)" in printed
    assert "No difference shown: of 1 requirements 0 are worse than before, 0 better, 1 show no difference." in printed
