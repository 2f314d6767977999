"""Whether a study has told enough, asked while it is still being measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.records import Measurement
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.verdict.caveats import HOST_BOUND
from pytest_ddpscale.verdict.evaluation import judge
from pytest_ddpscale.verdict.evidence import evidence_of
from pytest_ddpscale.verdict.matching import matching_study
from pytest_ddpscale.verdict.verdict import Verdict

# Of a study that no requirement is about, made for a test of the site's own.
ROUNDS_WITHOUT_REQUIREMENTS = 8


class Decider:
    """Listens to records as they are written and judges what they say so far.

    Args:
        plan: what is being measured.
        cases: requirements that will be judged.
        confidence: of the intervals, 0 … 1.
    """

    def __init__(self, plan: Plan, cases: Sequence[Case], confidence: float) -> None:
        self._plan = plan
        self._cases: dict[str, list[Case]] = defaultdict(list)
        for case in cases:
            study = matching_study(plan, case.question)
            if study is not None:
                self._cases[study.id].append(case)
        self._confidence = confidence
        self._records: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def hear(self, record: dict[str, Any]) -> None:
        """Take note of a record."""
        if isinstance(record.get("study"), str):
            self._records[record["study"]].append(record)

    def has_told_enough(self, study_id: str) -> bool:
        """Whether further rounds of the study would change nothing that is asked."""
        records = self._records[study_id]
        measurements = [Measurement.from_json(r) for r in records if r["kind"] == "measurement"]
        rounds = len({measurement.round for measurement in measurements})
        if not self._cases[study_id]:
            return rounds >= ROUNDS_WITHOUT_REQUIREMENTS
        if rounds < FEWEST_ROUNDS:
            return False
        evidence = evidence_of(self._plan, measurements, records)
        return not any(more_rounds_may_decide(judge(c, evidence, self._confidence)) for c in self._cases[study_id])


def more_rounds_may_decide(verdict: Verdict) -> bool:
    """Whether a verdict is open only because there are too few rounds."""
    return verdict.outcome == "inconclusive" and HOST_BOUND not in verdict.notes
