"""A check of the nodes against what was found out about them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from pytest_ddpscale.checks.catalogue import check, unfit_hosts
from pytest_ddpscale.checks.finding import Blocks, NodeEvidence
from pytest_ddpscale.evidence.columns import ArmColumns
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.evidence.probe_columns import ProbeColumns
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.survey_record import STUDY_ID, Survey
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase
from pytest_ddpscale.thresholds.node_expectation import node_expectation


def judge_check(blank: Verdict, case: NodeCase, evidence: Evidence) -> Verdict:
    """The verdict on one check; its value is the share of nodes that pass, which has no error.

    Args:
        blank: on the requirement, ``not_measured``.
        case: the requirement, with its check.
        evidence: what was found out, before the launch and under load.
    """
    plan, name = evidence.plan, case.requirement.check
    blocks = evidence.once("blocks", lambda: _blocks(evidence)) if NODE_CHECKS[name].reads == "telemetry" else {}
    of_nodes = NodeEvidence(
        node_expectation(case.sku, plan), evidence.surveys, plan.nodes,
        evidence.telemetry, evidence.transports, blocks, evidence.post_mortems,
    )  # fmt: skip
    found = check(name, of_nodes)
    reason = found.reason
    why_no_survey = evidence.errors.get(STUDY_ID) or evidence.interrupted.get(STUDY_ID)
    if found.outcome == "not_measured" and why_no_survey:
        reason = f"{reason}: {why_no_survey}"
    # Of nodes of which only some could be looked at no share is known.
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
    )


def _blocks(evidence: Evidence) -> Blocks:
    """In which blocks each GPU took part, by the names that telemetry has for them."""
    found: dict[tuple[str, str], set[tuple[str, str, int]]] = {}
    measured: list[tuple[str, str, ArmColumns | ProbeColumns]] = []
    measured += [(arm.study, arm.arm, arm) for arm in evidence.columns.arms.values()]
    measured += [(probe.study, Probe(probe.probe, probe.world_size).id, probe) for probe in evidence.probes.values()]
    for study, name, blocks in measured:
        rounds, ranks = [(study, name, number) for number in blocks.numbers.tolist()], blocks.ranks
        gpus = zip(ranks.hosts.tolist(), ranks.devices.tolist(), blocks.present.T.tolist(), strict=True)
        for host, device, there in gpus:
            found.setdefault((host, device), set()).update(itertools.compress(rounds, there))
    return found


def unfit_nodes(cases: Iterable[AnyCase], plan: Plan, surveys: dict[str, Survey]) -> dict[str, str]:
    """Nodes that fail a check of severity ``fail`` before anything is launched on them.

    Args:
        cases: that were selected.
        plan: of what is to be launched.
        surveys: host → what it is.

    Returns:
        Host → why.
    """
    checks = [case for case in cases if isinstance(case, NodeCase) and case.requirement.check]
    names = [case.requirement.check for case in checks if case.requirement.severity == "fail"]
    if not checks:
        return {}
    return unfit_hosts(names, NodeEvidence(node_expectation(checks[0].sku, plan), surveys, plan.nodes))
