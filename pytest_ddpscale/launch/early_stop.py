"""The supervisor's word to the gang on whether a study goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pytest_ddpscale.results.rank_folder import WantedArms
from pytest_ddpscale.results.record_lines import AnyRecord
from pytest_ddpscale.results.records import RoundEnd


class Judge(Protocol):
    """Who knows when a study has told enough."""

    def hear(self, record: AnyRecord) -> None:
        """Take note of a record that was just written."""

    def needed_arms(self, study_id: str) -> Sequence[str]:
        """Names of the arms of which further rounds may decide something."""


def wanted_arms(judge: Judge, record: AnyRecord) -> WantedArms | None:
    """Have a record judged; the answer for which rank 0 waits, if the record ends a round."""
    judge.hear(record)
    if not isinstance(record, RoundEnd):
        return None
    return WantedArms(record.study, record.round, tuple(judge.needed_arms(record.study)))
