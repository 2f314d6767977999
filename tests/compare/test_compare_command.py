"""`ddpscale compare`, as it is typed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pytest_ddpscale.cli import USER_ERROR, main
from pytest_ddpscale.history.recording import add_run
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.verdicts import Judgement, Verdict
from tests.builders.json_types import run_record
from tests.builders.nights import SKU, at, judged_run, run_json, verdict

Printed = pytest.CaptureFixture[str]


def pair(tmp_path: Path, pace: float = 100.0) -> list[str]:
    """Two nights of one node; in the second all of its GPUs reach that pace."""
    first, second = (judged_run(tmp_path / name, night, {"n1": [of] * 2}) for name, night, of in
                     (("a", 0, 100.0), ("b", 1, pace)))  # fmt: skip
    return [str(first.path), str(second.path)]


def test_a_slower_run_fails_below_and_is_named(tmp_path: Path, capsys: Printed) -> None:
    assert main(["compare", *pair(tmp_path, 90.0), "--fail-below", "5%"]) == 1
    printed = capsys.readouterr().out
    assert "FAIL: worse by more than 5 %: 1: throughput_per_gpu[r-2gpu]" in printed
    assert "These two launches only" in printed


def test_a_run_that_is_worse_by_less_passes(tmp_path: Path, capsys: Printed) -> None:
    assert main(["compare", *pair(tmp_path, 97.0), "--fail-below", "5 %"]) == 0
    printed = capsys.readouterr().out
    assert "slower" in printed
    assert "Nothing is certainly worse by more than 5 %." in printed


def test_json_has_what_the_text_says(tmp_path: Path, capsys: Printed) -> None:
    assert main(["compare", *pair(tmp_path, 90.0), "--format", "json", "--fail-below", "0.05"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["worse"] == ["throughput_per_gpu[r-2gpu]"]
    (one,) = said["requirements"]
    assert one["difference"] == "slower"
    assert one["change"]["size"] == pytest.approx(-0.1)


def test_a_rejected_run_says_so(tmp_path: Path, capsys: Printed) -> None:
    other = judged_run(tmp_path / "c", 2, {"n1": [99.0] * 2}, outcome="rejected")
    main(["compare", pair(tmp_path)[0], str(other.path)])
    assert f"B  {tmp_path / 'c'}: REJECTED" in capsys.readouterr().out


def test_another_driver_and_torch_come_first(tmp_path: Path, capsys: Printed) -> None:
    paths = [
        judged_run(tmp_path / name, night, versions={"torch": torch}, driver=driver).path
        for night, (name, torch, driver) in enumerate((("a", "2.14.0", "580.1"), ("b", "2.15.0", "590.2")))
    ]
    main(["compare", *map(str, paths)])
    printed = capsys.readouterr().out
    assert printed.index("2.15.0") < printed.index("REQUIREMENT")
    assert "590.2" in printed


def test_a_simulated_run_beside_a_real_one_says_so(tmp_path: Path, capsys: Printed) -> None:
    run = judged_run(tmp_path / "s", 3, {"n1": [99.0] * 2})
    run.write_json(run.run_json, run_record(run_json(3), simulated=True))
    main(["compare", pair(tmp_path)[0], str(run.path)])
    assert "One run was simulated: the difference says nothing about a machine." in capsys.readouterr().out


@pytest.mark.parametrize("share", ["5 percent", "-1%", "100%", "nan"])
def test_a_share_that_is_none_is_refused(tmp_path: Path, capsys: Printed, share: str) -> None:
    assert main(["compare", *pair(tmp_path), f"--fail-below={share}"]) == USER_ERROR
    assert "--fail-below" in capsys.readouterr().err


@pytest.mark.parametrize("number", [1, 3])
def test_it_takes_two_runs(tmp_path: Path, capsys: Printed, number: int) -> None:
    assert main(["compare", *[pair(tmp_path)[0]] * number]) == USER_ERROR
    assert "two runs, or one and --history FILE" in capsys.readouterr().err


def test_runs_without_a_common_requirement_say_so_in_a_sentence(tmp_path: Path, capsys: Printed) -> None:
    first, second = pair(tmp_path, 99.0)
    text = (tmp_path / "b" / "verdicts.json").read_text()
    (tmp_path / "b" / "verdicts.json").write_text(text.replace("throughput_per_gpu[r-2gpu]", "throughput_per_gpu[x]"))
    assert main(["compare", first, second]) == USER_ERROR
    said = capsys.readouterr().err
    assert "no requirement is common to both" in said
    assert said.count("\n") == 1


LOST = "FAIL: measured before, nothing to compare with it now: 1: throughput_per_gpu[gone]"


@pytest.fixture
def vanished(tmp_path: Path) -> list[str]:
    """Two nights alike, of which the first was judged by one more requirement."""
    paths = pair(tmp_path, 100.1)
    of_first, gone = verdict(value=100.0), verdict(value=100.0, id="throughput_per_gpu[gone]")
    write_verdicts(tmp_path / "a", of_first, gone)
    return paths


def write_verdicts(path: Path, *verdicts: Verdict) -> None:
    judgement = Judgement(SKU, "accepted", "because", verdicts, basis={"judged_at": at(0)})
    RunDirectory.open(path).write_json(path / "verdicts.json", judgement)


def test_a_requirement_that_vanished_fails_the_gate(vanished: list[str], capsys: Printed) -> None:
    assert main(["compare", *vanished, "--fail-below", "5%"]) == 1
    printed = capsys.readouterr().out
    assert LOST in printed
    assert "Nothing is certainly worse" not in printed


def test_one_that_only_the_second_run_has_fails_nothing(vanished: list[str]) -> None:
    assert main(["compare", *reversed(vanished), "--fail-below", "5%"]) == 0


def test_what_vanished_may_be_allowed_and_is_counted(vanished: list[str], capsys: Printed) -> None:
    assert main(["compare", *vanished, "--fail-below", "5%", "--allow-missing"]) == 0
    assert "; 1 measured before but not now: allowed." in capsys.readouterr().out


def test_without_a_gate_nothing_fails(vanished: list[str], capsys: Printed) -> None:
    assert main(["compare", *vanished]) == 0
    assert "FAIL" not in capsys.readouterr().out
    assert main(["compare", *vanished, "--allow-missing"]) == USER_ERROR


@pytest.mark.parametrize("outcome", ["not_measured", "error"])
def test_one_that_could_not_be_measured_now_vanished_too(vanished: list[str], outcome: str, capsys: Printed) -> None:
    gone = verdict(outcome, value=None, interval=None, id="throughput_per_gpu[gone]", reason="a rank died")
    write_verdicts(Path(vanished[1]), verdict(), gone)
    assert main(["compare", *vanished, "--fail-below", "5%", "--format", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["lost"], said["worse"], said["fails"]) == (["throughput_per_gpu[gone]"], [], True)


def test_what_was_not_measured_before_either_is_not_lost(vanished: list[str]) -> None:
    gone = verdict("not_measured", value=None, interval=None, id="throughput_per_gpu[gone]")
    write_verdicts(Path(vanished[0]), verdict(), gone)
    assert main(["compare", *vanished, "--fail-below", "5%"]) == 0


def nights(tmp_path: Path, last: float) -> list[str]:
    """Six nights in a history, and a later run."""
    for night, pace in enumerate((100.0, 100.4, 99.7, 100.1, 99.8, 100.2)):
        run = judged_run(tmp_path / f"night{night}", night, {"n1": [pace] * 2})
        add_run(tmp_path / "history.sqlite", run.path)
    run = judged_run(tmp_path / "last", 9, {"n1": [last] * 2})
    return ["compare", str(run.path), "--history", str(tmp_path / "history.sqlite"), "--fail-below", "5%"]


def test_a_gpu_that_told_something_before_and_not_now_fails_the_gate(tmp_path: Path, capsys: Printed) -> None:
    arguments = nights(tmp_path, 100.0)
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection, connection:
        connection.execute(
            "INSERT INTO key_values SELECT run, host, 2, 'GPU-n1-2', metric, subject, world_size, arm, definition, "
            "value, unit, batch_size, standing FROM key_values WHERE arm = 'each' AND gpu_index = 1"
        )
    assert main(arguments) == 1
    assert "nothing to compare with it now: 1: GPU GPU-n1-2 of n1 (" in capsys.readouterr().out
    assert main([*arguments, "--allow-missing"]) == 0


def test_a_run_is_compared_with_the_history_of_its_places(tmp_path: Path, capsys: Printed) -> None:
    assert main(nights(tmp_path, 100.0)) == 0
    assert "0 of 4 values slower" in capsys.readouterr().out


def test_a_run_that_fell_fails_beside_the_history(tmp_path: Path, capsys: Printed) -> None:
    assert main(nights(tmp_path, 85.0)) == 1
    printed = capsys.readouterr().out
    assert "FAIL: worse by more than 5 %" in printed
    assert "GPU 0 of n1" in printed


def test_without_enough_nights_nothing_is_compared(tmp_path: Path, capsys: Printed) -> None:
    first, second = pair(tmp_path)
    add_run(tmp_path / "history.sqlite", Path(first))
    assert main(["compare", second, "--history", str(tmp_path / "history.sqlite")]) == USER_ERROR
    assert "none of its values has 5 earlier runs" in capsys.readouterr().err
