"""Verdicts on node checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date

from pytest_ddpscale.judge.catalogue import check, unfit_hosts
from pytest_ddpscale.judge.finding import NodeEvidence
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.gpu_blocks import GpuBlocks
from pytest_ddpscale.run.survey_record import STUDY_ID, Survey
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase
from pytest_ddpscale.thresholds.node_expectation import node_expectation


def judge_check(blank: Verdict, case: NodeCase, evidence: Evidence) -> Verdict:
    """The verdict on one check; its value is the share of nodes that pass, which is exact.

    Args:
        blank: on the requirement, ``not_measured``.
        case: the requirement, with its check.
        evidence: surveys from before the launch, and telemetry under load.
    """
    name = case.requirement.check
    reads_telemetry = NODE_CHECKS[name].reads == "telemetry"
    of_nodes = evidence.once(("nodes", id(case.sku), reads_telemetry), lambda: _of_nodes(case, evidence))
    found = check(name, of_nodes)
    reason = found.reason
    why_no_survey = evidence.errors.get(STUDY_ID) or evidence.interrupted.get(STUDY_ID)
    if found.outcome == "not_measured" and why_no_survey:
        reason = f"{reason}: {why_no_survey}"
    # If only some nodes could be checked, the share is unknown.
    share = None if found.outcome == "not_measured" else found.share
    interval = None if share is None else (share, share)
    return replace(
        blank,
        outcome=found.outcome,
        value=share,
        interval=interval,
        rounds=1 if share is not None else 0,
        reason=reason,
        notes=found.notes,
        culprits=found.culprits,
        flags=(PARTLY_KNOWN,) if found.is_partly_known else (),
    )


def _of_nodes(case: NodeCase, evidence: Evidence) -> NodeEvidence:
    reads_telemetry = NODE_CHECKS[case.requirement.check].reads == "telemetry"
    return NodeEvidence(
        node_expectation(case.sku, evidence.plan), evidence.surveys, evidence.plan.nodes, evidence.telemetry,
        evidence.transports, _blocks(evidence) if reads_telemetry else GpuBlocks(), evidence.post_mortems,
    )  # fmt: skip


def _blocks(evidence: Evidence) -> GpuBlocks:
    """Blocks with telemetry: all but those of pairs of nodes."""
    return GpuBlocks([arm for arm in evidence.columns.arms.values() if arm.study != PAIRS])


def unfit_nodes(cases: Iterable[AnyCase], plan: Plan, surveys: dict[str, Survey], day: date) -> dict[str, str]:
    """Nodes that fail a check of severity ``fail`` before anything is launched on them.

    Args:
        cases: the selected cases.
        plan: of the launch.
        surveys: by host.
        day: current day in UTC; a check that is waived on it excludes no node.

    Returns:
        Reason by host.
    """
    checks = [case for case in cases if isinstance(case, NodeCase) and case.requirement.check]
    rejecting = [case.requirement for case in checks if case.requirement.severity == "fail"]
    names = [one.check for one in rejecting if one.waiver is None or not one.waiver.holds_on(day)]
    if not checks:
        return {}
    return unfit_hosts(names, NodeEvidence(node_expectation(checks[0].sku, plan), surveys, plan.nodes))
