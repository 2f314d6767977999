"""Decide during the measurement whether a study needs more rounds.

Once a GPU or node is rejected as slower than its peers, requirements that it slows get no more than the fewest rounds:
the run cannot pass, and these rounds show another slow device or link all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.metrics import rounds_begun
from pytest_ddpscale.judge.slow import arms_read, pace_arms, study_before
from pytest_ddpscale.judge.values import matching_study
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.evidence import Evidence, evidence_of
from pytest_ddpscale.run.record_lines import AnyRecord, OfDevices
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.run.table import GrowingColumns
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase


class Decider:
    """Reads records as they are written and judges the measurements so far.

    A requirement is judged again while it is open. One that is decided is judged again only before an arm is dropped,
    and if its arms were measured since, because a dropped arm does not come back.
    """

    def __init__(self, plan: Plan, cases: Sequence[AnyCase], confidence: float) -> None:
        self._plan, self._confidence = plan, confidence
        self._cases: dict[str, list[AnyCase]] = defaultdict(list)
        self._arms: dict[str, set[str]] = {}  # that a requirement needs, by its id
        for case in cases:
            study: Study | ProbeStudy | None = plan.probes
            arms = [case.probe] if isinstance(case, NodeCase) else []
            if isinstance(case, Case):
                study = matching_study(plan, case.question)
                arms = [*arms_read(case.question, study)] if study else []
            if study is not None and (names := {arm.name for arm in arms if arm}):
                self._cases[study.id].append(case)
                self._arms[case.id] = names
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
        self._columns.hear(record)
        if isinstance(record, GangRecord):
            self._gangs[record.gang] = record
        elif not isinstance(record, Block | OfDevices) and hasattr(record, "study"):
            self._records[record.study].append(record)

    def needed_arms(self, study_id: str) -> list[str]:
        """Names of the arms that need more rounds to decide a requirement.

        Empty once the study needs no more rounds.
        """
        plan, rounds = self._plan, len(rounds_begun(self._columns.columns(), study_id))
        study = next((one for one in plan.timed if one.id == study_id), None)
        if study is None or isinstance(study, PairStudy):
            return []
        arms = [arm.name for arm in study.arms]
        if rounds < (study.swept_rounds if isinstance(study, ProbeStudy) else FEWEST_ROUNDS):
            return arms
        # Arms in which ranks compute alone show how fast each rank is, also those of other studies.
        # And the study before shows which rank was slowest before the first round.
        before = study_before(study, plan.studies) if isinstance(study, Study) else None
        wanted = self._each | {(study_id, name) for name in arms}
        columns = self._columns.columns(wanted | ({(before.id, pace_arms(before)[0].name)} if before else set()))
        # After a loss nothing can pass, but the nodes that remain can still be judged. Probes and pairs over all do not
        # fit fewer, and requirements on studies do not need them.
        nodes = len({host for arm in columns.of_study(study_id) for host in arm.ranks.by_host})
        if isinstance(study, Study) and study.world_size <= nodes * plan.layout.ranks_per_node and nodes < plan.nodes:
            plan = replace(plan, studies=(study,), nodes=nodes, probes=None, pairs=None)
        records, cases = [*self._gangs.values(), *self._records[study_id]], self._cases[study_id]
        evidence = replace(evidence_of(plan, columns, records), goes_on=True)
        measured = {name: int(arm.present.sum()) for (of, name), arm in columns.arms.items() if of == study_id}

        def needed(cases: Sequence[AnyCase]) -> list[str]:
            names = {name for case in cases for name in self._arms[case.id]}
            return [name for name in arms if name in names]

        if rounds < FEWEST_ROUNDS:  # a probe that some ranks support may still fail on one
            return [name for name in needed(cases) if name in measured or name not in evidence.unsupported]
        count = {case.id: sum(measured.get(name, 0) for name in self._arms[case.id]) for case in cases}
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
