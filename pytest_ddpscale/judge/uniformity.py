"""The verdict on uniformity: no GPU, node, or place of a probe is slower than its peers by more than their limit.

The rule is that of `peers`. All GPUs of the run that trained the workload are places that should be alike, by their own
pace; a node is the median of its GPUs. Of probes, whose times are the inverse of bandwidths, memory copies are compared
among all GPUs of the run, which are of one model. Host links and pairs of GPUs inside a node differ by position,
because of the host's topology, so their peers are the same local rank, or pair of local ranks, on the other nodes.

One place beyond the limit fails the requirement and is named, as certain unless half of those that should be alike or
more are beyond: then it is unknown which of them are normal. All must be within to pass, and all of the plan must be
measured; otherwise it is open. A GPU that is far slower in some of the rounds fails it, too, and GPUs that fall into
two groups farther apart than the limit leave it open, though most are within: the median is then a slow one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.links import with_probe_culprits
from pytest_ddpscale.judge.peers import (
    FEWEST_PEERS_OF_FAR,
    Compared,
    compare,
    described,
    find_groups,
    find_slow,
    find_slow_at_times,
    medians_of_others,
    of_enough_rounds,
)
from pytest_ddpscale.judge.slow import OwnPace, arms_read, culprits_of, groups_text, pace_in
from pytest_ddpscale.judge.stats import FAILED, OPEN, PASSED
from pytest_ddpscale.judge.values import Values, why_incomplete
from pytest_ddpscale.plan.metric_catalogue import NODE_UNIFORMITY
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, JudgedPlace, Place
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, Verdict
from pytest_ddpscale.thresholds.cases import Case, NodeCase
from pytest_ddpscale.util.arrays import IntArray
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few


def judge_uniformity(blank: Verdict, case: Case, study: Study, evidence: Evidence, due: int) -> Verdict:
    """The verdict on the uniformity of GPUs or of nodes.

    Args:
        blank: the verdict ``not_measured``.
        case: a requirement of `reads_own_pace`.
        study: that trained its workload.
        evidence: of the run.
        due: number of rounds that were begun and timed the arm.
    """
    arm, layout = arms_read(case.question, study)[-1], evidence.plan.layout
    pace = pace_in(study, arm, evidence)
    if not len(pace.numbers):
        return replace(blank, reason=f"no complete round of {arm.name} in {study.id}")
    of_node = layout.ranks_per_node if layout.takes_turns(arm) else arm.world_size
    expected = layout.nodes * of_node if layout.fits_node(arm) else arm.world_size
    read = int((~pace.are_unread).sum())
    missing = "" if read == expected else f"own pace timed in every round on {read} of {expected} GPUs"
    if np.isnan(pace.times_s).all():
        return replace(blank, reason=missing)
    is_of_nodes, limit = case.requirement.definition is NODE_UNIFORMITY, case.requirement.bound - 1
    places = [f"{place.number} of {place.host}" for place in pace.ranks.rank_places]
    names, noun = (list(pace.ranks.by_host), "nodes") if is_of_nodes else (places, "GPUs")
    compared = compare(pace.of_nodes_s if is_of_nodes else pace.times_s, limit)
    if is_of_nodes:  # the median of a node whose GPU is missing is another one's
        rounds = (~np.isnan(pace.times_s)).sum(axis=0)
        least_of_nodes = np.array([rounds[at].min() for at in pace.ranks.by_host.values()])
        is_whole = least_of_nodes >= rounds.max() - layout.takes_turns(arm)
        compared = replace(compared, beyond=compared.beyond & is_whole, within=compared.within & is_whole)
    verdict = verdict_on_places(blank, compared, names, noun, missing, limit)
    least = int(compared.rounds[compared.rounds > 0].min(initial=due))
    if verdict.outcome in ("passed", "failed") and least < due:
        reason = f"only {least} of {due} rounds are complete; the others could change the result"
        return replace(verdict, outcome="inconclusive", reason=reason)
    if verdict.outcome == "not_measured" or int(compared.rounds.max()) < FEWEST_ROUNDS:
        return verdict
    if not is_of_nodes:
        return _with_slow_ranks(verdict, pace, compared, limit, places)
    beyond = np.flatnonzero(compared.beyond) if verdict.outcome == "failed" else np.zeros(0, np.int64)
    named = []
    for at in beyond[np.argsort(-compared.ratio[beyond], kind="stable")].tolist():
        ratio = float(compared.ratio[at])
        evidence_of = f"{ratio:.2f}× the median of {compared.peers[at]} peers by its own pace"
        is_certain = 2 * len(beyond) < len(names)
        named.append(Culprit("node", (Place(names[at]),), evidence_of, is_certain, slowdown=ratio))
    return replace(verdict, culprits=tuple(named))


def _with_slow_ranks(
    verdict: Verdict, pace: OwnPace, compared: Compared, limit: float, places: Sequence[str]
) -> Verdict:
    """The verdict with the GPUs beyond the limit, with those that are slow at times, and with two groups of GPUs."""
    found, at_times = find_slow(pace.times_s, limit), find_slow_at_times(pace.times_s, limit)
    _, group, apart = find_groups(of_enough_rounds(pace.times_s), limit)
    reasons, rows = [verdict.reason], np.flatnonzero(at_times[found.at])
    if len(group) and (verdict.outcome != "passed" or apart >= np.log1p(limit)):
        reasons = [*reasons[: verdict.outcome != "passed"], groups_text(pace.ranks, found)]
    if verdict.outcome == "failed":
        beyond, logs = compared.beyond, np.log(pace.times_s / medians_of_others(pace.times_s))
        are_certain = np.full(len(beyond), 2 * max(beyond.sum(), len(group)) < len(beyond))
        found = described(logs, np.flatnonzero(beyond), are_certain, compared.peers, np.log1p(limit))
        found, rows = found._replace(slowdown=found.ratio), np.arange(beyond.sum())
    elif len(rows) and (compared.peers[at_times] >= FEWEST_PEERS_OF_FAR).all():
        value, place = float(found.slowdown[rows[0]]), places[found.at[rows[0]]]
        verdict = replace(verdict, outcome="failed", value=value, interval=None, place=place)
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        reasons = [f"{place} is slow at times{more}: {culprits_of(pace.ranks, found, rows)[0].evidence}"]
    elif reasons == [verdict.reason]:
        return verdict
    else:  # the median of others lies in the larger group, or between both, of which either may be the normal one
        found, rows = found._replace(are_certain=np.zeros_like(found.are_certain)), np.arange(len(found.at))
        verdict = replace(verdict, outcome="inconclusive")
    return replace(verdict, reason="; ".join(reasons), culprits=tuple(culprits_of(pace.ranks, found, rows)))


def verdict_on_places(
    blank: Verdict, compared: Compared, places: Sequence[str], noun: str, missing: str, limit: float, due: int = 0
) -> Verdict:
    """The verdict of the comparison, without culprits; value and interval are those of the worst place.

    Args:
        blank: the verdict ``not_measured``.
        compared: the places.
        places: their names, (places,).
        noun: what they are, in the plural.
        missing: why not all of the plan was measured; empty if it was.
        limit: by which a place may be slower, 0.05 for 5 %.
        due: number of rounds without which a place is undecided.
    """
    ratio, rounds, least = compared.ratio, int(compared.rounds.max()), int(compared.rounds.min())
    if np.isnan(ratio).all() or rounds < FEWEST_ROUNDS:
        reason = f"{rounds} rounds; expected at least {FEWEST_ROUNDS}"
        return replace(blank, outcome="inconclusive", rounds=rounds, reason=reason)
    is_enough = compared.rounds >= max(FEWEST_ROUNDS, due)
    beyond, within = compared.beyond & is_enough, compared.within & is_enough
    deciding = beyond if beyond.any() else ~np.isnan(ratio)
    worst = int(np.argmax(np.where(deciding, ratio, -np.inf)))
    told = replace(
        blank, value=float(ratio[worst]), interval=(float(compared.low[worst]), float(compared.high[worst])),
        rounds=least, place=places[worst],
    )  # fmt: skip
    are, its = ("are", "their") if noun == "pairs" else ("is", "its")
    whom = f"{places[worst]} {are} {ratio[worst]:.3f}× the median of {its} {compared.peers[worst]} peers"
    if beyond.any():
        others = [places[at] for at in np.flatnonzero(beyond).tolist() if at != worst]
        more = f" (so are {first_few(others)})" if others else ""
        is_partly_known = missing or (~compared.beyond & ~compared.within).any()
        reason = f"{whom}{more}, certainly more than {percent(limit)} slower"
        return replace(told, outcome="failed", reason=reason, flags=(PARTLY_KNOWN,) if is_partly_known else ())
    if missing:
        return replace(blank, reason=missing)
    if within.all():
        reason = f"each of {len(places)} {noun} is within {percent(limit)} of its peers"
        return replace(told, outcome="passed", reason=reason)
    undecided = first_few([places[at] for at in np.flatnonzero(~within).tolist()])
    reason = f"not certain to be within {percent(limit)} of their peers: {undecided}; {whom}"
    few = f"; only {least} of {due} rounds are complete" if least < due else ""
    return replace(told, outcome="inconclusive", reason=f"{reason}{few}")


def judge_probe_uniformity(
    blank: Verdict, case: NodeCase, values: Values[JudgedPlace], evidence: Evidence, due: int
) -> Verdict:
    """The verdict on the places of a probe.

    Culprits are found as for a bound (`links`).

    Args:
        blank: the verdict ``not_measured``.
        case: a requirement of `compares_places`.
        values: of its probe, in the unit of the probe's own metric; larger is faster.
        evidence: of the run.
        due: number of rounds that were begun and timed the probe.
    """
    assert case.probe is not None
    missing, there = why_incomplete(case.probe, values, evidence), np.flatnonzero(values.rounds() > 0)
    if not len(there):
        return replace(blank, reason=missing)
    places, bandwidths = [values.places[at] for at in there.tolist()], values.samples[there]
    positions, limit = _positions(case, places), case.requirement.bound - 1
    compared = compare(
        np.divide(1, bandwidths, where=bandwidths > 0, out=np.full(bandwidths.shape, np.nan)).T, limit, positions
    )
    names = [place.name for place in places]
    verdict = verdict_on_places(blank, compared, names, places[0].noun, missing, limit, due)
    if verdict.outcome != "failed":
        return verdict
    is_enough = compared.rounds >= due
    codes = np.select([compared.beyond & is_enough, compared.within & is_enough], [FAILED, PASSED], OPEN)
    verdict = with_probe_culprits(verdict, case.probe, places, codes, np.nanmedian(bandwidths, axis=1), evidence)
    if (2 * np.bincount(positions, compared.beyond) < np.bincount(positions)).all():
        return verdict
    return replace(verdict, culprits=tuple(replace(one, is_certain=False) for one in verdict.culprits))


def _positions(case: NodeCase, places: Sequence[JudgedPlace]) -> IntArray:
    """The same number for places that should be alike, (places,)."""
    assert case.probe is not None
    if KINDS[case.probe.operation.kind].peers == "memory":
        return np.zeros(len(places), np.int64)
    ends = np.array([[end.of_rank[1] for end in one.ends] or [0] for one in places], np.int64)
    return np.unique(ends, axis=0, return_inverse=True)[1].reshape(-1)
