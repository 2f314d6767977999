"""Who is to blame for what failed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from pytest_ddpscale.metrics.rounds import Rounds, arm_rounds
from pytest_ddpscale.metrics.stragglers import (
    MINIMUM_RELATIVE_GAP,
    MINIMUM_ROUNDS,
    Straggler,
    find_stragglers,
    slow_nodes,
)
from pytest_ddpscale.plan.metric import METRICS
from pytest_ddpscale.plan.study import DeviceType, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.verdict.evidence import Evidence
from pytest_ddpscale.verdict.verdict import Culprit, Verdict

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
        return _with_stragglers(verdict, case, peers_of(study, evidence), evidence.plan.device_type)
    return verdict


def with_slow_baseline(verdict: Verdict, case: Case, study: Study, evidence: Evidence) -> Verdict:
    """Relative to a slow GPU alone any number looks good: rank 0, which is the baseline, must not be the slow one."""
    if verdict.outcome != "passed" or METRICS[verdict.metric].baseline != "alone":
        return verdict
    peers = peers_of(study, evidence)
    first = [s for s in stragglers_of(peers.rounds, evidence.plan.device_type) if s.rank == 0]
    if not first or (first[0].ambiguous and peers.keeps_floor(first[0], case)):
        return verdict
    culprit = Culprit("gpu", first[0].host, first[0].local_rank, first[0].device, first[0].evidence)
    reason = f"rank 0, alone the baseline, is slow itself ({first[0].evidence}): relative to it everything looks good"
    return replace(verdict, outcome="inconclusive", reason=reason, culprits=(culprit,))


@dataclass(frozen=True)
class Peers:
    """Ranks that computed by themselves at the same time.

    Attributes:
        workload: what they trained; None if there are no such rounds.
        rounds: complete ones.
    """

    workload: Workload | None
    rounds: Rounds

    def img_per_s(self, straggler: Straggler) -> float:
        """Median throughput of a rank."""
        blocks = [one for r in self.rounds.values() for one in r.ranks if one.rank == straggler.rank]
        return statistics.median(one.throughput_img_per_s for one in blocks)

    def floor_img_per_s(self, case: Case) -> float | None:
        """What one of them alone should reach, if the case knows: it does so of its own workload only."""
        return case.floor_img_per_s if self.workload == case.workload else None

    def keeps_floor(self, straggler: Straggler, case: Case) -> bool:
        """Whether a rank is known to be as fast as it should be alone."""
        floor = self.floor_img_per_s(case)
        return floor is not None and self.img_per_s(straggler) >= floor


def peers_of(study: Study, evidence: Evidence) -> Peers:
    """Complete rounds in which every rank computed by itself: of this study, else of another one of the run.

    Of one with most ranks. A rank that computes slowly does so whatever it trains.
    """
    arms = [(candidate, arm) for candidate in evidence.plan.studies for arm in candidate.arms if arm.kind == "each"]
    if not arms:
        return Peers(None, {})
    best, largest = max(arms, key=lambda pair: (pair[0] == study, pair[1].world_size))
    return Peers(best.workload, arm_rounds(evidence.measurements, best.id, largest))


def stragglers_of(rounds: Rounds, device_type: DeviceType) -> list[Straggler]:
    """Ranks that are slow by themselves, slowest first."""
    return find_stragglers(rounds, minimum_relative_gap=_MINIMUM_GAPS[device_type])


def _with_stragglers(verdict: Verdict, case: Case, each: Peers, device_type: DeviceType) -> Verdict:
    found = [s for s in stragglers_of(each.rounds, device_type) if s.rank < verdict.world_size]
    if not found:
        return _with_note_on_computation(verdict, each.rounds)
    nodes = slow_nodes(found, each.rounds)
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
    seen = f"{who}{more}, slow without communication too ({culprits[0].evidence})"
    if verdict.metric == "rank_uniformity":
        reason = f"{verdict.reason}; slow: {who}{more}"
    elif verdict.world_size == 1:
        reason = f"{verdict.reason}; {seen}"
    else:
        slows = "slows all ranks" if verdict.outcome == "failed" and not found[0].ambiguous else "may slow all ranks"
        reason = f"{verdict.reason}; {seen}, {slows}"
    return replace(verdict, culprits=tuple(culprits), reason=reason)


def _evidence_on(straggler: Straggler, case: Case, each: Peers) -> str:
    """Of two ranks either may be the odd one, so what the SKU should do is the third opinion."""
    if not straggler.ambiguous:
        return straggler.evidence
    speed, floor = each.img_per_s(straggler), each.floor_img_per_s(case)
    if floor is None:
        return f"{straggler.evidence}; nothing says what one alone should reach, to compare with"
    side = "below" if speed < floor else "above"
    return f"{straggler.evidence}; its {speed:.4g} img/s are {side} the floor of {floor:.4g} img/s for one alone"


def _with_note_on_computation(verdict: Verdict, each: Rounds) -> Verdict:
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
