"""A session measures what it asked for, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import OptionError, RunDirectoryError
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.session import evidence
from pytest_ddpscale.session.session import AcceptanceSession
from tests.builders.sessions import SAMPLES_PER_S, InstantGang, Open, nothing


class TestMeasuring:
    def test_only_what_is_selected_and_fits_is_planned(self, opened: Open) -> None:
        session = opened(ddp_block="7s")
        session.source.select(session.source.cases)
        assert session.source.plan is not None
        assert [study.id for study in session.source.plan.studies] == ["weak/r"], "8 ranks do not fit"
        assert [arm.name for arm in session.source.plan.studies[0].arms] == ["alone", "ddp@2", "each@2"]
        assert (session.source.plan.studies[0].rounds, session.source.plan.studies[0].block_s) == (FEWEST_ROUNDS, 7.0)
        session.source.select(session.source.cases[:1])
        assert [arm.name for arm in session.source.plan.studies[0].arms] == ["alone"]

    def test_what_is_about_to_happen_is_on_disk_first(self, measuring: AcceptanceSession) -> None:
        assert measuring.source.measured_run.read_plan() == measuring.source.plan
        record, thresholds = measuring.source.measured_run.read_run(), measuring.source.subject.thresholds
        assert (record.sku, record.status, record.finished_at) == (measuring.source.subject.sku, "running", None)
        assert record.argv == ("pytest", "--password", "***")
        assert record.thresholds is not None
        assert record.thresholds.digests == thresholds.digests
        assert record.versions["pytest_ddpscale"] == __version__
        assert measuring.source.evidence is None

    def test_one_launch_answers_everything_planned(
        self, measuring: AcceptanceSession, gangs: list[InstantGang]
    ) -> None:
        verdicts = [measuring.judge(case, nothing) for case in measuring.source.cases[:2]]
        assert [verdict.outcome for verdict in verdicts] == ["passed", "passed"]
        assert [verdict.value for verdict in verdicts] == pytest.approx([SAMPLES_PER_S, 1.0])
        assert len(gangs) == 1
        assert measuring.source.evidence is not None

    def test_a_verdict_once_given_stays(self, measuring: AcceptanceSession) -> None:
        first = measuring.judge(measuring.source.cases[0], nothing)
        assert measuring.judge(measuring.source.cases[0], nothing) is first

    def test_what_needs_more_ranks_than_there_are_is_not_measured_nor_launched(
        self, measuring: AcceptanceSession, gangs: list[InstantGang]
    ) -> None:
        verdict = measuring.judge(measuring.source.cases[2], nothing)
        assert (verdict.outcome, verdict.reason) == ("not_measured", "needs 8 ranks; 2 can be used here")
        assert gangs == []

    def test_a_study_that_breaks_is_an_error(
        self, measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(InstantGang, "breaks", "rank 1 on here failed in warm-up: no memory")
        verdict = measuring.judge(measuring.source.cases[0], nothing)
        assert (verdict.outcome, verdict.reason) == ("error", "rank 1 on here failed in warm-up: no memory")

    def test_limits_and_isolation_are_passed_on(self, opened: Open, gangs: list[InstantGang]) -> None:
        session = opened(ddp_budget="10m", ddp_inactivity_limit="90s", ddp_profile="5")
        session.source.select(session.source.cases)
        session.source.open_run()
        session.judge(session.source.cases[0], nothing)
        limits = gangs[0].limits
        assert (limits.budget_s, limits.inactivity_s, limits.startup_s, gangs[0].isolate) == (600.0, 90.0, 600.0, True)
        assert limits.total_s is not None, "the plan gives one"
        assert limits.total_s > 600.0, "and it contains the start"

    def test_a_question_that_makes_no_sense_is_refused(self, measuring: AcceptanceSession) -> None:
        for question in [
            ("speed", "r", 1),
            ("generation_ratio", "r", 1),
            ("throughput_per_gpu", "s", 1),
            ("throughput_per_gpu", "r", 3),
            ("strong_scaling_speedup", "r", 2),
        ]:
            with pytest.raises(OptionError, match=r"which the plan does not measure; .* Add a requirement on it"):
                measuring.samples(*question, nothing)

    def test_why_the_history_lacks_a_run_is_told_and_costs_nothing(
        self, measuring: AcceptanceSession, tmp_path: Path
    ) -> None:
        measuring.judge(measuring.source.cases[0], nothing)
        judgement, run = measuring.conclude(interrupted=False, spoiled=()), measuring.source.measured_run
        (tmp_path / "file").write_text("", encoding="utf-8")
        measuring.history_file = tmp_path / "file" / "site.sqlite"
        why = measuring.remember(judgement)
        assert "cannot be used (Not a directory)" in why or "cannot be used (File exists)" in why
        run.run_json.write_text(run.run_json.read_text("utf-8").replace('"started_at":"20', '"started_at":"yesterday'))
        measuring.history_file = tmp_path / "site.sqlite"
        assert "yesterday" in measuring.remember(judgement)

    @pytest.mark.parametrize("is_ours", [False, True])
    def test_a_write_error_ends_measuring_and_not_the_session(
        self, measuring: AcceptanceSession, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch, is_ours: bool
    ) -> None:
        def full(gang: InstantGang, plan: Plan) -> None:
            error = OSError(28, "No space left on device")
            raise gang.run.unwritten(gang.run.measurements_jsonl, error) if is_ours else error

        monkeypatch.setattr(InstantGang, "measure", full)
        verdict = measuring.judge(measuring.source.cases[0], nothing)
        assert (verdict.outcome, verdict.reason) == ("error", measuring.source.writing_problem)
        assert "cannot be written (No space left on device)" in verdict.reason

    def test_what_cannot_be_read_is_not_measured_again(
        self, measuring: AcceptanceSession, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> None:
            raise RunDirectoryError("measurements.jsonl", "is broken", "")

        monkeypatch.setattr(evidence, "read_evidence", broken)
        for message in ("is broken", "could not be read after measuring", "could not be read after measuring"):
            with pytest.raises(RunDirectoryError, match=message):
                measuring.judge(measuring.source.cases[0], nothing)
        assert len(gangs) == 1

    def test_a_run_that_was_only_begun_is_measured_anew_in_its_place(
        self, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
