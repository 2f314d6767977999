"""After each round the supervisor says whether the study goes on."""

from __future__ import annotations

import pytest

from pytest_ddpscale.launch.supervisor import wanted_arms
from pytest_ddpscale.run.rank_folder import WantedArms
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import RoundEnd, StudyEnd, StudyStart, WarmUp


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


@pytest.mark.parametrize(("enough", "arms"), [(2, ("alone",)), (1, ())])
def test_the_end_of_a_round_is_answered(enough: int, arms: tuple[str, ...]) -> None:
    judge = JudgeAfter(enough)
    assert wanted_arms(judge, WarmUp(study="weak/r", arm="alone", first_block_s=1.0)) is None
    answer = wanted_arms(judge, RoundEnd(study="weak/r", round=4, arms=()))
    assert answer == WantedArms("weak/r", 4, arms)


def test_other_records_are_heard_and_not_answered() -> None:
    judge = JudgeAfter(0)
    others: list[AnyRecord] = [StudyStart(study="weak/r", unix_s=1.0), StudyEnd("weak/r", "rounds")]
    assert [wanted_arms(judge, record) for record in others] == [None] * 2
    assert judge.heard == others
