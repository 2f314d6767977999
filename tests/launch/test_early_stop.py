"""After each round the supervisor says whether the study goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.run.rank_folder import WantedArms
from pytest_ddpscale.run.record_lines import AnyRecord, Idle, Notice
from pytest_ddpscale.run.records import RoundEnd, StudyEnd, StudyStart, WarmUp
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.builders.launches import slurm


class JudgeAfter:
    """Wants more rounds of one arm until it has heard some measurements."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.heard: list[AnyRecord] = []

    def hear(self, record: AnyRecord) -> None:
        self.heard.append(record)

    def needed_arms(self, study_id: str) -> list[str]:
        mine = [one for one in self.heard if isinstance(one, WarmUp) and one.study == study_id]
        return ["alone"] if len(mine) < self.enough else []


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


@pytest.mark.parametrize(("enough", "arms"), [(2, ("alone",)), (1, ())])
def test_the_end_of_a_round_is_answered(run: RunDirectory, enough: int, arms: tuple[str, ...]) -> None:
    judge = JudgeAfter(enough)
    supervisor = Supervisor(Launch(slurm(), {}), run, Limits(), judge=judge)
    records: list[AnyRecord | Notice] = [
        StudyStart(study="weak/r", unix_s=1.0),
        WarmUp(study="weak/r", arm="alone", first_block_s=1.0),
        Idle(),
        RoundEnd(study="weak/r", round=4, arms=()),
        StudyEnd("weak/r", "rounds"),
    ]
    answers = [supervisor.hear(record) for record in records]
    assert answers == [None, None, None, WantedArms("weak/r", 4, arms), None]
    assert judge.heard == [record for record in records if not isinstance(record, Notice)]
