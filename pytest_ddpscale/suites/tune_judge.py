"""Ends the study of a setting as soon as it is decided."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.table import GrowingColumns
from pytest_ddpscale.suites.pace import throughput

# A smaller difference is not worth a change, so further rounds are not needed.
WORTH = 0.01


class TuneJudge:
    """A `pytest_ddpscale.launch.supervisor.Judge`; `confidence` is that of each interval, 0 … 1."""

    def __init__(self, plan: Plan, confidence: float) -> None:
        self._plan, self._confidence = plan, confidence
        self._columns = GrowingColumns()

    def hear(self, record: AnyRecord) -> None:
        """Store a record."""
        self._columns.hear(record)

    def needed_arms(self, study_id: str) -> Sequence[str]:
        """All arms, until the interval shows a difference, or that there is none worth a change."""
        study = self._plan.study(study_id)
        if study is None:
            return []
        if len(study.arms) < 2 or study.launch > 1:  # of a fixed length
            return [arm.name for arm in study.arms]
        usual, other = study.arms
        evidence = Evidence(self._plan, self._columns.columns({(study.id, arm.name) for arm in study.arms}), {})
        found = throughput(evidence, study, other, self._confidence, usual)
        if found is None or found.interval is None:
            return [usual.name, other.name]
        low, high = found.interval
        is_told = low > 1 or high < 1 or (low >= 1 - WORTH and high <= 1 + WORTH)
        return [] if is_told else [usual.name, other.name]
