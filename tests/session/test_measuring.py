"""A session measures what it asked for, once, and never concludes more than it knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import HistoryError, OptionError, RunDirectoryError
from pytest_ddpscale.history.regression import Baseline
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.session import evidence
from pytest_ddpscale.session import session as module
from pytest_ddpscale.session.session import AcceptanceSession
from tests.builders.sessions import IDS, SAMPLES_PER_S, InstantGang, Open, nothing


def test_only_what_is_selected_and_fits_is_planned(opened: Open) -> None:
    source = opened(ddp_block="7s").source
    for cases, arms in ((source.cases, ["alone", "ddp@2", "each@2"]), (source.cases[:1], ["alone"])):
        source.select(cases)
        assert source.plan is not None
        [study] = source.plan.studies  # 8 ranks do not fit
        assert (study.id, [arm.name for arm in study.arms]) == ("weak/r", arms)
        assert (study.rounds, study.block_s) == (FEWEST_ROUNDS, 7.0)


def test_what_is_about_to_happen_is_on_disk_first(measuring: AcceptanceSession) -> None:
    source, run = measuring.source, measuring.source.measured_run
    record = run.read_run()
    assert (record.sku, record.status, record.finished_at) == (source.subject.sku, "running", None)
    assert (run.read_plan(), source.evidence) == (source.plan, None)
    assert record.argv == ("pytest", "--password", "***")
    assert record.thresholds is not None
    assert record.thresholds.digests == source.subject.thresholds.digests
    assert record.versions["pytest_ddpscale"] == __version__


def test_one_launch_answers_everything_planned_and_a_verdict_once_given_stays(
    measuring: AcceptanceSession, gangs: list[InstantGang]
) -> None:
    first, second, third = measuring.source.cases
    too_large = measuring.judge(third, nothing)
    assert (too_large.outcome, too_large.reason) == ("not_measured", "needs 8 ranks; 2 can be used here")
    assert gangs == []
    verdicts = [measuring.judge(case, nothing) for case in (first, second)]
    assert all(verdict.passed for verdict in verdicts)
    assert [verdict.value for verdict in verdicts] == pytest.approx([SAMPLES_PER_S, 1.0])
    assert measuring.judge(first, nothing) is verdicts[0]
    assert len(gangs) == 1
    assert measuring.source.evidence is not None


def test_a_study_that_breaks_is_an_error(measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstantGang, "breaks", "rank 1 on here failed in warm-up: no memory")
    verdict = measuring.judge(measuring.source.cases[0], nothing)
    assert (verdict.outcome, verdict.reason) == ("error", "rank 1 on here failed in warm-up: no memory")


def test_limits_and_isolation_are_passed_on(opened: Open, gangs: list[InstantGang]) -> None:
    session = opened(ddp_budget="10m", ddp_inactivity_limit="90s", ddp_profile="5")
    session.source.select(session.source.cases)
    session.source.open_run()
    session.judge(session.source.cases[0], nothing)
    limits = gangs[0].limits
    assert (limits.budget_s, limits.inactivity_s, limits.startup_s, gangs[0].isolate) == (600.0, 90.0, 600.0, True)
    assert limits.total_s is not None, "the plan gives one"
    assert limits.total_s > 600.0, "and it contains the start"


def test_a_question_that_makes_no_sense_is_refused(measuring: AcceptanceSession) -> None:
    for question in (
        ("speed", "r", 1), ("generation_ratio", "r", 1), ("throughput_per_gpu", "s", 1), ("throughput_per_gpu", "r", 3),
        ("strong_scaling_speedup", "r", 2),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=r"which the plan does not measure; .* Add a requirement on it"):
            measuring.samples(*question, nothing)


def test_why_the_history_lacks_a_run_is_told_and_costs_nothing(measuring: AcceptanceSession, tmp_path: Path) -> None:
    measuring.judge(measuring.source.cases[0], nothing)
    judgement, run = measuring.conclude(interrupted=False, spoiled=()), measuring.source.measured_run
    (tmp_path / "file").touch()
    measuring.history_file = tmp_path / "file" / "site.sqlite"
    why = measuring.remember(judgement)
    assert "cannot be used (Not a directory)" in why or "cannot be used (File exists)" in why
    run.run_json.write_text(run.run_json.read_text("utf-8").replace('"started_at":"20', '"started_at":"yesterday'))
    measuring.history_file = tmp_path / "site.sqlite"
    assert "yesterday" in measuring.remember(judgement)


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_write_error_ends_measuring_and_not_the_session(
    measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    def full(gang: InstantGang, plan: Plan) -> None:
        error = OSError(28, "No space left on device")
        raise gang.run.unwritten(gang.run.measurements_jsonl, error) if is_ours else error

    monkeypatch.setattr(InstantGang, "measure", full)
    verdict = measuring.judge(measuring.source.cases[0], nothing)
    assert (verdict.outcome, verdict.reason) == ("error", measuring.source.writing_problem)
    assert "cannot be written (No space left on device)" in verdict.reason


def test_what_cannot_be_read_is_not_measured_again(
    measuring: AcceptanceSession, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RunDirectoryError("measurements.jsonl", "is broken", "")

    monkeypatch.setattr(evidence, "read_evidence", broken)
    for message in ("is broken", "could not be read after measuring", "could not be read after measuring"):
        with pytest.raises(RunDirectoryError, match=message):
            measuring.judge(measuring.source.cases[0], nothing)
    assert len(gangs) == 1


def test_a_run_that_was_only_begun_is_measured_anew_in_its_place(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(run: RunDirectory, path: Path, data: object) -> None:
        if path == run.plan_json:
            raise KeyboardInterrupt
        write(run, path, data)

    write, source = RunDirectory.write_json, opened().source
    source.select(source.cases)
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            source.open_run()
    again = opened(ddp_resume=str(tmp_path / "run"), ddp_run_dir=None).source
    again.select(again.cases)
    again.open_run()
    assert (again.measured_run.path, again.plan_to_measure) == (tmp_path / "run", source.plan)
    assert again.measured_run.read_run().resumed == ()


def test_verdicts_come_in_the_order_of_the_file_also_of_a_case_whose_test_never_asked(
    measuring: AcceptanceSession, gangs: list[InstantGang]
) -> None:
    for case in (measuring.source.cases[2], measuring.source.cases[0]):
        measuring.judge(case, nothing)
    judgement = measuring.conclude(interrupted=False, spoiled=())
    assert [verdict.id for verdict in judgement.verdicts] == IDS
    assert [verdict.outcome for verdict in judgement.verdicts] == ["passed", "passed", "not_measured"]
    assert (judgement.sku, judgement.outcome, judgement.notes) == ("cpu", "incomplete", ())
    assert judgement.reason == f"1 of 3 requirements not measured: {IDS[2]}"
    assert len(gangs) == 1


@pytest.mark.parametrize(
    ("interrupted", "stopped", "reason"),
    [
        (True, "", "the session was interrupted"),
        (False, "", "its test did not ask for a verdict"),
        (False, "stopping after 1 failures", "pytest ended before its test: stopping after 1 failures"),
    ],
)
def test_without_any_measurement_nothing_is_known(
    measuring: AcceptanceSession, gangs: list[InstantGang], interrupted: bool, stopped: str, reason: str
) -> None:
    judgement = measuring.conclude(interrupted=interrupted, spoiled=(), stopped=stopped)
    assert {(verdict.outcome, verdict.reason) for verdict in judgement.verdicts} == {("not_measured", reason)}
    assert judgement.outcome == "incomplete"
    assert gangs == [], "concluding measures nothing"


def test_a_study_without_an_end_passes_nothing_however_good_its_rounds_were(
    measuring: AcceptanceSession, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended it may be the very fault that was looked for."""

    def interrupted(gang: InstantGang, plan: Plan) -> None:
        measure(gang, plan)
        raise KeyboardInterrupt

    measure = InstantGang.measure
    monkeypatch.setattr(InstantGang, "ends", False)
    monkeypatch.setattr(InstantGang, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measuring.judge(measuring.source.cases[0], nothing)
    judgement = measuring.conclude(interrupted=True, spoiled=())
    assert [verdict.outcome for verdict in judgement.verdicts] == ["error", "error", "not_measured"]
    assert judgement.outcome == "incomplete"


def test_the_spread_of_earlier_launches_widens_the_last_verdict_and_none_before_and_is_kept(
    measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "baseline_of", lambda *_: Baseline("cpu", "2026-01-31T12:00:00+00:00"))
    monkeypatch.setattr(module, "with_launch_deviation", lambda verdict, *_: replace(verdict, launch_sd=0.5))
    source = measuring.source
    source.measure(nothing)
    assert source.evidence is not None
    assert measuring.so_far(source.evidence, "", "").verdicts[0].launch_sd != 0.5
    assert not source.measured_run.baseline_json.exists()
    assert measuring.judge(source.cases[0], nothing).launch_sd == 0.5
    assert source.measured_run.baseline_json.exists()


def test_a_history_that_cannot_be_read_is_told(measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise HistoryError("history.sqlite", "is broken", "")

    monkeypatch.setattr(module, "baseline_of", broken)
    verdict = measuring.judge(measuring.source.cases[0], nothing)
    assert verdict.passed
    assert verdict.notes[-1].startswith("spread between launches is unknown: history.sqlite: is broken")
