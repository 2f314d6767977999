"""`ddpscale compare`, as it is typed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import RunOutcome, Verdict
from pytest_ddpscale.util.command_parser import USER_ERROR
from tests.approved import assert_approved, masked
from tests.builders.json_types import run_record
from tests.builders.nights import at, conclude, judged_run, run_json, verdict

Printed = pytest.CaptureFixture[str]
THROUGHPUT, GONE = "throughput_per_gpu[r-2gpu]", "throughput_per_gpu[gone]"
LOST = f"FAIL: measured before, nothing to compare with it now (--allow-missing accepts this): 1: {GONE}"


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


def compared(capsys: Printed, *arguments: str) -> tuple[int, str]:
    code = main(["compare", *arguments])
    captured = capsys.readouterr()
    return code, " ".join((captured.out + captured.err).split())


def test_a_slower_run_fails_below_and_is_named_and_one_that_is_worse_by_less_passes(
    runs: dict[str, str], capsys: Printed
) -> None:
    for other, code, said in (
        ("90", 1, f"FAIL: worse by more than 5 %: 1: {THROUGHPUT}"),
        ("97", 0, "Nothing is certainly worse by more than 5 %."),
        ("rejected", 0, f"B {runs['rejected']}: REJECTED"),
        ("simulated", 0, "SIMULATED: no machine was measured"),
    ):
        found = compared(capsys, runs["first"], runs[other], "--fail-below", "5 %")
        assert (found[0], said in found[1]) == (code, True)
    assert main(["compare", runs["first"], runs["90"], "--format", "json", "--fail-below", "0.05"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["worse"] == [THROUGHPUT]
    (one,) = told["requirements"]
    assert (one["difference"], one["change"]["size"]) == ("worse", pytest.approx(-0.1))


def write_verdicts(path: Path, *verdicts: Verdict) -> None:
    outcome: RunOutcome = "accepted" if all(one.passed for one in verdicts) else "incomplete"
    conclude(RunDirectory.open(path), outcome, at(0), *verdicts)


def test_a_comparison_begins_with_the_answer_and_what_else_changed(tmp_path: Path, capsys: Printed) -> None:
    of_nights = (("a", "2.14.0", "580.1", "n1", 100.0), ("b", "2.15.0", "590.2", "n2", 90.0))
    for night, (name, torch, driver, place, value) in enumerate(of_nights):
        judged_run(tmp_path / name, night, versions={"torch": torch}, driver=driver)
        ends = value - 1, value + 1
        slower, alike = (verdict(place=place, value=value, interval=ends), verdict(place=place, id="step[alike]"))
        unmeasured = verdict("not_measured", value=None, interval=None, id="t[neither]", reason="not asked")
        one_sided = verdict(id=f"t[of {name}]")
        open_ = verdict("inconclusive", value=90.0, interval=None if name == "b" else ends, id="t[few]", reason="few")
        write_verdicts(tmp_path / name, slower, alike, unmeasured, one_sided, open_)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert_approved("compare.txt", masked(capsys.readouterr().out, tmp_path))


def test_what_cannot_be_compared_is_a_sentence(runs: dict[str, str], tmp_path: Path, capsys: Printed) -> None:
    other = judged_run(tmp_path / "other", 1, {"n1": [99.0] * 2})
    write_verdicts(other.path, verdict(id="throughput_per_gpu[x]"))
    both = runs["first"], runs["90"]
    for arguments, said in (
        *(((*both, f"--fail-below={share}"), "--fail-below") for share in ("5 percent", "-1%", "100%", "nan")),
        ((*both, "--allow-missing"), "--allow-missing: found without --fail-below"),
        *(([runs["first"]] * number, f"found {number}; expected two runs") for number in (1, 3)),
        ((runs["first"], str(other.path)), "no requirement is common to both"),
    ):
        code, printed = compared(capsys, *arguments)
        assert (code, said in printed) == (USER_ERROR, True)


@pytest.fixture
def vanished(tmp_path: Path) -> list[str]:
    """Two nights alike, of which the first was judged by one more requirement."""
    paths = [judged_run(tmp_path / name, hosts={"n1": [pace] * 2}).path for name, pace in (("a", 100.0), ("b", 100.1))]
    write_verdicts(paths[0], verdict(), verdict(id=GONE))
    return [str(path) for path in paths]


def test_a_requirement_that_vanished_fails_the_gate_unless_it_is_allowed(vanished: list[str], capsys: Printed) -> None:
    gate = ("--fail-below", "5%")

    def found(paths: Sequence[str], *options: str) -> tuple[int, bool, bool]:
        code, printed = compared(capsys, *paths, *options)
        return code, LOST in printed, "FAIL" in printed

    assert found(vanished, *gate) == (1, True, True)
    assert found(vanished[::-1], *gate) == found(vanished) == (0, False, False)
    code, printed = compared(capsys, *vanished, *gate, "--allow-missing")
    assert (code, "; 1 measured before but not now: allowed." in printed) == (0, True)
    for outcome in ("not_measured", "error"):
        gone = verdict(outcome, value=None, interval=None, id=GONE, reason="a rank died")
        write_verdicts(Path(vanished[1]), verdict(), gone)
        assert main(["compare", *vanished, *gate, "--format", "json"]) == 1
        said = json.loads(capsys.readouterr().out)
        assert (said["lost"], said["worse"], said["fails"]) == ([GONE], [], True)
    write_verdicts(Path(vanished[0]), verdict(), verdict("not_measured", value=None, interval=None, id=GONE))
    assert found(vanished, *gate)[0] == 0, "it was not measured before either"
