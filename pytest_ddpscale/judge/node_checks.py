"""Node checks: what is asked of a node whatever its speed, and the verdict over all nodes.

`plan.node_check` names and describes each check; the function of that name finds what a node lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Literal

from pytest_ddpscale.judge import gpu_checks, host_checks
from pytest_ddpscale.judge.coverage import gpu_errors_in, lost_places
from pytest_ddpscale.judge.findings import Check, Findings, NodeEvidence, NodeFault
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.survey_record import STUDY_ID, Survey
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase, expected_by
from pytest_ddpscale.util.listing import first_few

_FIND: Mapping[str, Check] = {
    "gpus": gpu_checks.gpus,
    "processes": gpu_checks.processes,
    "mig": gpu_checks.mig,
    "ecc": gpu_checks.ecc,
    "throttling": gpu_checks.throttling,
    "pcie": gpu_checks.pcie,
    "nvlink": gpu_checks.nvlink,
    "topology": host_checks.topology,
    "versions": host_checks.versions,
    "kernels": host_checks.kernels,
    "bf16": host_checks.bf16,
    "disk": host_checks.disk,
    "transport": host_checks.transport,
    "ecc_under_load": gpu_checks.ecc_under_load,
    "throttling_under_load": gpu_checks.throttling_under_load,
    "pcie_under_load": gpu_checks.pcie_under_load,
}
_MOST_NAMED = 3
_Doubt = Literal["outside", "nodes", "gpus"]


def judge_check(blank: Verdict, case: NodeCase, evidence: Evidence) -> Verdict:
    """The verdict on one check, from one that says ``not_measured``; its value is the share of nodes that pass."""
    name = case.requirement.check
    reads_telemetry, expected = NODE_CHECKS[name].reads == "telemetry", expected_by(evidence.plan, case.expected)

    def seen() -> NodeEvidence:
        # With telemetry: all but those of pairs of nodes.
        unended = {*evidence.errors, *evidence.interrupted} - {PAIRS, STUDY_ID}
        blocks = [arm for arm in evidence.columns.arms.values() if arm.study != PAIRS] if reads_telemetry else ()
        worked = {gpu for arm in blocks for gpu in arm.ranks.gpus}
        return NodeEvidence(
            expected, evidence.surveys, evidence.plan.nodes, evidence.telemetry,
            evidence.transports, worked, evidence.post_mortems, evidence.hosts, lost_places(evidence),
            gpu_errors_in(evidence), unended if reads_telemetry else (),
        )  # fmt: skip

    verdict = check(blank, name, evidence.once(("nodes", expected, reads_telemetry), seen))
    why_no_survey = evidence.errors.get(STUDY_ID) or evidence.interrupted.get(STUDY_ID)
    if verdict.outcome == "not_measured" and why_no_survey:
        return replace(verdict, reason=f"{verdict.reason}: {why_no_survey}")
    return verdict


def check(blank: Verdict, name: str, seen: NodeEvidence) -> Verdict:
    """Run one check over all nodes.

    Returns:
        ``passed`` if every planned node passes, ``failed`` if any has a fault, else ``not_measured``; also
        ``not_measured`` if the check needs a GPU and ranks train on CPUs.
    """
    if not _applies(name, seen):
        return replace(blank, reason=f"{NODE_CHECKS[name].title}: does not apply without a GPU")
    findings = _FIND[name](seen)
    planned, in_order = max(seen.hosts_planned, len({*findings, *seen.hosts})), sorted(findings.items())
    nodes = "1 node" if planned == 1 else f"{planned} nodes"
    untold = [f"{host}: {text}" for host, finding in in_order for text in finding.unknown]
    if planned > len(findings):
        untold.append(f"{planned - len(findings)} of {nodes} reported nothing")
    if seen.unended:
        untold.append(f"no load to the end of {first_few(sorted(seen.unended))}")
    faults = [(host, one) for host, finding in in_order for one in finding.faults]
    notes = [f"{host}: {text}" for host, finding in in_order for text in finding.notes]
    if not faults and (untold or not findings):
        # If only some nodes could be checked, the share is unknown.
        reason = f"missing data: {_listed(untold) or 'no node reported anything'}"
        return replace(blank, reason=reason, notes=tuple(notes))
    share = sum(not finding.faults and not finding.unknown for finding in findings.values()) / planned
    known = replace(blank, value=share, interval=(share, share), rounds=1)
    if not faults:
        reason = f"{'' if planned == 1 else 'all '}{nodes} as expected"
        return replace(known, outcome="passed", reason=reason, notes=tuple(notes))
    told = [f"{host}: {one.gpu.label}: {one.text}" if one.gpu else f"{host}: {one.text}" for host, one in faults]
    notes += [f"also missing data: {_listed(untold)}"] if untold else []
    notes += [f"{text} This names no node for certain" for text in _doubts(findings, planned).values()]
    return replace(
        known,
        outcome="failed",
        reason=f"{len(dict(faults))} of {nodes} not as expected: {_listed(told)}",
        notes=tuple(notes),
        culprits=_culprits(findings, planned),
        flags=(PARTLY_KNOWN,) if untold else (),
    )


def _applies(name: str, seen: NodeEvidence) -> bool:
    return NODE_CHECKS[name].on_cpu or seen.expectation.device_type != "cpu"


def _culprits(findings: Findings, planned: int) -> tuple[Culprit, ...]:
    doubts = _doubts(findings, planned)
    return tuple(
        _culprit(host, one, is_certain=one.is_certain and _doubt_on(one) not in doubts)
        for host, finding in sorted(findings.items())
        for one in finding.faults
    )


def _culprit(host: str, one: NodeFault, *, is_certain: bool) -> Culprit:
    if one.gpu is None:
        return Culprit("node", (Place(host),), one.text, is_certain=is_certain)
    return Culprit("gpu", (one.gpu,), one.text, is_certain=is_certain)


def _doubt_on(one: NodeFault) -> _Doubt | None:
    """Whose share decides whether a fault is certain; None if it stands alone."""
    if one.is_from_outside:
        return "outside"
    return None if one.stands_alone else "gpus" if one.gpu else "nodes"


def _doubts(findings: Findings, planned: int) -> dict[_Doubt, str]:
    """Doubts that arise if most nodes or most GPUs fail: the expectation, or something they share, may be at fault.

    A node where only some GPUs fail has the others to compare with. With one node there is nothing to compare with, so
    a mismatch is the node's fault.
    """
    at: dict[_Doubt | None, set[tuple[str, object]]] = {"outside": set(), "nodes": set(), "gpus": set()}
    for host, finding in findings.items():
        for one in finding.faults:
            at.setdefault(_doubt_on(one), set()).add((host, one.gpu and one.gpu.identity))
    braked, alike, wholly = (len({host for host, _ in at[doubt]}) for doubt in ("outside", "nodes", "gpus"))
    doubts: dict[_Doubt, str] = {}
    if 2 * braked > planned:
        doubts["outside"] = f"{braked} of {planned} nodes are throttled by a power brake: is it the facility?"
    if planned > 1 and 2 * alike > planned:
        doubts["nodes"] = f"{alike} of {planned} nodes fail: is the expectation right?"
    if 2 * wholly > planned and 2 * len(at["gpus"]) > sum(finding.gpus for finding in findings.values()):
        doubts["gpus"] = f"{len(at['gpus'])} GPUs of most nodes fail: is the expectation right?"
    return doubts


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return "; ".join(texts[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def unfit_nodes(
    cases: Iterable[AnyCase], plan: Plan, surveys: Mapping[str, Survey], day: date, *, hopeless: bool = False
) -> dict[str, str]:
    """Reasons, by host, to launch nothing on it: it certainly fails a check of severity ``fail``, or its survey failed.

    A node whose fault is uncertain stays if ranks can run there: most nodes fail too, or it is unclear which of several
    is wrong. A check that is waived on this day, in UTC, excludes no node.

    Args:
        hopeless: leave out all reasons but those for which no rank can run there.
    """
    checks = [case for case in cases if isinstance(case, NodeCase) and case.requirement.check]
    rejecting = [case.requirement for case in checks if case.requirement.severity == "fail"]
    names = [one.check for one in rejecting if one.waiver is None or not one.waiver.holds_on(day)]
    asked = [name for name in names if NODE_CHECKS[name].reads == "survey"]
    if not asked:
        return {}
    seen, reasons = NodeEvidence(expected_by(plan, checks[0].expected), surveys, plan.nodes), dict[str, list[str]]()
    for name in asked:
        findings = _FIND[name](seen) if _applies(name, seen) else {}
        faults = [one for _, finding in sorted(findings.items()) for one in finding.faults]
        for culprit, one in zip(_culprits(findings, max(plan.nodes, len(findings))), faults, strict=True):
            if _prevents(one, plan) or (culprit.is_certain and not hopeless):
                gpu = f"{culprit.place.number}: " if culprit.kind == "gpu" else ""
                reasons.setdefault(culprit.host, []).append(f"{name}: {gpu}{culprit.evidence}")
    for survey in surveys.values():
        if survey.problem and not hopeless:
            reasons.setdefault(survey.host, []).append(f"survey failed: {survey.problem}")
    return {host: "; ".join(dict.fromkeys(reasons[host])) for host in sorted(reasons)}


def _prevents(one: NodeFault, plan: Plan) -> bool:
    """Whether a fault prevents ranks of the plan, which may use only the first GPUs of a node."""
    if one.gpu is None or one.gpu.local_rank is None:
        return one.prevents_ranks
    return one.prevents_ranks and one.gpu.local_rank < plan.layout.ranks_per_node
