"""Whether a study has told enough, asked while it is still being measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpscale.evidence.columns import Columns, GrowingColumns
from pytest_ddpscale.evidence.evidence import Evidence, evidence_of
from pytest_ddpscale.evidence.probe_columns import GrowingProbes
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.probe import STUDY_ID as PROBES
from pytest_ddpscale.plan.probe import Probe, ProbeStudy
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.results.probe_record import ProbeBlock
from pytest_ddpscale.results.record_lines import AnyRecord
from pytest_ddpscale.results.records import Block, GangRecord, Lost
from pytest_ddpscale.results.survey_record import PostMortem, Survey
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase, training_cases
from pytest_ddpscale.verdict.answering_study import matching_study
from pytest_ddpscale.verdict.family import ANY_P_VALUE, is_open, rejection_level
from pytest_ddpscale.verdict.judge import judge
from pytest_ddpscale.verdict.probing import probes_needed

# Of a study that no requirement is about, made for a test of the site's own.
ROUNDS_WITHOUT_REQUIREMENTS = FEWEST_ROUNDS


class Decider:
    """Listens to records as they are written and judges what they say so far.

    Args:
        plan: what is being measured.
        cases: requirements that will be judged.
        confidence: of the intervals, 0 … 1.
        family_confidence: at which failures will be corrected for the number of requirements; None if they are not.
            What fails by itself is then measured until it fails among all, or to the limit of rounds.
    """

    def __init__(
        self, plan: Plan, cases: Sequence[AnyCase], confidence: float, family_confidence: float | None = None
    ) -> None:
        self._plan = plan
        self._cases: dict[str, list[Case]] = defaultdict(list)
        self._probed = [case for case in cases if isinstance(case, NodeCase) and case.probe is not None]
        for case in training_cases(cases):
            study = matching_study(plan, case.question)
            if study is not None:
                self._cases[study.id].append(case)
        self._confidence = confidence
        self._rejection_level = rejection_level(cases, family_confidence)
        self._gangs: dict[int, GangRecord] = {}
        self._columns = GrowingColumns()
        self._each = {(study.id, arm.name) for study in plan.studies for arm in study.arms if arm.compares_ranks}
        self._records: dict[str, list[AnyRecord]] = defaultdict(list)
        self._probes = GrowingProbes()
        # Of each study, requirements that needed more rounds when they were last judged: the others are only once more,
        # before an arm is dropped, which does not come back.
        self._open: dict[str, list[Case]] = {}
        # Of probes that had told enough: how many measurements of them there were then.
        self._told: dict[Probe, int] = {}

    def hear(self, record: AnyRecord) -> None:
        """Take note of a record."""
        if isinstance(record, GangRecord):
            self._gangs[record.gang] = record
            self._columns.add_gang(record)
            self._probes.add_gang(record)
        elif isinstance(record, Block):
            self._columns.add(record)
        elif isinstance(record, ProbeBlock):
            self._probes.add(record)
        elif not isinstance(record, Survey | PostMortem | Lost):
            self._records[record.study].append(record)

    def needed_arms(self, study_id: str) -> list[str]:
        """Names of the arms of which further rounds may decide something, or are to narrow an interval.

        None once the study has told enough.
        """
        if self._plan.probes is not None and study_id == self._plan.probes.id:
            return self._needed_probes(self._plan.probes)
        study = self._plan.study(study_id)
        if study is None:
            return []
        if self._plan.launches > 1:  # of fixed lengths, decided by the launches' means
            return [arm.name for arm in study.arms]
        rounds = self._columns.rounds_begun(study_id)
        if rounds < FEWEST_ROUNDS:
            return [arm.name for arm in study.arms]
        if not self._cases[study_id]:
            return [arm.name for arm in study.arms] if rounds < ROUNDS_WITHOUT_REQUIREMENTS else []
        records = [*self._gangs.values(), *self._records[study_id]]
        # Ranks that compute by themselves tell, in other studies too, how fast each of them is.
        columns = self._columns.columns({(study.id, arm.name) for arm in study.arms} | self._each)
        evidence = evidence_of(self._plan_of_those_there(study, columns), columns, records)
        asked, everything = self._open.get(study_id) or self._cases[study_id], self._cases[study_id]
        found = still_open(asked, evidence, self._confidence, self._rejection_level)
        if len(asked) < len(everything) and arms_needed(study, found) != arms_needed(study, asked):
            found = still_open(everything, evidence, self._confidence, self._rejection_level)
        self._open[study_id] = found
        return arms_needed(study, found)

    def _needed_probes(self, study: ProbeStudy) -> list[str]:
        """As `needed_arms`. What had told enough and was not measured since is not judged again."""
        evidence = self._evidence_on_probes()
        if len(evidence.rounds_probed) < FEWEST_ROUNDS:
            done = {Probe(*name).id for name in evidence.probes}
            asked_for = {case.probe.id for case in self._probed if case.probe}
            asked_for -= evidence.unsupported.keys() - done  # what some ranks can do may still fail on one of them
            return [probe.id for probe in study.probes if probe.id in asked_for]
        of = {probe: evidence.probes.get((probe.name, probe.world_size)) for probe in study.probes}
        measured = {probe: 0 if found is None else int(found.present.sum()) for probe, found in of.items()}
        told = {probe for probe, count in measured.items() if self._told.get(probe) == count}
        asked = [case for case in self._probed if case.probe not in told]
        needed = probes_needed(study, asked, evidence, self._confidence, self._rejection_level)
        self._told |= {probe: count for probe, count in measured.items() if probe.id not in needed}
        return needed

    def _evidence_on_probes(self) -> Evidence:
        records = [*self._gangs.values(), *self._records[PROBES]]
        return replace(evidence_of(self._plan, Columns(), records), probes=self._probes.columns())

    def _plan_of_those_there(self, study: Study, columns: Columns) -> Plan:
        """Where a node was lost nothing more can pass, but what is left of the gang may still be told good or bad."""
        nodes = len({host for arm in columns.of_study(study.id) for host in arm.ranks.by_host})
        ranks = nodes * self._plan.layout.ranks_per_node
        if nodes >= self._plan.nodes or study.world_size > ranks:
            return self._plan
        # What was over all nodes cannot be planned on fewer, and no requirement on a study asks for it.
        return replace(self._plan, studies=(study,), nodes=nodes, probes=None, pairs=None)


def still_open(
    cases: Sequence[Case], evidence: Evidence, confidence: float, rejection_level: float = ANY_P_VALUE
) -> list[Case]:
    """Requirements that more rounds may decide, or make as precise as the plan asks.

    Both are measured in the same rounds: what has to become precise cannot wait until others are decided, because these
    may take all rounds that there are.

    What is decided stays decided: without its arms it gets no new rounds, and the judge sees the same again.

    Args:
        cases: requirements on one study.
        evidence: what it told so far.
        confidence: of the intervals.
        rejection_level: p value from which on a failure is decided.
    """
    judged = ((case, judge(case, evidence, confidence)) for case in cases)
    return [case for case, verdict in judged if is_open(verdict, rejection_level) or verdict.is_too_wide]


def arms_needed(study: Study, cases: Sequence[Case]) -> list[str]:
    """Names of the arms of a study that requirements need, in its order."""
    needed = {arm.name for case in cases for arm in case.question.arms}
    return [arm.name for arm in study.arms if arm.name in needed]
