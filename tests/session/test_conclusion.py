"""A session never concludes more than it knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.errors import HistoryError
from pytest_ddpscale.history.regression import Baseline
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.session import session as module
from pytest_ddpscale.session.session import AcceptanceSession
from tests.builders.sessions import IDS, InstantGang, nothing


class TestConclusion:
    def test_verdicts_come_in_the_order_of_the_file(self, measuring: AcceptanceSession) -> None:
        for case in reversed(measuring.source.cases):
            measuring.judge(case, nothing)
        judgement = measuring.conclude(interrupted=False, spoiled=())
        assert [verdict.id for verdict in judgement.verdicts] == IDS
        assert (judgement.sku, judgement.outcome, judgement.notes) == ("cpu", "incomplete", ())
        assert judgement.reason == f"1 of 3 requirements not measured: {IDS[2]}"


class TestLateVerdicts:
    def test_a_case_whose_test_never_asked_is_judged_by_what_was_measured(
        self, measuring: AcceptanceSession, gangs: list[InstantGang]
    ) -> None:
        measuring.judge(measuring.source.cases[0], nothing)
        late = measuring.conclude(interrupted=False, spoiled=()).verdicts[1]
        assert (late.id, late.outcome) == (IDS[1], "passed")
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
        self, measuring: AcceptanceSession, gangs: list[InstantGang], interrupted: bool, stopped: str, reason: str
    ) -> None:
        judgement = measuring.conclude(interrupted=interrupted, spoiled=(), stopped=stopped)
        assert {(verdict.outcome, verdict.reason) for verdict in judgement.verdicts} == {("not_measured", reason)}
        assert judgement.outcome == "incomplete"
        assert gangs == [], "concluding measures nothing"

    def test_a_study_without_an_end_passes_nothing_however_good_its_rounds_were(
        self, measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch
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


class TestHistory:
    """Of earlier launches, whose spread widens the interval of a verdict."""

    def test_widens_the_last_verdict_and_none_before_and_is_kept(
        self, measuring: AcceptanceSession, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "baseline_of", lambda *_: Baseline("cpu", "2026-01-31T12:00:00+00:00"))
        monkeypatch.setattr(module, "with_launch_deviation", lambda verdict, *_: replace(verdict, launch_sd=0.5))
        case, source = measuring.source.cases[0], measuring.source
        source.measure(nothing)
        assert source.evidence is not None
        assert measuring.so_far(source.evidence, "", "").verdicts[0].launch_sd != 0.5
        assert not source.measured_run.baseline_json.exists()
        assert measuring.judge(case, nothing).launch_sd == 0.5
        assert source.measured_run.baseline_json.exists()

    def test_that_cannot_be_read_is_told(
        self, measuring: AcceptanceSession, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> None:
            raise HistoryError("history.sqlite", "is broken", "")

        monkeypatch.setattr(module, "baseline_of", broken)
        verdict = measuring.judge(measuring.source.cases[0], nothing)
        assert verdict.passed
        assert verdict.notes[-1].startswith("spread between launches is unknown: history.sqlite: is broken")
