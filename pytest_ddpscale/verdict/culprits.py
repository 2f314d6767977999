"""Who is to blame for what failed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

from pytest_ddpscale.metrics.rounds import ArmRound, arm_rounds
from pytest_ddpscale.metrics.stragglers import (
    MINIMUM_RELATIVE_GAP,
    MINIMUM_ROUNDS,
    Straggler,
    find_stragglers,
    slow_nodes,
)
from pytest_ddpscale.plan.metric import METRICS
from pytest_ddpscale.plan.study import DeviceType, Study
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.verdict.evidence import Evidence
from pytest_ddpscale.verdict.verdict import Culprit, Verdict

Rounds = Mapping[int, ArmRound]
# Ranks on one CPU share its caches, its power and its neighbours; GPUs share little.
_MINIMUM_GAPS: dict[DeviceType, float] = {"cuda": MINIMUM_RELATIVE_GAP, "cpu": 0.10}
# What one slow rank makes worse for all, because under DDP they wait for it.
_SLOWED_BY_ONE_RANK = {
    "throughput_per_gpu",
    "weak_scaling_efficiency",
    "strong_scaling_speedup",
    "strong_scaling_efficiency",
    "rank_uniformity",
    "exposed_communication",
    "step_time_p95",
    "generation_ratio",
    "model_flops_utilization",
}


def with_culprits(verdict: Verdict, case: Case, study: Study, measured: Rounds, evidence: Evidence) -> Verdict:
    """The verdict with everybody named who stands out in the measurements, if it did not pass.

    Args:
        verdict: on `case`.
        study: that was measured for it.
        measured: complete rounds of the arm in question.
        evidence: everything measured.
    """
    if verdict.outcome not in ("failed", "inconclusive") or verdict.culprits:
        return verdict
    if verdict.metric == "device_utilization":
        return _with_least_busy(verdict, measured) if verdict.outcome == "failed" else verdict
    if verdict.metric in _SLOWED_BY_ONE_RANK:
        return _with_stragglers(verdict, case, each_rounds(study, evidence), evidence.plan.device_type)
    return verdict


def with_slow_baseline(verdict: Verdict, study: Study, evidence: Evidence) -> Verdict:
    """Relative to a slow GPU alone any number looks good: rank 0, which is the baseline, must not be the slow one."""
    if verdict.outcome != "passed" or METRICS[verdict.metric].baseline != "alone":
        return verdict
    slow = [s for s in stragglers_of(each_rounds(study, evidence), evidence.plan.device_type) if not s.ambiguous]
    first = [s for s in slow if s.rank == 0]
    if not first:
        return verdict
    culprit = Culprit("gpu", first[0].host, first[0].local_rank, first[0].device, first[0].evidence)
    reason = f"rank 0, alone the baseline, is slow itself ({first[0].evidence}): relative to it everything looks good"
    return replace(verdict, outcome="inconclusive", reason=reason, culprits=(culprit,))


def each_rounds(study: Study, evidence: Evidence) -> Rounds:
    """Complete rounds in which every rank computed by itself: of this study, else of another one of the run.

    Of one with most ranks. A rank that computes slowly does so whatever it trains.
    """
    arms = [(candidate, arm) for candidate in evidence.plan.studies for arm in candidate.arms if arm.kind == "each"]
    if not arms:
        return {}
    best, largest = max(arms, key=lambda pair: (pair[0] == study, pair[1].world_size))
    return arm_rounds(evidence.measurements, best.id, largest)


def stragglers_of(rounds: Rounds, device_type: DeviceType) -> list[Straggler]:
    """Ranks that are slow by themselves, slowest first."""
    return find_stragglers(rounds, minimum_relative_gap=_MINIMUM_GAPS[device_type])


def _with_stragglers(verdict: Verdict, case: Case, each: Rounds, device_type: DeviceType) -> Verdict:
    found = [s for s in stragglers_of(each, device_type) if s.rank < verdict.world_size]
    if not found:
        return _with_note_on_computation(verdict, case, each)
    nodes = slow_nodes(found, each)
    whole = {node.host for node in nodes}
    culprits = [Culprit("node", node.host, None, None, node.evidence) for node in nodes]
    culprits += [
        Culprit("gpu", s.host, s.local_rank, s.device, _evidence_on(s, case, each))
        for s in found
        if s.host not in whole
    ]
    who = f"rank {found[0].rank} on {found[0].host}" if not nodes else f"host {nodes[0].host}"
    others = len(culprits) - 1
    more = f" and {others} more" if others else ""
    slows = "slows all ranks" if verdict.outcome == "failed" else "may slow all ranks"
    reason = f"{verdict.reason}; {who}{more}, slow without communication too ({culprits[0].evidence}), {slows}"
    if verdict.metric == "rank_uniformity":
        reason = f"{verdict.reason}: {who}{more} is slow"
    return replace(verdict, culprits=tuple(culprits), reason=reason)


def _evidence_on(straggler: Straggler, case: Case, each: Rounds) -> str:
    """Of two ranks either may be the odd one, so what the SKU should do is the third opinion."""
    if not straggler.ambiguous:
        return straggler.evidence
    speed = statistics.median(
        rank.throughput_img_per_s for r in each.values() for rank in r.ranks if rank.rank == straggler.rank
    )
    floor = case.floor_img_per_s
    if floor is None:
        return f"{straggler.evidence}; nothing says what one alone should reach, to compare with"
    side = "below" if speed < floor else "above"
    return f"{straggler.evidence}; its {speed:.4g} img/s are {side} the floor of {floor:.4g} img/s for one alone"


def _with_note_on_computation(verdict: Verdict, case: Case, each: Rounds) -> Verdict:
    """Nobody is slow by itself: then either all are, or it is communication that costs."""
    if len(each) < MINIMUM_ROUNDS:
        return verdict
    if verdict.metric == "rank_uniformity":
        return replace(verdict, reason=f"{verdict.reason}; no rank is the slow one in enough rounds to be named")
    if verdict.metric != "weak_scaling_efficiency":
        return verdict
    note = "no rank is slow without communication: what is lost is lost in communication, or by all ranks alike"
    return replace(verdict, notes=(*verdict.notes, note))


def _with_least_busy(verdict: Verdict, measured: Rounds) -> Verdict:
    idle = [r.least_busy for r in measured.values() if r.least_busy is not None]
    ranks = [rank.rank for rank in idle]
    most_often = statistics.mode(ranks)
    rank = next(rank for rank in idle if rank.rank == most_often)
    evidence = f"least busy of {verdict.world_size} in {ranks.count(most_often)} of {len(ranks)} rounds"
    culprit = Culprit("gpu", rank.host, rank.local_rank, rank.device, evidence)
    return replace(verdict, culprits=(culprit,))
