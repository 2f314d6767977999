"""Plans the measurements for requirements, and the load that checks under load need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.planner import Pace, Question, build_plan, load_probes
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase, training_cases


def plan_of_cases(empty: Plan, cases: Sequence[AnyCase], pace: Pace, more: Sequence[Question] = ()) -> Plan:
    """Fill an empty plan with the measurements that the cases need, and with further questions."""
    others = [case for case in cases if isinstance(case, NodeCase)]
    asked = [case.probe for case in others if case.probe is not None]
    checks = [case.requirement.check for case in others if case.requirement.check]
    questions = [*(case.question for case in training_cases(cases)), *more]
    empty = replace(empty, survey=bool(checks))
    plan = build_plan(empty, questions, pace, asked)
    if not _lacks_load(plan, checks):
        return plan
    return build_plan(empty, questions, pace, [*asked, *load_probes(empty.device_type, empty.ranks_per_node or 1)])


def _lacks_load(plan: Plan, checks: Sequence[str]) -> bool:
    """Whether checks under load need more than the plan measures: every rank has to compute or communicate."""
    read = {NODE_CHECKS[name].reads for name in checks}
    layout, probes = plan.layout, plan.probes.arms if plan.probes else ()
    arms = [arm for study in plan.studies for arm in study.arms]
    probed = [ranks for probe in probes for ranks in layout.groups_of_round(probe)]
    trained = [ranks for arm in arms if arm.kind == "ddp" for ranks in layout.groups(arm)]
    working = {rank for ranks in probed for rank in ranks}.union(layout.ranks(arms))
    talking = {rank for ranks in (*probed, *trained) if len(ranks) > 1 for rank in ranks}
    needs_load = "telemetry" in read and len(working) < layout.world_size
    return needs_load or ("transport" in read and len(talking) < layout.world_size)
