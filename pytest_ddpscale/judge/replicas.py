"""Ranks with wrong results: they invalidate every passed verdict of their study."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.agreement import Disagreement, disagreeing_ranks, ranks_unlike_most, rows_that_differ
from pytest_ddpscale.judge.rounds import ArmRounds, group_rounds, node_rounds, rows_of_nodes
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS, REPLICA_AGREEMENT
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import WRONG_DATA, Culprit, Verdict


def with_agreement(verdict: Verdict, study: Study, evidence: Evidence) -> Verdict:
    """The verdict, which cannot pass if results of ranks differ: then speed is worth nothing.

    One disagreement is enough, because it is not random: DDP keeps replicas equal bit for bit. Verdicts that failed
    anyway are flagged, because speed is not their only problem.
    """
    odd: list[Disagreement] = evidence.once(("disagreements", study.id), lambda: disagreements(study, evidence))
    if not odd:
        return verdict
    culprits = tuple(
        Culprit("gpu", o.host, o.local_rank, o.device, o.evidence, is_certain=not o.ambiguous, computed_wrong=True)
        for o in odd
    )
    names = ", ".join(f"rank {o.rank} on {o.host}" for o in odd[:3]) + (" and others" if len(odd) > 3 else "")
    if METRICS[verdict.metric].compares_results:
        reason, flags = f"{names}: results differ from those of other ranks", (*verdict.flags, WRONG_DATA)
        return replace(verdict, outcome="failed", reason=reason, culprits=culprits, flags=flags)
    if verdict.outcome == "failed":
        return replace(verdict, flags=(*verdict.flags, WRONG_DATA))
    if verdict.outcome != "passed":
        return verdict
    reason = f"{names}: results differ from those of other ranks (see {REPLICA_AGREEMENT.name}); speed does not count"
    return replace(verdict, outcome="error", reason=reason, culprits=culprits)


def disagreements(study: Study, evidence: Evidence) -> list[Disagreement]:
    """Every rank of a study whose parameters or own seeded step differ from its peers', in rank order.

    Larger groups decide first: of two ranks that differ, a larger group may tell which is wrong.
    """
    seeded = evidence.seeded_checksums(study.id)
    by_themselves = _by_themselves(study, evidence)
    # With several nodes, all ranks together are the largest group.
    found = {odd.rank: odd for odd in by_themselves} if evidence.plan.nodes > 1 else {}
    together = [arm for arm in study.arms if arm.kind == "ddp" and arm.world_size > 1]
    for arm in sorted(together, key=lambda arm: -arm.world_size):
        for rounds in _groups_that_differ(study, arm, evidence):
            odd = disagreeing_ranks(rounds, seeded)
            told_apart = any(o.rank in found and not found[o.rank].ambiguous for o in odd)
            for disagreement in odd:
                if not (disagreement.ambiguous and told_apart):
                    found.setdefault(disagreement.rank, disagreement)
    for disagreement in by_themselves:
        found.setdefault(disagreement.rank, disagreement)
    return [found[rank] for rank in sorted(found)]


def _groups_that_differ(study: Study, arm: Arm, evidence: Evidence) -> Iterable[ArmRounds]:
    """Groups of ranks that trained together, as far as their results may differ."""
    columns, layout = evidence.columns, evidence.plan.layout
    if layout.nodes == 1 or not layout.fits_node(arm):
        return group_rounds(columns, study.id, arm, layout)
    seeded, hosts = evidence.seeded_checksums(study.id), set[str]()
    for rows in rows_of_nodes(columns, study.id, [arm]):
        nodes = rows.arms[0].measured.node[rows_that_differ(rows.arms[0], seeded)]
        hosts.update(rows.hosts[node] for node in np.unique(nodes).tolist())
    return [node_rounds(columns, study.id, arm, host) for host in sorted(hosts)]


def _by_themselves(study: Study, evidence: Evidence) -> list[Disagreement]:
    """Ranks whose seeded step differs from most of the study, whether or not they trained under DDP."""
    seeded = evidence.seeded_checksums(study.id)
    odd = ranks_unlike_most(seeded)
    return [
        Disagreement(
            step.rank, step.host, step.local_rank, step.device, len(seeded), 0, 0,
            seeded_step_differs=True, ambiguous=False,
        )
        for step in evidence.seeded_steps.get(study.id, ())
        if step.rank in odd
    ]  # fmt: skip
