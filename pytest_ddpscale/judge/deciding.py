"""Decide during the measurement whether a study needs more rounds.

Once a GPU or node is rejected as slower than its peers, requirements that it slows get no more than the fewest rounds:
the run cannot pass, and these rounds show another slow device or link all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.slow import arms_read, pace_arms, study_before
from pytest_ddpscale.judge.values import matching_study
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.evidence import Evidence, evidence_of
from pytest_ddpscale.run.record_lines import AnyRecord, OfDevices
from pytest_ddpscale.run.records import GangRecord, GpuErrors, Lost, RunStart
from pytest_ddpscale.run.survey_record import PostMortem, Survey
from pytest_ddpscale.run.table import Columns, GrowingColumns
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase


class Decider:
    """Reads records as they are written and judges the measurements so far.

    A requirement is judged again while it is open. One that is decided is judged again only before an arm is dropped,
    and if its arms were measured since, because a dropped arm does not come back.
    """

    def __init__(self, plan: Plan, cases: Sequence[AnyCase], confidence: float) -> None:
        self._plan = plan
        self._cases: dict[str, list[AnyCase]] = defaultdict(list)
        self._arms: dict[str, set[str]] = {}  # that a requirement needs, by its id
        for case in cases:
            study = matching_study(plan, case.question) if isinstance(case, Case) else plan.probes
            if study is not None and (names := arms_of(case, study)):
                self._cases[study.id].append(case)
                self._arms[case.id] = names
        self._confidence = confidence
        self._gangs: dict[int, GangRecord] = {}
        self._columns = GrowingColumns()
        self._each = {(study.id, arm.name) for study in plan.studies for arm in study.arms if arm.compares_ranks}
        self._records: dict[str, list[AnyRecord]] = defaultdict(list)
        # Number of measurements of a requirement's arms when it was found decided, by its id.
        self._decided: dict[str, int] = {}
        # Whether a GPU or node is certainly slower than its peers, which explains whatever one slow rank slows.
        self._is_explained = False

    def hear(self, record: AnyRecord) -> None:
        """Add a record."""
        if isinstance(record, GangRecord):
            self._gangs[record.gang] = record
            self._columns.add_gang(record)
        elif isinstance(record, Block):
            self._columns.add(record)
        elif not isinstance(record, RunStart | Survey | PostMortem | Lost | GpuErrors | OfDevices):
            self._records[record.study].append(record)

    def needed_arms(self, study_id: str) -> list[str]:
        """Names of the arms that need more rounds to decide a requirement.

        Empty once the study needs no more rounds.
        """
        study = next((one for one in self._plan.timed if one.id == study_id), None)
        if study is None or isinstance(study, PairStudy):
            return []
        arms, rounds = [arm.name for arm in study.arms], self._columns.rounds_begun(study_id)
        wanted, records = {(study_id, name) for name in arms}, [*self._gangs.values(), *self._records[study_id]]
        if isinstance(study, ProbeStudy):
            if rounds < study.swept_rounds:
                return arms
            plan, columns = self._plan, self._columns.columns(wanted)
        else:
            if rounds < FEWEST_ROUNDS:
                return arms
            # Arms in which ranks compute alone show how fast each rank is, also those of other studies.
            # And the study before shows which rank was slowest before the first round.
            before = study_before(study, self._plan.studies)
            paces = {(before.id, pace_arms(before)[0].name)} if before else set()
            columns = self._columns.columns(wanted | self._each | paces)
            plan = self._plan_of_those_there(study, columns)
        evidence = replace(evidence_of(plan, columns, records), goes_on=True)
        measured = {name: int(arm.present.sum()) for (of, name), arm in columns.arms.items() if of == study_id}
        if rounds < FEWEST_ROUNDS:
            asked = {name for case in self._cases[study_id] for name in self._arms[case.id]}
            asked -= evidence.unsupported.keys() - measured.keys()  # one that some ranks support may still fail on one
            return [name for name in arms if name in asked]
        return self._needed(study_id, arms, evidence, measured)

    def _needed(self, study_id: str, arms: Sequence[str], evidence: Evidence, measured: Mapping[str, int]) -> list[str]:
        """Those of the arms that open requirements need; `measured` is the number of measurements of each."""
        cases = self._cases[study_id]
        count = {case.id: sum(measured.get(name, 0) for name in self._arms[case.id]) for case in cases}

        def needed(cases: Sequence[AnyCase]) -> list[str]:
            names = {name for case in cases for name in self._arms[case.id]}
            return [name for name in arms if name in names]

        asked = [case for case in cases if case.id not in self._decided]
        found = self._still_open(asked, evidence)
        if not asked or needed(found) != needed(asked):
            again = [case for case in cases if self._decided.get(case.id, count[case.id]) != count[case.id]]
            found += self._still_open(again, evidence)
        self._decided |= count
        for case in found:
            del self._decided[case.id]
        return needed(found)

    def _still_open(self, cases: Sequence[AnyCase], evidence: Evidence) -> list[AnyCase]:
        """Those that more rounds may decide, and that a slow GPU or node which is named already does not explain.

        A decided requirement stays decided: its arms get no new rounds, so the judge sees the same data again.
        """
        found = []
        for case in cases:
            verdict, definition = judge(case, evidence, self._confidence), case.requirement.definition
            is_rejected = verdict.outcome == "failed" and verdict.severity == "fail"
            if definition.reads_own_pace and is_rejected and any(one.is_certain for one in verdict.culprits):
                self._is_explained = True
            if verdict.is_open:
                # Uniformity may be open because of another one.
                found.append((case, definition.slowed_by_one_rank and not definition.reads_own_pace))
        return [case for case, is_slowed in found if not (self._is_explained and is_slowed)]

    def _plan_of_those_there(self, study: Study, columns: Columns) -> Plan:
        """The plan reduced to the remaining nodes: after a loss nothing can pass, but these can still be judged."""
        nodes = len({host for arm in columns.of_study(study.id) for host in arm.ranks.by_host})
        ranks = nodes * self._plan.layout.ranks_per_node
        if nodes >= self._plan.nodes or study.world_size > ranks:
            return self._plan
        # Probes and pairs over all nodes do not fit fewer nodes, and requirements on studies do not need them.
        return replace(self._plan, studies=(study,), nodes=nodes, probes=None, pairs=None)


def arms_of(case: AnyCase, study: Study | ProbeStudy) -> set[str]:
    """Names of the arms that a requirement needs of a study, or the id of its probe; empty for a check."""
    if isinstance(case, Case) and isinstance(study, Study):
        return {arm.name for arm in arms_read(case.question, study)}
    return {case.probe.name} if isinstance(case, NodeCase) and case.probe is not None else set()
