"""Which kind of cause (`report/cause_kinds.py`) a verdict or one of its culprits shows, from typed facts alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from pytest_ddpscale.plan.metric_catalogue import (
    BUSBW_GBPS,
    HOST_BANDWIDTH_GBPS,
    MATMUL_TFLOPS,
    METRICS,
    NODE_UNIFORMITY,
    PAIR_BANDWIDTH_GBPS,
)
from pytest_ddpscale.plan.operation import KINDS, operation_of
from pytest_ddpscale.report.cause_kinds import CAUSES, OF_CHECK
from pytest_ddpscale.run.verdicts import (
    BY_VARIABLE,
    WRONG_DATA,
    Category,
    CauseId,
    Culprit,
    Judgement,
    Verdict,
    VerdictOutcome,
)

_LINK_OF_PROBE: Mapping[str, CauseId] = {
    HOST_BANDWIDTH_GBPS.name: "slow-host-link",
    BUSBW_GBPS.name: "slow-communication",
    PAIR_BANDWIDTH_GBPS.name: "slow-gpu-link",
}  # all other probes use no link
_OF_SUBJECT: Mapping[str, CauseId] = {"computing": "slow-computing", "scaling": "slow-scaling"}
_UNMEASURED: Mapping[VerdictOutcome, CauseId] = {"error": "error-in-run", "not_measured": "not-measured"}


def id_of_device(culprit: Culprit, verdict: Verdict, *, is_any_slow: bool) -> CauseId:
    """What a finding on a device is; a slow one (`is_any_slow`) is not accused of its link for what slowness costs."""
    metric = METRICS[verdict.metric]
    if culprit.computed_wrong:
        return "wrong-data"
    if metric.subject == "check":
        return _id_of_check(verdict, [culprit])
    if verdict.outcome == "error":  # a GPU whose own error ended its ranks
        return "gpu-error"
    if culprit.because.code == "starved":
        return "host-bound"
    if culprit.kind == "link":
        return _id_of_link(culprit)
    if link := _link_of(verdict):
        return "slow-communication" if link == "slow-gpu-link" else link  # it is slow with all its partners
    if metric.subject == "node":
        return "regression"
    if culprit.slowdown is not None or metric.subject == "probe":
        return "slow-node" if culprit.kind == "node" else "slow-gpu"
    communicates = metric.slowed_by_one_rank and metric.communicates and not is_any_slow
    return "slow-communication" if communicates else "requirement-not-met"


def id_of_verdict(verdict: Verdict, *, is_unfinished: bool) -> CauseId:
    """What a verdict is that no device is certain to be the cause of; `is_unfinished` if its run was."""
    metric = METRICS[verdict.metric]
    if WRONG_DATA in verdict.flags:
        return "wrong-data"
    if "interrupted" in verdict.flags:
        return "interrupted"
    if BY_VARIABLE in verdict.flags:
        return "environment"
    if verdict.outcome == "inconclusive":
        if "host-bound" in verdict.flags:
            return "host-bound"
        if "implausible" in verdict.flags:
            return "implausible-value"
        return "interrupted" if is_unfinished else "undecided"
    if verdict.outcome == "not_measured" and verdict.was_left_for_time and not is_unfinished:
        return "undecided"
    if verdict.outcome != "failed":
        if verdict.outcome == "error" and verdict.culprits:
            return "gpu-error" if verdict.culprits[0].kind == "gpu" else "slow-node-link"
        return "interrupted" if is_unfinished and verdict.outcome == "not_measured" else _UNMEASURED[verdict.outcome]
    if metric.subject == "check":
        return _id_of_check(verdict, verdict.culprits)
    if metric.subject == "node":
        return "regression"
    if link := _link_of(verdict):
        links = {_id_of_link(one) for one in verdict.culprits if one.kind == "link"}
        named = link if verdict.culprits else "slow-communication"  # within a node or between some
        return links.pop() if link == "slow-gpu-link" and len(links) == 1 else named
    if metric.reads_own_pace or metric.compares_places:
        return "slow-node" if metric is NODE_UNIFORMITY else "slow-gpu"
    is_starved = any(one.because.code == "starved" for one in verdict.culprits)
    return "host-bound" if is_starved else _OF_SUBJECT.get(subject_of(verdict), "requirement-not-met")


def subject_of(verdict: Verdict) -> str:
    """Subject under which failures are reported once although several metrics show them."""
    metric = METRICS[verdict.metric]
    if WRONG_DATA in verdict.flags or not (metric.slowed_by_one_rank or metric is MATMUL_TFLOPS):
        return metric.name
    if metric.reads_own_pace:
        return metric.name
    return "computing" if metric.baseline is None else "scaling"


def drained(judgement: Judgement) -> set[tuple[object, ...]]:
    """Identities of the GPUs and nodes that `ddpscale culprits` drains a node for."""
    if judgement.outcome != "rejected" or judgement.unfinished:
        return set()
    failed = (verdict for verdict in judgement.verdicts if verdict.outcome == "failed" and verdict.blocks())
    named = (culprit for verdict in failed for culprit in verdict.culprits)
    return {one.identity for one in named if one.is_certain and one.kind != "link"}


def category_of(cause: CauseId, culprits: Sequence[Culprit], at_fault: Collection[tuple[object, ...]]) -> Category:
    """``ISOLATE`` only if a culprit is certain and one of those `drained`; a suspect is never drained."""
    is_drained = any(one.is_certain and one.identity in at_fault for one in culprits)
    return "ISOLATE" if is_drained and CAUSES[cause].category == "ISOLATE" else "CHECK"


def _id_of_check(verdict: Verdict, culprits: Sequence[Culprit]) -> CauseId:
    if verdict.workload == "gpus" and culprits and all(one.kind == "node" for one in culprits):
        return "missing-gpus"  # no single GPU is to be reset
    return OF_CHECK.get(verdict.workload, "requirement-not-met")


def _id_of_link(culprit: Culprit) -> CauseId:
    return "slow-gpu-link" if len(culprit.hosts) == 1 else "slow-node-link"


def _link_of(verdict: Verdict) -> CauseId | Literal[""]:
    """The link that a probe uses; empty for other requirements and for probes within a GPU."""
    if METRICS[verdict.metric].subject != "probe":
        return ""
    used = operation_of(verdict.workload)
    return _LINK_OF_PROBE.get(KINDS[used.kind].metric, "") if used else ""
