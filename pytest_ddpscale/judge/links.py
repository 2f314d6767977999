"""Who is at fault if GPUs, groups or pairs of them are slow or wrong in probes: a GPU, a node, or a link.

Two ends that communicate slowly accuse their link, unless one of them explains it, by the only rule for that: an end
that meets the bound with no partner, and misses it with most of its partners, two at least. If all other failed pairs
share a GPU that meets the bound with somebody, it is named, but not for certain. If groups are slow with each other,
such as the two halves of a node, no end explains it and links are named.

All places do the same work at the same time. With several nodes one on which all places fail is named as a whole. A GPU
within the limit of its peers is not certain: all may be slow, and it the worst of their spread.

Between nodes the search among pairs of them says who is slow, by `plan.pairing.Standings`, which also chose the pairs.
A pair counts with the fastest message of its slowest rail (equal local ranks of both nodes); if only one rail is slow,
that is named. A node whose messages stall is named, but never for certain, because a host that is busy with something
else delays messages too. A failed pair in which the search finds nobody accuses its link, but not for certain; if most
fail alike nobody is accused.

Wrong results fail whatever the speed, because they are not random.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from pytest_ddpscale.judge.answer import Answer, name_unless_most_fail
from pytest_ddpscale.judge.peers import FEWEST_PEERS, medians_of_others
from pytest_ddpscale.judge.stats import FAILED, PASSED
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PAIRS, SLOW_SHARES, PairResult, Standings, are_stalled
from pytest_ddpscale.run.block import STEP_S
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, JudgedPlace, Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.table import NO_ROUNDS, ArmRounds, memoized
from pytest_ddpscale.run.verdicts import WRONG_DATA
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, IntArray, ObjectArray

Hosts: TypeAlias = tuple[str, ...]


class GpuPairs(NamedTuple):
    """Two ranks of different nodes in a round, (rails,), and all of two nodes together, (pairs,).

    Attributes:
        places: of all ranks, (ranks,).
        hosts: names of the nodes, in order.
        ends: of a rail, index in `places`, in the order of hosts' names, (rails, 2).
        gbps: of the fastest message of the slower end.
        of: index of the pair.
        pairs: both nodes, index in `hosts`, and the number of the round, (pairs, 3).
        least_gbps: of the slowest rail of a pair.
        stalled: whether any message of a pair stalled.
    """

    places: ObjectArray
    hosts: ObjectArray
    ends: IntArray
    gbps: FloatArray
    of: IntArray
    pairs: IntArray
    least_gbps: FloatArray
    stalled: BoolArray


@memoized
def gpu_pairs_of(evidence: Evidence) -> GpuPairs:
    """The measured rails between nodes, round by round."""
    measured = next(evidence.columns.of_study(PAIRS), NO_ROUNDS)
    steps_s, who = measured.reading(STEP_S), measured.ranks
    hosts, node = np.unique(who.hosts, return_inverse=True)
    row, rank = np.nonzero(measured.present)
    group = measured.groups[row, rank]
    order = np.lexsort((node[rank], group, row))
    row, rank, group = row[order], rank[order], group[order]
    first = np.flatnonzero((np.diff(row) == 0) & (np.diff(group) == 0))
    row, ends = row[first], np.stack([rank[first], rank[first + 1]], axis=1)
    at = row[:, np.newaxis], ends
    # With two ranks, bus bandwidth is bytes over time.
    gbps = (measured.work / np.fmin.reduce(steps_s, axis=2, initial=np.inf) / 1e9)[at].min(axis=1)
    together = np.column_stack([node[ends], measured.numbers[row]])
    pairs, of = np.unique(together, axis=0, return_inverse=True)
    of = of.reshape(-1)
    stalled = np.bincount(of, are_stalled(steps_s)[at].any(axis=1), len(pairs)) > 0
    least = np.full(len(pairs), np.inf)
    np.minimum.at(least, of, gbps)
    return GpuPairs(who.rank_places, hosts, ends, gbps, of, pairs, least, stalled)


def name_slow_node_pairs(answer: Answer, evidence: Evidence, explained: Sequence[Hosts] = ()) -> None:
    """Name nodes and links that communicate slowly, for ranks of several nodes.

    Links of a host that is certainly blamed for slow computation are not accused. If it is known between which hosts
    communication is slow, nodes and links that explain none of that are left out.
    """
    faults = slow_links(evidence, frozenset(culprit.host for culprit in answer.culprits if culprit.is_certain))
    faults = [culprit for culprit in faults if not explained or any(map(set(culprit.hosts).issubset, explained))]
    if faults:
        answer.reasons.append(_slow_at(faults))
        answer.culprits += faults


def _slow_at(faults: Sequence[Culprit]) -> Reason:
    return because("slow-at", tuple(because("slow-between", culprit.hosts, culprit.because) for culprit in faults[:2]))


def fail_by_pairs(answer: Answer, probe: Arm, evidence: Evidence) -> None:
    """Let the answer on messages between all nodes fail, whatever its bound, where a node or link is slow for certain.

    Of fewer than `FEWEST_PEERS` nodes it only keeps the run from being accepted, and on CPUs.
    """
    faults, plan = [culprit for culprit in slow_links(evidence) if culprit.is_certain], evidence.plan
    if probe.operation.kind != "send-recv" or probe.world_size < plan.layout.world_size or plan.device_type == "cpu":
        return
    if not faults or len(gpu_pairs_of(evidence).hosts) < FEWEST_PEERS or answer.value is None:
        return
    if answer.outcome != "failed":
        answer.say("failed", _slow_at(faults))
    answer.blank, known = replace(answer.blank, severity="fail"), {culprit.identity for culprit in answer.culprits}
    answer.culprits = [*(culprit for culprit in faults if culprit.identity not in known), *answer.culprits]


@memoized
def slow_links(evidence: Evidence, excused: frozenset[str] = frozenset()) -> list[Culprit]:
    """Nodes and links that communicate slowly: slow nodes before slow links, slowest first, then stalls.

    They have the device of their end if only one rail is slow. Pairs of excused hosts, which compute slowly, are
    ignored, because that explains them. No node is certain where half are slow: two of four may be alone on their
    switches, which share few uplinks.
    """
    rails = gpu_pairs_of(evidence)
    hosts, nodes, gbps, stalled = rails.hosts, rails.pairs[:, :2], rails.least_gbps, rails.stalled
    results = [
        PairResult(number, (one, other), *measured)
        for (one, other, number), *measured in zip(rails.pairs.tolist(), gbps.tolist(), stalled.tolist(), strict=True)
        if excused.isdisjoint(hosts[[one, other]])
    ]
    standings, culprits = Standings(results, SLOW_SHARES[evidence.plan.device_type]), list[Culprit]()
    if len(standings.suspect_nodes) > standings.nodes // 2:
        return []
    is_good, line = np.isin(nodes, [*standings.good]), standings.slow_below_gbps
    # A node with its good partners, or the link between two.
    for accused in (*((node,) for node in standings.confirmed_nodes), *standings.confirmed_links):
        is_end, ends, only = np.isin(nodes, accused), list[Place](), list[Place]()
        mine = np.asarray(is_end.any(axis=1) & (is_end | (is_good & (len(accused) == 1))).all(axis=1))
        rail = mine[rails.of]
        for node in accused:
            at = rails.ends[rail][nodes[rails.of[rail]] == node]
            fast = at[rails.gbps[rail] >= line]
            only = rails.places[np.setdiff1d(at, fast)].tolist() if len(fast) else []  # rails that always are slow
            ends.append(only[0] if len(only) == 1 else Place(hosts[node]))
        ranks = tuple(end.local_rank for end in only)
        typical, usual = float(np.median(gbps[mine])), float(np.median(gbps[gbps >= line]))
        why = because("slow-pairs", typical, usual, int(mine.sum()), ranks)
        is_certain = len(accused) == 2 or 2 * len(standings.suspect_nodes) < standings.nodes
        culprits.append(Culprit("link" if len(accused) == 2 else "node", (*ends,), why, is_certain))
    culprits.sort(key=lambda culprit: (culprit.kind == "link", culprit.because.args[0], culprit.hosts))
    for node in standings.stalls.named:
        own = (nodes == node).any(axis=1)
        why = because("stalls", *(int(pairs.sum()) for side in (own, ~own) for pairs in (stalled[side], side)))
        culprits.append(Culprit("node", (Place(hosts[node]),), why, is_certain=False))
    return culprits


def name_probe_culprits(
    answer: Answer, probe: Arm, places: Sequence[JudgedPlace], codes: IntArray, values: FloatArray,
    evidence: Evidence, limit: float | None = None,
) -> None:  # fmt: skip
    """Name the culprits of all places that failed, by the rules of this module.

    Between nodes the answer may be inconclusive because a node's messages stall, so these get what node pairs show too.

    Args:
        answer: for all places.
        probe: the arm.
        places: that were judged.
        codes: `stats.PASSED` …, (places,).
        values: in the unit of the probe's own metric; NaN where there is none, (places,).
        evidence: of the run.
        limit: by which a GPU may be slower than its peers; without it certainty does not depend on them.
    """
    if answer.outcome not in ("failed", "inconclusive"):
        return
    on_hosts, kind, is_failed = defaultdict[Hosts, list[int]](list), places[0].kind, codes == FAILED
    for i, place in enumerate(places):
        on_hosts[tuple(dict.fromkeys(end.host for end in place.ends)) or (place.host,)].append(i)
    is_between = places[0].is_between_nodes
    if is_between or kind == "gang":
        failing = [hosts for hosts, at in on_hosts.items() if is_between and is_failed[at].any()]
        name_slow_node_pairs(answer, evidence, failing)
    if answer.outcome != "failed" or kind == "gang":
        return
    culprits, noun, others = list[Culprit](), places[0].noun, medians_of_others(values[np.newaxis])[0]
    are_unlike = values < SLOW_SHARES[evidence.plan.device_type] * others
    if not is_between or evidence.plan.nodes == 2 or 2 * is_failed.sum() <= len(places):
        are_unlike[:] = True  # else what they share is at fault, or the bound

    def failure(mine: Sequence[int]) -> Reason:
        """Why those of some places that fail do: by the worst, beside the median of all others."""
        failed = [i for i in mine if is_failed[i]]
        worst = min(failed, key=values.__getitem__)
        beside = None if np.isnan(others[worst]) else float(others[worst])
        counts = len(failed), len(mine), noun
        return because("misses", answer.blank.id, *counts, float(values[worst]), probe.operation.kind, beside)

    for hosts, mine in on_hosts.items():
        failed, where = [i for i in mine if is_failed[i] and are_unlike[i]], tuple(map(Place, hosts))
        if is_between or len(on_hosts) > 1 < len(failed) == len(mine):
            if failed and not any(set(culprit.hosts).issubset(hosts) for culprit in answer.culprits):
                where = places[failed[0]].ends if len(failed) == 1 else where
                culprits.append(Culprit("link" if is_between else "node", where, failure(mine), not is_between))
            continue
        if kind == "link":
            of_end = {end: [i for i in mine if end in places[i].ends] for one in failed for end in places[one].ends}
            slow = [
                end
                for end, own in of_end.items()
                if PASSED not in codes[own] and is_failed[own].sum() > max(1, len(own) / 2)
            ]
            failed = [i for i in failed if set(slow).isdisjoint(places[i].ends)]
            shared = set.intersection(*(set(places[i].ends) for i in failed)) if len(failed) > 1 else set[Place]()
            for end in (*slow, *shared):
                why = because("gpu-or-its-links" if end in slow else "gpu-or-these-links", failure(of_end[end]))
                culprits.append(Culprit("gpu", (end,), why, end in slow))
            failed = [] if shared else failed
        for i in failed:
            why = failure([i])
            is_alike = kind == "gpu" and limit is not None and others[i] <= values[i] * (1 + limit)
            why = because("all-may-be-slow", why, limit) if is_alike else why
            culprits.append(Culprit(kind, places[i].ends or where, why, is_certain=not is_alike))
    if is_between and answer.culprits:
        answer.culprits += culprits
    else:
        name_unless_most_fail(answer, culprits, codes, len(evidence.plan.layout.groups_of_round(probe)), noun)


def add_wrong_data(answer: Answer, probe: Arm, probed: ArmRounds) -> None:
    """Let the answer on speed fail if any result was wrong, in complete rounds or not.

    A device that works alone is at fault; of several links of a node that have an end in common, that. In a collective
    a rank that sees wrong data is only a witness, because others may have sent it. Then the node that all ranks of the
    group are on is certainly at fault, and no GPU is.
    """
    if not probed.wrong.any():
        return
    operation, ranks, rounds = probe.operation, probed.ranks, len(np.unique(probed.numbers))
    did, is_alone = "computed" if operation.kind == "matmul" else "moved", operation.is_single_device
    seen = defaultdict[Culprit, set[int]](set)
    for row, column in np.argwhere(probed.wrong).tolist():
        group = probed.present[row] & (probed.groups[row] == probed.groups[row, column])
        ends, place = (*ranks.rank_places[group],), ranks.rank_places[column]
        is_within = all(end.host == place.host for end in ends)
        accused = [Culprit("gpu", (place,), because("wrong-data", did if is_alone else "saw"), is_alone)]
        if operation.kind == "send-recv" and len(ends) > 1:  # else the other one is unknown
            accused = [Culprit("link", ends, because("wrong-data", did), is_within)]
        elif not is_alone and is_within and len(ranks.by_host[place.host]) >= probe.world_size:
            accused.insert(0, Culprit("node", (Place(place.host),), because("wrong-data", did)))
        for culprit in accused:
            seen[culprit].add(int(probed.numbers[row]))
    culprits = dict[tuple[object, ...], Culprit]()
    for culprit, at in seen.items():
        own = [
            set(earlier.places)
            for earlier in seen
            if earlier.kind == culprit.kind == "link" and earlier.host == culprit.host
        ]
        why = because("wrong-data", *culprit.because.args, len(at), rounds)
        if len(own) > 1 and (shared := set.intersection(*own)):
            culprit, why = Culprit("gpu", (*shared,), why), because("gpu-not-links", len(own))
        if culprit.is_certain or culprit.identity not in culprits:
            culprits[culprit.identity] = replace(culprit, because=why, computed_wrong=True)
    others = [culprit for culprit in answer.culprits if culprit.identity not in culprits]
    also = [because("also", reason) for reason in answer.reasons if answer.outcome in ("failed", "error")]
    wrong = len(np.unique(probed.numbers[probed.wrong.any(axis=1)]))
    answer.reasons = [because("wrong-data", did, wrong, rounds), *also]
    answer.outcome, answer.culprits = "failed", [*culprits.values(), *others]
    answer.flags.append(WRONG_DATA)


def unasked_wrong_data(evidence: Evidence, required: Collection[str]) -> list[Reason]:
    """Probes with wrong results on which the run judges nothing: the result counts all the same.

    A run measures such probes for the load that node checks need, or was measured with another thresholds file.

    Args:
        evidence: of the run.
        required: names of the probes that its requirements are about, at each world size (`Arm.name`).
    """
    return [
        because(
            "unasked-wrong-data",
            probed.arm,
            tuple(f"{place.number} of {place.host}" for place in probed.ranks.rank_places[probed.wrong.any(axis=0)]),
        )
        for probed in evidence.probes
        if probed.arm not in required and probed.wrong.any()
    ]
