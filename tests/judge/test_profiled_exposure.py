"""Exposed communication is told of the profiled rank, by rounds and by profiled steps, pass by pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.judge.profiled_exposure import profiled_exposures
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.profile_record import ArmProfile
from tests.builders.measurements import Measurement
from tests.builders.profiles import profile
from tests.builders.rounds import columns_of

ARMS = (Arm("alone", 1, 4), Arm("no_sync", 2, 4), Arm("ddp", 2, 4))
STUDY = Study("weak", Workload("r", ImageFamily("resnet18"), "fp32", 4), ARMS, 8, 1.0, 1.0)
PLAN = Plan("cpu", "cpu", (STUDY,))
NO_SYNC = profile(STUDY.id, "no_sync@2", [(60, 55, 0), (80, 70, 0)])
DDP = profile(STUDY.id, "ddp@2", [(100, 60, 30), (100, 75, 20)], [(40, 10), (40, 20)])


def block(arm: str, number: int, rank: int, step_s: float) -> Measurement:
    return Measurement(STUDY.id, arm, number, rank, rank, "n", f"GPU-{rank}", 4, 10, 10 * step_s, 1.7e9)


def of(*profiles: ArmProfile, columns: Columns | None = None) -> Evidence:
    return replace(Evidence(PLAN, columns or Columns(), {}), profiles=profiles)


def test_steps_of_one_pass_are_held_against_each_other() -> None:
    [found] = profiled_exposures(of(NO_SYNC, DDP))
    assert (found.study, found.arm) == ("weak/r", "ddp@2")
    assert found.by_profile.tolist() == pytest.approx([0.4, 0.2])
    assert found.waiting.tolist() == pytest.approx([0.3, 0.2])
    assert len(found.by_rounds) == 0


def test_rounds_count_where_both_arms_were_timed_at_the_pace_of_the_profiled_rank() -> None:
    timed = [
        block(arm, number, rank, seconds * ((1, 3) if arm == "ddp@2" else (1, 2))[rank])
        for arm, number, seconds in (("ddp@2", 0, 1.0), ("no_sync@2", 0, 0.8), ("ddp@2", 1, 1.0), ("ddp@2", 2, 1.0),
                                     ("no_sync@2", 2, 0.7))
        for rank in range(2)
    ]  # fmt: skip
    [found] = profiled_exposures(of(NO_SYNC, DDP, columns=columns_of(timed)))
    assert found.by_rounds.tolist() == pytest.approx([0.2, 0.3])


def test_an_arm_without_its_partner_or_without_numbers_tells_nothing() -> None:
    failed = ArmProfile(study=STUDY.id, arm="no_sync@2", gang=0, rank=0, problem="no Kineto")
    assert list(profiled_exposures(of(DDP))) == []
    assert list(profiled_exposures(of(DDP, failed))) == []
    assert list(profiled_exposures(of(DDP, profile(STUDY.id, "alone", [(60, 50, 0)])))) == []
