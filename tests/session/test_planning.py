"""A session asks for what fits."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from tests.builders.sessions import InstantGang, Open


class TestPlanning:
    def test_only_what_is_selected_and_fits_is_planned(self, opened: Open) -> None:
        session = opened(ddp_block="7s")
        session.source.select(session.source.cases)
        assert session.source.plan is not None
        assert [study.id for study in session.source.plan.studies] == ["weak/r"], "8 ranks do not fit"
        assert [arm.name for arm in session.source.plan.studies[0].arms] == ["alone", "ddp@2", "each@2"]
        assert (session.source.plan.studies[0].rounds, session.source.plan.studies[0].block_s) == (FEWEST_ROUNDS, 7.0)
        session.source.select(session.source.cases[:1])
        assert [arm.name for arm in session.source.plan.studies[0].arms] == ["alone"]

    def test_a_laptop_that_only_plans_plans_everything(self, opened: Open) -> None:
        session = opened(gpu_sku="gpu", collect_only=True)
        session.source.select(session.source.cases)
        assert session.source.plan is not None
        assert [study.id for study in session.source.plan.studies] == ["weak/r", "strong/r"]
        assert session.source.plan.device_type == "cuda"

    def test_nothing_is_written_or_measured_by_planning(
        self, opened: Open, tmp_path: Path, gangs: list[InstantGang]
    ) -> None:
        session = opened()
        session.source.select(session.source.cases)
        assert [path.name for path in tmp_path.iterdir()] == ["thresholds.yaml"]
        assert gangs == []
