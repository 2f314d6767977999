"""Reasons to withhold a verdict that the numbers alone would give."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.answering_rounds import rows_by_node
from pytest_ddpscale.judge.culprits import RankComparison
from pytest_ddpscale.judge.rounds import ArmRounds
from pytest_ddpscale.judge.samples import ArmSamples
from pytest_ddpscale.judge.stragglers import node_culprit
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import Case

# Below this, a GPU under strong scaling waits for its host: published ResNet-152 rows show 58-74 %
# there, while every row that scales shows 95 % and more (willgpaik/pytorch-ddp-scaling-benchmark).
HOST_BOUND_UTILIZATION = 0.90
# Skipped steps are cheaper, and training that skips many does not converge.
MOST_SKIPPED_STEPS = 0.05


def with_spent_budget(verdict: Verdict, study_id: str, out_of_time: Collection[str]) -> Verdict:
    """Note that an open verdict is open because --ddp-budget ran out, not because of the machine."""
    if study_id not in out_of_time or verdict.outcome not in ("inconclusive", "not_measured"):
        return verdict
    note = "--ddp-budget ran out before this was decided"
    return replace(verdict, notes=(*verdict.notes, note))


def with_missing_rounds(verdict: Verdict, begun: int) -> Verdict:
    """Make a verdict inconclusive if rounds are incomplete: those may be the ones that would have failed."""
    if verdict.outcome not in ("passed", "failed") or verdict.rounds >= begun:
        return verdict
    reason = f"only {verdict.rounds} of {begun} rounds are complete; the others could change the result"
    return replace(verdict, outcome="inconclusive", reason=reason)


def with_plausibility(verdict: Verdict, plan: Plan) -> Verdict:
    """Make a verdict inconclusive if its value is not credible, such as a utilization or efficiency far above 1."""
    if verdict.value is None:
        return verdict
    least, most = credible_values(verdict.metric, verdict.world_size, plan)
    if least <= verdict.value <= most:
        return verdict
    side = f"more than {most:g}" if verdict.value > most else f"less than {least:g}"
    reason = f"implausible: {verdict.value:.3g} is {side}; the measurement or its baseline was disturbed"
    return replace(verdict, outcome="inconclusive", reason=reason)


def credible_values(metric: str, world_size: int, plan: Plan) -> tuple[float, float]:
    """Smallest and largest credible value of a metric on this kind of device."""
    return METRICS[metric].credible_at(world_size) if plan.device_type == "cuda" else (-math.inf, math.inf)


def suspect_nodes(case: Case, study: Study, evidence: Evidence) -> set[str]:
    """Nodes that `with_skipped_steps` or `with_host_bound` may affect, or that were imported."""
    found = set[str]()
    for hosts, arms in rows_by_node(case.question, study, evidence):
        rows = arms.measured
        is_suspect = (rows.measured.reading("skipped_steps") > 0).any(axis=1) | rows.measured.single_sample
        if _may_wait_for_host(case, evidence.plan):
            is_suspect |= ~(rows.utilization >= HOST_BOUND_UTILIZATION)
        found |= {hosts[node] for node in np.unique(rows.measured.node[is_suspect]).tolist()}
    return found


def _may_wait_for_host(case: Case, plan: Plan) -> bool:
    return case.requirement.definition.scaling == "strong" and plan.device_type == "cuda"


def with_skipped_steps(verdict: Verdict, measured: ArmRounds) -> Verdict:
    """Note steps that fp16 loss scaling skipped, which are cheaper; many of them make a pass inconclusive."""
    skipped = int(np.nansum(measured.measured.reading("skipped_steps")))
    if not skipped:
        return verdict
    steps = int(measured.measured.count.sum())
    note = f"loss scaling skipped {skipped} of {steps} optimizer steps"
    verdict = replace(verdict, notes=(*verdict.notes, note))
    if verdict.outcome != "passed" or skipped <= MOST_SKIPPED_STEPS * steps:
        return verdict
    return replace(
        verdict, outcome="inconclusive", reason=f"{note}: the rest is not the training that was to be measured"
    )


def with_host_bound(verdict: Verdict, case: Case, plan: Plan, measured: ArmRounds) -> Verdict:
    """Make strong scaling inconclusive if GPUs wait for their host: it then says nothing about GPUs or links."""
    if not _may_wait_for_host(case, plan):
        return verdict
    busy = [sample.value for sample in ArmSamples(measured).utilization]
    if not busy or statistics.fmean(busy) >= HOST_BOUND_UTILIZATION:
        return verdict
    reason = (
        f"host-bound: GPUs were {statistics.fmean(busy):.0%} busy (below {HOST_BOUND_UTILIZATION:.0%}); a global batch "
        f"of {case.workload.global_batch_size} is too small for {case.world_size} GPUs, so this result means nothing"
    )
    return replace(
        verdict, outcome="inconclusive", reason=reason, notes=(*verdict.notes, "host-bound"), flags=("host-bound",)
    )


def with_slow_node(verdict: Verdict, host: str, compared: RankComparison) -> Verdict:
    """Make a pass inconclusive if most ranks of the node are slow: it scales well only relative to slow ranks.

    Args:
        verdict: of one node of several.
        host: its name.
        compared: the slow ranks.
    """
    if verdict.outcome != "passed" or METRICS[verdict.metric].baseline != "alone":
        return verdict
    slow = [straggler for straggler in compared.stragglers if straggler.host == host]
    if 2 * len(slow) <= compared.evidence.plan.layout.ranks_per_node:
        return verdict
    nodes = [node_culprit(ranks) for ranks in compared.slow_nodes_of(slow).values()]
    named = nodes or [straggler.culprit for straggler in slow]
    culprits = tuple(replace(culprit, is_certain=not slow[0].ambiguous) for culprit in named)
    found = f"{len(slow)} of its ranks are slow without communication ({slow[0].culprit.evidence})"
    reason = f"{found}; good scaling relative to slow ranks is no pass"
    return replace(verdict, outcome="inconclusive", reason=reason, culprits=culprits)
