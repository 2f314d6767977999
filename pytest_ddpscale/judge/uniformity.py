"""The verdict on uniformity: no GPU, or no node, is slower than its peers by more than the limit of `peers:`.

The rule is that of `peers`. All GPUs of the run that trained the workload are places that should be alike; a node is
the median of its GPUs. One place beyond the limit fails the requirement and is named, as certain unless half of the
places or more are beyond: then it is unknown which of them are normal. All must be within to pass, and all of the plan
must be measured; otherwise it is open. A GPU that is far slower in some of the rounds fails it, too, and GPUs that fall
into two groups farther apart than the limit leave it open, though most are within: the median is then a slow one's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.own_pace import as_steps, nodes_s, own_pace_s
from pytest_ddpscale.judge.peers import Compared, compare, medians_of_others
from pytest_ddpscale.judge.stragglers import find_slow_at_times, find_slow_group, groups_text, node_culprit, slow_nodes
from pytest_ddpscale.plan.metric_catalogue import NODE_UNIFORMITY
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, Verdict
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.util.arrays import FloatArray, IntArray
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

_SLOW_SHARE = 0.9  # of the rounds, which reports call "all"


def judge_uniformity(blank: Verdict, case: Case, study: Study, evidence: Evidence, due: int) -> Verdict:
    """The verdict on the uniformity of GPUs or of nodes.

    Args:
        blank: the verdict ``not_measured``.
        case: a requirement of `reads_own_pace`.
        study: that trained its workload.
        evidence: of the run.
        due: number of rounds that were begun and timed the arm.
    """
    arm, layout = case.question.measured, evidence.plan.layout
    rounds = merged(evidence.columns, study.id, arm, layout)
    if not len(rounds):
        return replace(blank, reason=f"no complete round of {arm.name} in {study.id}")
    times_s = own_pace_s(rounds)
    unread = (np.isnan(times_s) & rounds.present).any(axis=0)
    is_of_nodes = case.requirement.definition is NODE_UNIFORMITY
    takes_turns = layout.takes_turns(arm) and arm.world_size < layout.ranks_per_node
    expected = arm.world_size
    if layout.fits_node(arm):
        expected = layout.nodes * (layout.ranks_per_node if takes_turns else arm.world_size)
    missing = ""
    if unread.any():
        missing = f"the forward passes of {_names(rounds, np.flatnonzero(unread))} were not timed in every round"
    elif len(rounds.ranks) < expected:
        missing = f"measured on {len(rounds.ranks)} of {expected} GPUs"
    if np.isnan(times_s).all():
        return replace(blank, reason=missing)
    limit = case.requirement.bound - 1
    compared = compare(nodes_s(times_s, rounds) if is_of_nodes else times_s, limit)
    places, noun = _places(rounds, is_of_nodes=is_of_nodes), "nodes" if is_of_nodes else "GPUs"
    verdict = verdict_on_places(blank, compared, places, noun, missing, limit)
    least = int(compared.rounds[compared.rounds > 0].min(initial=due)) * (layout.turns(arm) if takes_turns else 1)
    if verdict.outcome in ("passed", "failed") and least < due:
        reason = f"only {least} of {due} rounds are complete; the others could change the result"
        return replace(verdict, outcome="inconclusive", reason=reason)
    if verdict.outcome == "not_measured" or int(compared.rounds.max()) < FEWEST_ROUNDS:
        return verdict
    if is_of_nodes:
        named = _culprits(compared, rounds, times_s, is_of_nodes=True) if verdict.outcome == "failed" else ()
        return replace(verdict, culprits=tuple(named))
    steps = as_steps(rounds, times_s)
    return _with_other_rules(verdict, steps, limit, tuple(_culprits(compared, rounds, times_s, is_of_nodes=False)))


def _with_other_rules(verdict: Verdict, steps: ArmRounds, limit: float, beyond: Sequence[Culprit]) -> Verdict:
    """The verdict on GPUs, with those that are slow in some rounds only, and with two groups of GPUs.

    Args:
        verdict: by the comparison of all rounds.
        steps: rounds at the own pace of each.
        limit: by which a GPU may be slower.
        beyond: culprits that the comparison names.
    """
    at_times = [] if verdict.outcome == "failed" else find_slow_at_times(steps, limit)
    if at_times and not any(one.ambiguous for one in at_times):
        first, more = at_times[0], f" (and {len(at_times) - 1} more)" if len(at_times) > 1 else ""
        reason = f"rank {first.rank} on {first.host} is slow at times{more}: {first.culprit.evidence}"
        place = _names(steps, np.flatnonzero(steps.ranks.numbers == first.rank))
        return replace(
            verdict, outcome="failed", reason=reason, value=first.culprit.slowdown, interval=None, place=place,
            culprits=tuple(one.culprit for one in at_times),
        )  # fmt: skip
    group = find_slow_group(steps, limit)
    if not group:
        return replace(verdict, culprits=tuple(beyond) if verdict.outcome == "failed" else ())
    nodes = slow_nodes(group, steps)
    # The median of others lies in the larger group, or between both, of which either may be the normal one.
    whole = [node_culprit(ranks) for ranks in nodes.values()]
    named = [*whole, *(one.culprit for one in group if one.host not in nodes)]
    named = [replace(one, is_certain=False) for one in named]
    if verdict.outcome == "passed":
        if statistics.median(one.ratio for one in group) < 1 + limit:
            return verdict
        return replace(verdict, outcome="inconclusive", reason=groups_text(group, nodes), culprits=tuple(named))
    verdict = replace(verdict, reason=f"{verdict.reason}; {groups_text(group, nodes)}")
    if verdict.outcome == "inconclusive":
        return replace(verdict, culprits=tuple(named))
    places = {one.culprit.identity for one in group if one.ambiguous} | {one.identity for one in whole}
    is_half = 2 * len(group) >= len(steps.ranks)
    doubtful = [one for one in beyond if is_half and one.identity in places]
    return replace(
        verdict, culprits=tuple(replace(one, is_certain=False) if one in doubtful else one for one in beyond)
    )


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
    if np.isnan(compared.ratio).all() or int(compared.rounds.max()) < FEWEST_ROUNDS:
        reason = f"{int(compared.rounds.max())} rounds; expected at least {FEWEST_ROUNDS}"
        return replace(blank, outcome="inconclusive", rounds=int(compared.rounds.max()), reason=reason)
    is_enough = compared.rounds >= max(FEWEST_ROUNDS, due)
    beyond = compared.beyond & is_enough
    deciding = beyond if beyond.any() else ~np.isnan(compared.ratio)
    worst = int(np.argmax(np.where(deciding, compared.ratio, -np.inf)))
    peers, found = int(compared.peers[worst]), float(compared.ratio[worst])
    told = replace(
        blank, value=found, interval=(float(compared.low[worst]), float(compared.high[worst])),
        rounds=int(compared.rounds.min()), place=places[worst],
    )  # fmt: skip
    are, its = ("are", "their") if noun == "pairs" else ("is", "its")
    whom = f"{places[worst]} {are} {found:.3f}× the median of {its} {peers} peers"
    if beyond.any():
        others = [places[at] for at in np.flatnonzero(beyond).tolist() if at != worst]
        more = f" (so are {first_few(others)})" if others else ""
        left = missing or (compared.open & ~beyond).any()
        reason = f"{whom}{more}, certainly more than {percent(limit)} slower"
        return replace(told, outcome="failed", reason=reason, flags=(PARTLY_KNOWN,) if left else ())
    if missing:
        return replace(blank, reason=missing)
    if (compared.within & is_enough).all():
        return replace(
            told, outcome="passed", reason=f"each of {len(places)} {noun} is within {percent(limit)} of its peers"
        )
    undecided = [places[at] for at in np.flatnonzero(~(compared.within & is_enough)).tolist()]
    reason = f"not certain to be within {percent(limit)} of their peers: {first_few(undecided)}; {whom}"
    if int(compared.rounds.min()) < due:
        reason += f"; only {int(compared.rounds.min())} of {due} rounds are complete"
    return replace(told, outcome="inconclusive", reason=reason)


def _places(rounds: ArmRounds, *, is_of_nodes: bool) -> list[str]:
    if is_of_nodes:
        return list(rounds.ranks.by_host)
    return [f"{place.number} of {place.host}" for place in rounds.ranks.rank_places]


def _names(rounds: ArmRounds, columns: IntArray) -> str:
    places = _places(rounds, is_of_nodes=False)
    return first_few([places[at] for at in columns.tolist()])


def _culprits(
    compared: Compared, rounds: ArmRounds, times_s: FloatArray, *, is_of_nodes: bool
) -> Iterator[Culprit]:  # fmt: skip
    """The places beyond the limit, slowest first; a node of several GPUs that all are, in place of these."""
    is_certain = 2 * int(compared.beyond.sum()) < len(compared.beyond)
    slow = np.flatnonzero(compared.beyond)
    slow = slow[np.argsort(-compared.ratio[slow], kind="stable")]
    by_host = rounds.ranks.by_host
    if is_of_nodes:
        hosts = list(by_host)
        for at in slow.tolist():
            yield _node(hosts[at], float(compared.ratio[at]), int(compared.peers[at]), is_certain=is_certain)
        return
    wholly = {host for host, at in by_host.items() if len(at) > 1 and compared.beyond[at].all() and len(by_host) > 1}
    for host in sorted(wholly):
        ratio = float(np.median(compared.ratio[by_host[host]]))
        peers = int(compared.peers[by_host[host]].min())
        yield _node(host, ratio, peers, is_certain=is_certain, what=f"all {len(by_host[host])} ranks slow, ")
    relative = times_s / medians_of_others(times_s)
    for at in slow.tolist():
        place = rounds.ranks.who(at)[1]
        if place.host in wholly:
            continue
        ratio, of_rank = float(compared.ratio[at]), relative[:, at][~np.isnan(relative[:, at])]
        times = int((of_rank > 1 + (ratio - 1) / 2).sum())
        peers, of = int(compared.peers[at]), int(compared.rounds[at])
        when = f"{times} of {of} rounds" + ("" if times >= _SLOW_SHARE * of else f" ({percent(times / of)})")
        evidence = f"{ratio:.2f}× the median of {peers} peers in {when}"
        yield Culprit(
            "gpu", (place,), evidence, is_certain=is_certain, slowdown=ratio, peers=peers, slow_rounds=times, rounds=of
        )


def _node(host: str, ratio: float, peers: int, *, is_certain: bool, what: str = "") -> Culprit:
    evidence = f"{what}{ratio:.2f}× the median of {peers} peers by its own pace"
    return Culprit("node", (Place(host),), evidence, is_certain=is_certain, slowdown=ratio)
