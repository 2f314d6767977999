"""A session asks for what fits."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from tests.session.sample import InstantGang, Open


class TestPlanning:
    def test_only_what_is_selected_and_fits_is_planned(self, opened: Open) -> None:
        session = opened(ddp_block="7s")
        session.select(session.cases)
        assert session.plan is not None
        assert [study.id for study in session.plan.studies] == ["weak/r"], "8 ranks do not fit"
        assert [arm.name for arm in session.plan.studies[0].arms] == ["alone", "ddp@2", "each@2"]
        assert (session.plan.studies[0].rounds, session.plan.studies[0].block_s) == (FEWEST_ROUNDS, 7.0)
        session.select(session.cases[:1])
        assert [arm.name for arm in session.plan.studies[0].arms] == ["alone"]

    def test_a_laptop_that_only_plans_plans_everything(self, opened: Open) -> None:
        session = opened(gpu_sku="gpu", collect_only=True)
        session.select(session.cases)
        assert session.plan is not None
        assert [study.id for study in session.plan.studies] == ["weak/r", "strong/r"]
        assert session.plan.device_type == "cuda"

    def test_nothing_is_written_or_measured_by_planning(
        self, opened: Open, tmp_path: Path, gangs: list[InstantGang]
    ) -> None:
        session = opened()
        session.select(session.cases)
        assert [path.name for path in tmp_path.iterdir()] == ["thresholds.yaml"]
        assert gangs == []
