"""What later runs are held against, night after night: not what fell, until the node is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.history.regression import Baseline, judge_regression, read_baseline, read_histories
from pytest_ddpscale.history.store import MOST_RUNS, add_run, node_runs, reading, record_run
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Verdict, read_judgement
from tests.builders.json_types import run_record
from tests.builders.measurements import measurements_of
from tests.builders.nights import SKU, at, conclude, judged_run, run_json
from tests.builders.rounds import columns_of
from tests.history.test_regression import case

pytestmark = pytest.mark.lab

GOOD = 6
SOUND, FELL = (100.0, 100.0), (100.0, 90.0)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Of a node with a few good nights."""
    file = tmp_path / "history.sqlite"
    for number in range(GOOD):
        night(file, number, SOUND)
    return file


def night(history: Path, number: int, samples_per_s: Sequence[float]) -> Verdict:
    """A nightly check, which is never more than partial; judged by the nights before and remembered."""
    pace = [one + 0.2 * (number % 2) for one in samples_per_s]
    run = judged_run(history.parent / f"night{number}", number, {"n1": pace}, outcome="partial")
    found = judge_regression(case(), read_evidence(run), baseline(history, number) if number else None, 0.95)
    add_run(history, run.path)
    return found


def baseline(history: Path, number: int) -> Baseline:
    return read_baseline(history, SKU, {"n1": {}}, at(number))


def forget(history: Path, *more: str) -> int:
    return main(["history", "--forget", "n1", "--history", str(history), *more])


def test_a_node_that_is_forgotten_has_a_new_norm_after_five_nights(
    history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert night(history, GOOD, FELL).outcome == "failed"
    assert forget(history) == 0
    assert capsys.readouterr().out == "n1: 7 runs forgotten\n"
    outcomes = [night(history, GOOD + 1 + number, FELL).outcome for number in range(6)]
    assert outcomes == ["inconclusive"] * 5 + ["passed"]
    fallen_again = night(history, GOOD + 7, (100.0, 80.0))
    assert fallen_again.outcome == "failed"
    assert fallen_again.value == pytest.approx(80 / 90, abs=0.01)


def test_only_that_node_of_that_sku_is_forgotten(history: Path) -> None:
    add_run(history, judged_run(history.parent / "both", GOOD, {"n1": SOUND, "n2": SOUND}).path)
    for arguments, code in ((("--gpu-sku=b200",), 4), (("--gpu-sku", SKU), 0), ((), 4)):
        assert forget(history, *arguments) == code
    with reading(history) as connection:
        assert [len(node_runs(connection, SKU, host)) for host in ("n1", "n2")] == [0, 1]


def test_what_cannot_be_forgotten_is_a_sentence(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (("--forget", "n9"), "--forget: found 'n9', of which the history has no run"),
        (("--forget", "n1", "--add", "."), "found NODE, --gpu-sku or --forget with it"),
        (("n1", "--forget", "n1"), "--forget: found 'n1' beside it; expected one node"),
    ):
        assert main(["history", *arguments, "--history", str(history)]) == 4
        assert said in capsys.readouterr().err
    assert main(["history", "--forget", "n1", "--history", str(history.parent / "none")]) == 4
    assert not (history.parent / "none").exists()


def lose_gpu(history: Path, number: int) -> Verdict:
    """A night on which GPU 1 told nothing, and everything else was as before."""
    run = judged_run(history.parent / f"lost{number}", number, outcome="partial")
    measured = measurements_of(run.read_records())
    kept = [one for one in measured if (one.device, one.arm[:4]) != ("GPU-n1-1", "each")]
    assert len(kept) == len(measured) - FEWEST_ROUNDS
    evidence = replace(read_evidence(run), columns=columns_of(kept))
    verdict = judge_regression(case(), evidence, baseline(history, number), 0.95)
    record_run(history, run, read_judgement(run.verdicts_json), evidence)
    return verdict


def test_a_gpu_that_tells_nothing_any_more_is_no_pass_until_its_node_is_forgotten(history: Path) -> None:
    """Neither does the next night take its absence for the norm."""
    for number in range(2):
        verdict = lose_gpu(history, GOOD + number)
        assert verdict.outcome == "inconclusive"
        assert verdict.reason == "GPU-n1-1 on n1 reached values in earlier runs and has none now"
    assert forget(history) == 0
    assert [lose_gpu(history, GOOD + 2 + number).outcome for number in range(6)] == ["inconclusive"] * 5 + ["passed"]


def test_runs_without_a_norm_push_none_out_of_the_window(history: Path) -> None:
    """Runs that only looked at the node, rejected ones, and one with a failure that is waived."""
    before = baseline(history, 99).past
    for number in range(MOST_RUNS + 1):
        run = RunDirectory.create(history.parent / f"looked{number}")
        run.write_json(run.plan_json, Plan(SKU, "cuda", (), survey=True))
        began = (datetime.fromisoformat(at(20)) + timedelta(hours=number)).isoformat(timespec="seconds")
        run.write_json(run.run_json, run_record(run_json(), started_at=began))
        run.append_records([Survey("n1", float(number))])
        conclude(run, "partial", judged_at=began)
        add_run(history, run.path)
    add_run(history, judged_run(history.parent / "waived", 29, {"n1": SOUND}, outcome="accepted_with_waivers").path)
    add_run(history, judged_run(history.parent / "bad", 30, {"n1": (50.0, 50.0)}, outcome="rejected").path)
    assert baseline(history, 99).past == before
    assert before
    [node] = read_histories(history)
    assert {one.high < 1 for one in node.drifts} == {True}
