"""`ddpscale compare`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddpscale.cli import USER_ERROR, main
from pytest_ddpscale.history.recording import add_run
from tests.builders.json_types import run_record
from tests.builders.nights import judged_run, run_json

Printed = pytest.CaptureFixture[str]


def pair(tmp_path: Path, pace: float = 100.0) -> list[str]:
    """Two nights of one node; in the second all of its GPUs reach that pace."""
    first, second = (judged_run(tmp_path / name, night, {"n1": [of] * 2}) for name, night, of in
                     (("a", 0, 100.0), ("b", 1, pace)))  # fmt: skip
    return [str(first.path), str(second.path)]


def test_a_slower_run_fails_below_and_is_named(tmp_path: Path, capsys: Printed) -> None:
    assert main(["compare", *pair(tmp_path, 90.0), "--fail-below", "5%"]) == 1
    printed = capsys.readouterr().out
    assert "FAIL: worse by more than 5 % in 1 requirement: throughput_per_gpu[r-2gpu]" in printed
    assert "Of these two launches only" in printed


def test_a_run_that_is_worse_by_less_passes(tmp_path: Path, capsys: Printed) -> None:
    assert main(["compare", *pair(tmp_path, 97.0), "--fail-below", "5 %"]) == 0
    printed = capsys.readouterr().out
    assert "slower" in printed
    assert "No requirement is shown to be worse by more than 5 %." in printed


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
    assert "One of the runs was simulated: the difference says nothing about a machine." in capsys.readouterr().out


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


def nights(tmp_path: Path, last: float) -> list[str]:
    """Six nights in a history, and a later run."""
    for night, pace in enumerate((100.0, 100.4, 99.7, 100.1, 99.8, 100.2)):
        run = judged_run(tmp_path / f"night{night}", night, {"n1": [pace] * 2})
        add_run(tmp_path / "history.sqlite", run.path)
    run = judged_run(tmp_path / "last", 9, {"n1": [last] * 2})
    return ["compare", str(run.path), "--history", str(tmp_path / "history.sqlite"), "--fail-below", "5%"]


def test_a_run_is_compared_with_the_history_of_its_places(tmp_path: Path, capsys: Printed) -> None:
    assert main(nights(tmp_path, 100.0)) == 0
    assert "0 of 4 values slower" in capsys.readouterr().out


def test_a_run_that_fell_fails_beside_the_history(tmp_path: Path, capsys: Printed) -> None:
    assert main(nights(tmp_path, 85.0)) == 1
    printed = capsys.readouterr().out
    assert "FAIL: slower by more than 5 %" in printed
    assert "GPU 0 of n1" in printed


def test_without_enough_nights_nothing_is_compared(tmp_path: Path, capsys: Printed) -> None:
    first, second = pair(tmp_path)
    add_run(tmp_path / "history.sqlite", Path(first))
    assert main(["compare", second, "--history", str(tmp_path / "history.sqlite")]) == USER_ERROR
    assert "none of its values has 5 earlier runs" in capsys.readouterr().err
