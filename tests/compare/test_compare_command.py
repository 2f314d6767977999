"""`ddpscale compare`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import RunOutcome, Verdict
from pytest_ddpscale.util.command_parser import USER_ERROR
from tests.builders.json_types import run_record
from tests.builders.nights import at, conclude, judged_run, run_json, verdict

Printed = pytest.CaptureFixture[str]


def pair(tmp_path: Path, pace: float = 100.0) -> list[str]:
    """Two nights of one node; in the second all of its GPUs reach that pace."""
    first, second = (judged_run(tmp_path / name, night, {"n1": [of] * 2}) for name, night, of in
                     (("a", 0, 100.0), ("b", 1, pace)))  # fmt: skip
    return [str(first.path), str(second.path)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Nights of one node; the others reach that pace, were rejected, or simulated."""
    folder = tmp_path_factory.mktemp("runs")
    paces = {"first": 100.0, "90": 90.0, "97": 97.0, "rejected": 99.0, "simulated": 99.0}
    found = {}
    for night, (name, pace) in enumerate(paces.items()):
        outcome: RunOutcome = "rejected" if name == "rejected" else "accepted"
        run = judged_run(folder / name, night, {"n1": [pace] * 2}, outcome=outcome)
        if name == "simulated":
            run.write_json(run.run_json, run_record(run_json(night), simulated=True))
            conclude(run, outcome, at(night))
        found[name] = str(run.path)
    return found


def test_a_slower_run_fails_below_and_is_named_and_one_that_is_worse_by_less_passes(
    runs: dict[str, str], capsys: Printed
) -> None:
    for other, code, said in (
        ("90", 1, "FAIL: worse by more than 5 %: 1: throughput_per_gpu[r-2gpu]"),
        ("97", 0, "Nothing is certainly worse by more than 5 %."),
        ("rejected", 0, f"B  {runs['rejected']}: REJECTED"),
        ("simulated", 0, "One run was simulated: the difference says nothing about a machine."),
    ):
        assert main(["compare", runs["first"], runs[other], "--fail-below", "5 %"]) == code
        assert said in capsys.readouterr().out
    assert main(["compare", runs["first"], runs["90"], "--format", "json", "--fail-below", "0.05"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["worse"] == ["throughput_per_gpu[r-2gpu]"]
    (one,) = found["requirements"]
    assert (one["difference"], one["change"]["size"]) == ("slower", pytest.approx(-0.1))


def test_another_driver_and_torch_come_first(tmp_path: Path, capsys: Printed) -> None:
    paths = [
        judged_run(tmp_path / name, night, versions={"torch": torch}, driver=driver).path
        for night, (name, torch, driver) in enumerate((("a", "2.14.0", "580.1"), ("b", "2.15.0", "590.2")))
    ]
    main(["compare", *map(str, paths)])
    printed = capsys.readouterr().out
    assert printed.index("2.15.0") < printed.index("without a difference")
    assert "590.2" in printed


def test_what_is_no_share_or_not_two_runs_is_refused(runs: dict[str, str], capsys: Printed) -> None:
    for share in ("5 percent", "-1%", "100%", "nan"):
        assert main(["compare", runs["first"], runs["90"], f"--fail-below={share}"]) == USER_ERROR
        assert "--fail-below" in capsys.readouterr().err
    for number in (1, 3):
        assert main(["compare", *[runs["first"]] * number]) == USER_ERROR
        assert f"found {number}; expected two runs" in capsys.readouterr().err


def test_runs_without_a_common_requirement_say_so_in_a_sentence(tmp_path: Path, capsys: Printed) -> None:
    first, second = pair(tmp_path, 99.0)
    text = (tmp_path / "b" / "verdicts.json").read_text()
    (tmp_path / "b" / "verdicts.json").write_text(text.replace("throughput_per_gpu[r-2gpu]", "throughput_per_gpu[x]"))
    assert main(["compare", first, second]) == USER_ERROR
    said = capsys.readouterr().err
    assert "no requirement is common to both" in said
    assert said.count("\n") == 1


def test_the_worst_places_of_both_runs_are_named(tmp_path: Path, capsys: Printed) -> None:
    paths = pair(tmp_path, 99.0)
    for name, place in (("a", "n1"), ("b", "n2")):
        write_verdicts(tmp_path / name, verdict(place=place))
    assert main(["compare", *paths]) == 0
    assert "\n- n1 in A, n2 in B: throughput_per_gpu[r-2gpu]\n" in capsys.readouterr().out


LOST = "FAIL: measured before, nothing to compare with it now: 1: throughput_per_gpu[gone]"


@pytest.fixture
def vanished(tmp_path: Path) -> list[str]:
    """Two nights alike, of which the first was judged by one more requirement."""
    paths = pair(tmp_path, 100.1)
    of_first, gone = verdict(value=100.0), verdict(value=100.0, id="throughput_per_gpu[gone]")
    write_verdicts(tmp_path / "a", of_first, gone)
    return paths


def write_verdicts(path: Path, *verdicts: Verdict) -> None:
    outcome: RunOutcome = "accepted" if all(one.passed for one in verdicts) else "incomplete"
    conclude(RunDirectory.open(path), outcome, at(0), *verdicts)


def test_a_requirement_that_vanished_fails_the_gate_unless_it_is_allowed(vanished: list[str], capsys: Printed) -> None:
    for arguments, code, said in (
        ([*vanished, "--fail-below", "5%"], 1, LOST),
        ([*vanished, "--fail-below", "5%", "--allow-missing"], 0, "; 1 measured before but not now: allowed."),
        ([*reversed(vanished), "--fail-below", "5%"], 0, ""),  # only the second run has it
        (vanished, 0, ""),  # without a gate
    ):
        assert main(["compare", *arguments]) == code
        printed = capsys.readouterr().out
        assert said in printed
        assert ("FAIL" in printed) == (code == 1)
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
