"""A session never concludes more than it knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.session.session import AcceptanceSession
from tests.builders.sessions import IDS, InstantGang, Open, nothing


class TestConclusion:
    def test_verdicts_come_in_the_order_of_the_file(self, measuring: AcceptanceSession) -> None:
        for case in reversed(measuring.source.cases):
            measuring.judge(case, nothing)
        judgement = measuring.conclude(interrupted=False, spoiled=())
        assert [verdict.id for verdict in judgement.verdicts] == IDS
        assert (judgement.sku, judgement.outcome, judgement.notes) == ("cpu", "incomplete", ())
        assert judgement.reason == f"1 of 3 requirements were not measured: {IDS[2]}"

    @pytest.mark.parametrize("spoiled", [(), ("test_x",)])
    def test_what_keeps_it_from_being_accepted_is_what_is_missing_and_what_was_spoiled(
        self, measuring: AcceptanceSession, spoiled: tuple[str, ...]
    ) -> None:
        for case in measuring.source.cases:
            measuring.judge(case, nothing)
        judgement = measuring.conclude(interrupted=False, spoiled=spoiled)
        assert judgement.outcome == "incomplete"
        assert [(one.kind, one.name) for one in judgement.blockers] == [
            ("requirement", IDS[2]),
            *(("test", name) for name in spoiled),
        ]

    def test_a_selection_that_passes_is_partial(self, opened: Open, gangs: list[InstantGang]) -> None:
        session = opened()
        session.source.select(session.source.cases[:2])
        session.source.open_run()
        session.judge(session.source.cases[0], nothing)
        judgement = session.conclude(interrupted=False, spoiled=())
        assert (judgement.outcome, len(judgement.verdicts)) == ("partial", 2)

    def test_all_that_passes_is_accepted(self, opened: Open, gangs: list[InstantGang]) -> None:
        assert self.conclude_all(opened).outcome == "accepted"

    @pytest.mark.parametrize("spoiled", [["test_x[r-1rank]"], ["test_x", "test_y"]])
    def test_a_spoiled_item_accepts_nothing(self, opened: Open, gangs: list[InstantGang], spoiled: list[str]) -> None:
        judgement = self.conclude_all(opened, spoiled=spoiled)
        assert judgement.outcome == "incomplete"
        assert judgement.reason.startswith(f"{len(spoiled)} test item")
        assert judgement.reason.endswith(", ".join(spoiled))

    def test_a_spoiled_item_leaves_no_selection_partial(self, measuring: AcceptanceSession) -> None:
        measuring.source.selected = measuring.source.cases[:2]
        for case in measuring.source.selected:
            assert measuring.judge(case, nothing).passed
        outcomes = [measuring.conclude(interrupted=False, spoiled=s).outcome for s in ([], ["test_x"])]
        assert outcomes == ["partial", "incomplete"]

    def test_a_spoiled_item_does_not_soften_a_rejection(self, opened: Open, gangs: list[InstantGang]) -> None:
        session = self.session_of_eight(opened)
        failed = replace(session.judge(session.source.cases[0], nothing), outcome="failed")
        session.verdicts[failed.id] = failed
        judgement = session.conclude(interrupted=False, spoiled=["test_x"])
        assert (judgement.outcome, judgement.reason) == ("rejected", f"1 of 3 requirements failed: {IDS[0]}")

    def test_an_interrupted_session_accepts_nothing(self, opened: Open, gangs: list[InstantGang]) -> None:
        assert self.conclude_all(opened, interrupted=True).outcome == "incomplete"

    def conclude_all(self, opened: Open, *, interrupted: bool = False, spoiled: Any = ()) -> Any:
        """What a session comes to in which all three requirements pass."""
        session = self.session_of_eight(opened)
        for case in session.source.cases:
            assert session.judge(case, nothing).passed
        return session.conclude(interrupted=interrupted, spoiled=spoiled)

    def session_of_eight(self, opened: Open) -> AcceptanceSession:
        session = opened(ddp_gpus_per_node="8")
        session.source.select(session.source.cases)
        session.source.open_run()
        return session


class TestLateVerdicts:
    def test_a_case_whose_test_never_asked_is_judged_by_what_was_measured(
        self, measuring: AcceptanceSession, gangs: list[InstantGang]
    ) -> None:
        measuring.judge(measuring.source.cases[0], nothing)
        late = measuring.conclude(interrupted=False, spoiled=()).verdicts[1]
        assert (late.id, late.outcome) == (IDS[1], "passed")
        assert len(gangs) == 1

    @pytest.mark.parametrize(
        ("interrupted", "reason"),
        [(True, "the session was interrupted"), (False, "its test did not ask for a verdict")],
    )
    def test_without_any_measurement_nothing_is_known(
        self, measuring: AcceptanceSession, gangs: list[InstantGang], interrupted: bool, reason: str
    ) -> None:
        judgement = measuring.conclude(interrupted=interrupted, spoiled=())
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
