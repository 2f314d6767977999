"""Decide during the measurement whether a study needs more rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpscale.judge.answering_study import matching_study
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.probing import probes_needed
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.probe import STUDY_ID as PROBES
from pytest_ddpscale.plan.probe import Probe, ProbeStudy
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.columns import Columns, GrowingColumns
from pytest_ddpscale.run.evidence import Evidence, evidence_of
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import GangRecord, Lost
from pytest_ddpscale.run.survey_record import PostMortem, Survey
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase, training_cases

# For a study without requirements, planned for a site's own test.
ROUNDS_WITHOUT_REQUIREMENTS = FEWEST_ROUNDS


class Decider:
    """Reads records as they are written and judges the measurements so far.

    Args:
        plan: of the measurement.
        cases: requirements that will be judged.
        confidence: of the intervals, 0 … 1.
    """

    def __init__(self, plan: Plan, cases: Sequence[AnyCase], confidence: float) -> None:
        self._plan = plan
        self._cases: dict[str, list[Case]] = defaultdict(list)
        self._probed = [case for case in cases if isinstance(case, NodeCase) and case.probe is not None]
        for case in training_cases(cases):
            study = matching_study(plan, case.question)
            if study is not None:
                self._cases[study.id].append(case)
        self._confidence = confidence
        self._gangs: dict[int, GangRecord] = {}
        self._columns = GrowingColumns()
        self._each = {(study.id, arm.name) for study in plan.studies for arm in study.arms if arm.compares_ranks}
        self._records: dict[str, list[AnyRecord]] = defaultdict(list)
        # Requirements of each study that needed more rounds when last judged. The others are judged again only before
        # an arm is dropped, because a dropped arm does not come back.
        self._open: dict[str, list[Case]] = {}
        # Number of measurements of each probe when it was last found to need no more.
        self._told: dict[Probe, int] = {}

    def hear(self, record: AnyRecord) -> None:
        """Add a record."""
        if isinstance(record, GangRecord):
            self._gangs[record.gang] = record
            self._columns.add_gang(record)
        elif isinstance(record, Block):
            self._columns.add(record)
        elif not isinstance(record, Survey | PostMortem | Lost):
            self._records[record.study].append(record)

    def needed_arms(self, study_id: str) -> list[str]:
        """Names of the arms that need more rounds to decide a requirement.

        Empty once the study needs no more rounds.
        """
        if self._plan.probes is not None and study_id == self._plan.probes.id:
            return self._needed_probes(self._plan.probes)
        study = self._plan.study(study_id)
        if study is None:
            return []
        if self._plan.launches > 1:  # launches have a fixed length, because their means decide
            return [arm.name for arm in study.arms]
        rounds = self._columns.rounds_begun(study_id)
        if rounds < FEWEST_ROUNDS:
            return [arm.name for arm in study.arms]
        if not self._cases[study_id]:
            return [arm.name for arm in study.arms] if rounds < ROUNDS_WITHOUT_REQUIREMENTS else []
        records = [*self._gangs.values(), *self._records[study_id]]
        # Arms in which ranks compute alone show how fast each rank is, also those of other studies.
        columns = self._columns.columns({(study.id, arm.name) for arm in study.arms} | self._each)
        evidence = evidence_of(self._plan_of_those_there(study, columns), columns, records)
        asked, everything = self._open.get(study_id) or self._cases[study_id], self._cases[study_id]
        found = still_open(asked, evidence, self._confidence)
        if len(asked) < len(everything) and arms_needed(study, found) != arms_needed(study, asked):
            found = still_open(everything, evidence, self._confidence)
        self._open[study_id] = found
        return arms_needed(study, found)

    def _needed_probes(self, study: ProbeStudy) -> list[str]:
        """`needed_arms` for probes. A probe that needed no more and was not measured since is not judged again."""
        evidence = self._evidence_on_probes()
        if len(evidence.rounds_probed) < study.swept_rounds:
            return [probe.id for probe in study.probes]
        if len(evidence.rounds_probed) < FEWEST_ROUNDS:
            done = {one.arm for one in evidence.probes}
            asked_for = {case.probe.id for case in self._probed if case.probe}
            asked_for -= evidence.unsupported.keys() - done  # a probe that some ranks support may still fail on one
            return [probe.id for probe in study.probes if probe.id in asked_for]
        of = {probe: evidence.probed(probe) for probe in study.probes}
        measured = {probe: 0 if found is None else int(found.present.sum()) for probe, found in of.items()}
        told = {probe for probe, count in measured.items() if self._told.get(probe) == count}
        asked = [case for case in self._probed if case.probe not in told]
        needed = probes_needed(study, asked, evidence, self._confidence)
        self._told |= {probe: count for probe, count in measured.items() if probe.id not in needed}
        return needed

    def _evidence_on_probes(self) -> Evidence:
        records = [*self._gangs.values(), *self._records[PROBES]]
        return evidence_of(self._plan, self._columns.of_study(PROBES), records)

    def _plan_of_those_there(self, study: Study, columns: Columns) -> Plan:
        """The plan reduced to the remaining nodes: after a loss nothing can pass, but these can still be judged."""
        nodes = len({host for arm in columns.of_study(study.id) for host in arm.ranks.by_host})
        ranks = nodes * self._plan.layout.ranks_per_node
        if nodes >= self._plan.nodes or study.world_size > ranks:
            return self._plan
        # Probes and pairs over all nodes do not fit fewer nodes, and requirements on studies do not need them.
        return replace(self._plan, studies=(study,), nodes=nodes, probes=None, pairs=None)


def still_open(cases: Sequence[Case], evidence: Evidence, confidence: float) -> list[Case]:
    """Requirements that more rounds may decide.

    A decided requirement stays decided: its arms get no new rounds, so the judge sees the same data again.

    Args:
        cases: requirements on one study.
        evidence: of the study so far.
        confidence: of the intervals.
    """
    return [case for case in cases if judge(case, evidence, confidence).is_open]


def arms_needed(study: Study, cases: Sequence[Case]) -> list[str]:
    """Names of the arms of a study that requirements need, in the study's order."""
    needed = {arm.name for case in cases for arm in case.question.arms}
    return [arm.name for arm in study.arms if arm.name in needed]
