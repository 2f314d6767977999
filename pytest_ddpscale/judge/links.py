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
else delays messages too. A failed pair in which the search finds nobody accuses its link, but not for certain.

Wrong results fail whatever the speed, because they are not random.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence, Set
from dataclasses import replace
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from pytest_ddpscale.judge.agreement import name_unless_most_fail
from pytest_ddpscale.judge.answer import Answer
from pytest_ddpscale.judge.metrics import GIGA
from pytest_ddpscale.judge.peers import medians_of_others
from pytest_ddpscale.judge.stats import FAILED, PASSED
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.pairing import SLOW_SHARES, PairResult, Standings, are_stalled
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.block import STEP_S
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, JudgedPlace, Place
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.table import NO_ROUNDS, ArmRounds
from pytest_ddpscale.run.verdicts import WRONG_DATA
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, IntArray, ObjectArray
from pytest_ddpscale.util.listing import first_few

T = TypeVar("T")
Hosts: TypeAlias = tuple[str, ...]


class Rails(NamedTuple):
    """Two ranks of different nodes in a round, (rails,); both ends, (rails, 2), are in the order of hosts' names.

    Attributes:
        places: of all ranks, (ranks,).
        hosts: names of the nodes, in order.
        rounds: their numbers.
        ends: index in `places`.
        nodes: index in `hosts`.
        gbps: of the fastest message of the slower end.
        stalled: whether any message stalled.
    """

    places: ObjectArray
    hosts: ObjectArray
    rounds: IntArray
    ends: IntArray
    nodes: IntArray
    gbps: FloatArray
    stalled: BoolArray


def rails_of(evidence: Evidence) -> Rails:
    """The measured rails between nodes, round by round."""
    return evidence.once("rails", lambda: _rails(next(iter(evidence.pairs), NO_ROUNDS)))


def _rails(measured: ArmRounds) -> Rails:
    steps_s, who = measured.of_steps(STEP_S), measured.ranks
    hosts, node = np.unique(who.hosts, return_inverse=True)
    row, rank = np.nonzero(measured.present)
    group = measured.groups[row, rank]
    order = np.lexsort((node[rank], group, row))
    row, rank, group = row[order], rank[order], group[order]
    first = np.flatnonzero((np.diff(row) == 0) & (np.diff(group) == 0) & (np.diff(node[rank]) != 0))
    ends = np.stack([rank[first], rank[first + 1]], axis=1)
    at = row[first, np.newaxis], ends
    # With two ranks, bus bandwidth is bytes over time.
    gbps = measured.work / np.fmin.reduce(steps_s, axis=2, initial=np.inf) / GIGA
    stalled, rounds = np.asarray(are_stalled(steps_s)[at].any(axis=1)), measured.numbers[row[first]]
    return Rails(who.rank_places, hosts, rounds, ends, node[ends], gbps[at].min(axis=1), stalled)


def node_pairs(rails: Rails) -> tuple[IntArray, FloatArray, IntArray]:
    """Rails of two nodes together: nodes and round, (pairs, 3); GB/s of the slowest, (pairs,); which pair, (rails,)."""
    pairs, of = np.unique(np.column_stack([rails.nodes, rails.rounds]), axis=0, return_inverse=True)
    gbps = np.full(len(pairs), np.inf)
    np.minimum.at(gbps, of.reshape(-1), rails.gbps)
    return pairs, gbps, of.reshape(-1)


def name_slow_node_pairs(answer: Answer, evidence: Evidence, explained: Sequence[Hosts] = ()) -> None:
    """Name nodes and links that communicate slowly, for ranks of several nodes.

    Links of a host that is certainly blamed for slow computation are not accused. If it is known between which hosts
    communication is slow, nodes and links that explain none of that are left out.
    """
    faults = _faults(evidence, frozenset(culprit.host for culprit in answer.culprits if culprit.is_certain))
    faults = [one for one in faults if not explained or any(map(set(one.hosts).issubset, explained))]
    if faults:
        answer.reasons.append(because("text", f"communication is slow at {' and '.join(map(_described, faults[:2]))}"))
        answer.culprits += faults


def slow_links(evidence: Evidence) -> dict[str, set[str]]:
    """Hosts of the nodes and links that communicate slowly, by a description of each: all that the rule finds."""
    return {_described(one): set(one.hosts) for one in _faults(evidence, frozenset())}


def _faults(evidence: Evidence, excused: frozenset[str]) -> list[Culprit]:
    device_type = evidence.plan.device_type
    return evidence.once(("link faults", excused), lambda: find_link_faults(rails_of(evidence), device_type, excused))


def _described(fault: Culprit) -> str:
    kind = "node" if fault.kind == "node" else "the link between"
    return f"{kind} {' and '.join(fault.hosts)} ({fault.because.args[0]})"


def find_link_faults(rails: Rails, device_type: DeviceType, excused: Set[str] = frozenset()) -> list[Culprit]:
    """Nodes and links that communicate slowly: slow nodes before slow links, slowest first, then stalls.

    They have the device of their end if only one rail is slow. Pairs of excused hosts, which compute slowly, are
    ignored, because that explains them.
    """
    places, hosts, (pairs, gbps, of) = rails.places, rails.hosts, node_pairs(rails)
    nodes, stalled = pairs[:, :2], np.asarray(np.bincount(of, rails.stalled) > 0)
    counts = ~np.isin(hosts, [*excused])[nodes].any(axis=1)
    measured = zip(*(of_each[counts].tolist() for of_each in (pairs, gbps, stalled)), strict=True)
    results = [PairResult(number, (one, other), *told) for (one, other, number), *told in measured]
    standings = Standings(results, SLOW_SHARES[device_type])
    if len(standings.suspect_nodes) > standings.nodes // 2:
        return []
    is_good, line = np.isin(nodes, [*standings.good]), standings.slow_below_gbps
    usual = np.median(gbps[gbps >= line]) if len(gbps) else 0.0

    def fault(accused: tuple[int, ...]) -> tuple[float, Culprit]:
        """GB/s and the culprit: a node with its good partners, or the link between two."""
        is_end, ends, words = np.isin(nodes, accused), list[Place](), ""
        may_be = is_end if len(accused) == 2 else is_end | is_good
        mine = np.asarray(is_end.any(axis=1) & may_be.all(axis=1))
        for node in accused:
            at = rails.ends[mine[of]][rails.nodes[mine[of]] == node]
            slow = np.setdiff1d(at, at[rails.gbps[mine[of]] >= line])  # rails that always are
            only = places[slow].tolist() if len(slow) < len(np.unique(at)) else []
            ends.append(only[0] if len(only) == 1 else Place(hosts[node]))
            words = f"only local rank {' and '.join(str(end.local_rank) for end in only)}: " if only else ""
        typical = float(np.median(gbps[mine]))
        evidence = f"{words}{typical:.3g} GB/s, others reach {usual:.3g} GB/s ({mine.sum()} measurements)"
        return typical, Culprit("link" if len(accused) == 2 else "node", (*ends,), because("text", evidence))

    found = list[Culprit]()
    for kind in ([(node,) for node in standings.confirmed_nodes], standings.confirmed_links):
        faults = sorted(map(fault, kind), key=lambda one: (one[0], one[1].hosts))
        found += [culprit for _, culprit in faults]
    for node in standings.stalls.named:
        own = (nodes == node).any(axis=1)
        there, elsewhere = (f"{stalled[side].sum()} of {side.sum()} pairs" for side in (own, ~own))
        evidence = f"messages stall, as after a lost packet, in {there} with it and {elsewhere} without it"
        found.append(Culprit("node", (Place(hosts[node]),), because("text", evidence), is_certain=False))
    return found


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
    on_hosts, kind = defaultdict[Hosts, list[int]](list), places[0].kind
    for i, place in enumerate(places):
        on_hosts[tuple(dict.fromkeys(end.host for end in place.ends)) or (place.host,)].append(i)
    is_between = any(len(hosts) > 1 for hosts in on_hosts)
    if is_between or kind == "gang":
        failing = [hosts for hosts, at in on_hosts.items() if is_between and (codes[at] == FAILED).any()]
        name_slow_node_pairs(answer, evidence, failing)
    if answer.outcome != "failed" or kind == "gang":
        return
    noun, unit = places[0].noun, METRICS[KINDS[probe.operation.kind].metric].unit
    name, others = answer.blank.id.partition("[")[2].removesuffix("]"), medians_of_others(values[np.newaxis])[0]

    def told(mine: IntArray) -> str:
        """``2 of its 3 pairs fail send-recv-1gib-4gpu, the worst at 5 GB/s; the median of all others is 20 GB/s``."""
        failed, beside = mine[codes[mine] == FAILED], "no other to compare with"
        worst, what = failed[values[failed].argmin()], f"{len(failed)} of its {len(mine)} {noun} fail {name}, the worst"
        if len(values) > 1:
            beside = f"the median of all others is {others[worst]:.4g} {unit}"
        return f"{name if len(mine) == 1 else what} at {values[worst]:.4g} {unit}; {beside}"

    culprits, ranks = list[Culprit](), np.array([place.ranks for place in places])
    devices = {rank: end for place in places for rank, end in zip(place.ranks, place.ends, strict=False)}
    for hosts, at in on_hosts.items():
        mine = np.array(at)
        failed, where = mine[codes[mine] == FAILED], tuple(map(Place, hosts))
        if is_between:
            if len(failed) and not any(set(culprit.hosts).issubset(hosts) for culprit in answer.culprits):
                where = places[failed[0]].ends if len(failed) == 1 else where
                culprits.append(Culprit("link", where, because("text", told(mine)), is_certain=False))
            continue
        if len(on_hosts) > 1 and len(failed) == len(mine) > 1:
            culprits.append(Culprit("node", where, because("text", told(mine))))
            continue
        if kind == "link":
            slow = _explaining(ranks[mine], codes[mine])
            failed = failed[~np.isin(ranks[failed], slow).any(axis=1)]
            shared = _shared(ranks[failed].tolist())
            for end in (*slow, *shared):
                text, whose = told(mine[(ranks[mine] == end).any(axis=1)]), "its own" if end in slow else "these"
                text += f": the GPU or {whose} links are at fault"
                culprits.append(Culprit("gpu", (devices[end],), because("text", text), is_certain=end in slow))
            failed = failed[: 0 if shared else None]
        for i in failed.tolist():
            text, is_alike = told(np.array([i])), False
            if kind == "gpu" and limit is not None and others[i] <= values[i] * (1 + limit):
                text, is_alike = f"{text}; within {100 * limit:.3g} % of it, so all may be slow", True
            culprits.append(Culprit(kind, places[i].ends or where, because("text", text), is_certain=not is_alike))
    if is_between and answer.culprits:
        answer.culprits += culprits
    else:
        name_unless_most_fail(answer, culprits, codes, len(evidence.plan.layout.groups_of_round(probe)), noun)


def _explaining(ends: IntArray, codes: IntArray) -> list[int]:
    """Ends that meet the bound with no partner and miss it with most of two or more; of (pairs, 2) of them."""
    found = list[int]()
    for end in np.unique(ends).tolist():
        own = codes[(ends == end).any(axis=1)]
        failed = (own == FAILED).sum()
        if failed > 1 and 2 * failed > len(own) and PASSED not in own:
            found.append(end)
    return found


def _shared(pairs: Collection[Sequence[T]]) -> set[T]:
    """The end that all of two or more pairs have, if there is one."""
    return set.intersection(*map(set, pairs)) if len(pairs) > 1 else set()


def add_wrong_data(answer: Answer, probe: Arm, probed: ArmRounds) -> None:
    """Let the answer on speed fail if any result was wrong, in complete rounds or not.

    A device that works alone is at fault; of several links of a node that have an end in common, that. In a collective
    a rank that sees wrong data is only a witness, because others may have sent it. Then the node that all ranks of the
    group are on is certainly at fault, and no GPU is.
    """
    if not probed.wrong.any():
        return
    operation, ranks, is_alone = probe.operation, probed.ranks, probe.operation.is_single_device
    did, rounds = "computed" if operation.kind == "matmul" else "moved", len(np.unique(probed.numbers))
    seen, pairs = defaultdict[Culprit, set[int]](set), defaultdict[str, set[tuple[Place, ...]]](set)
    for row, column in np.argwhere(probed.wrong).tolist():
        group = probed.present[row] & (probed.groups[row] == probed.groups[row, column])
        ends, one = (*ranks.rank_places[group],), ranks.rank_places[column]
        is_within = all(end.host == one.host for end in ends)
        accused = [Culprit("gpu", (one,), because(did if is_alone else "saw"), is_alone)]
        if operation.kind == "send-recv" and len(ends) > 1:  # else the other one is unknown
            accused = [Culprit("link", ends, because(did), is_within)]
            pairs[ends[0].host].add(ends)
        elif not is_alone and is_within and len(ranks.by_host[one.host]) >= probe.world_size:
            accused.append(Culprit("node", (Place(one.host),), because(did)))
        for culprit in accused:
            seen[culprit].add(int(probed.numbers[row]))
    culprits = dict[Culprit, None]()
    for culprit, wrong in sorted(seen.items(), key=lambda one: one[0].kind == "gpu"):
        text, own = f"{culprit.because.code} wrong data in {len(wrong)} of {rounds} rounds", pairs[culprit.host]
        if culprit.kind == "link" and (shared := _shared(own)):
            culprit = Culprit("gpu", (*shared,), culprit.because)
            text = f"{did} wrong data with {len(own)} others: the GPU is at fault, not its links"
        culprits[replace(culprit, because=because("text", text), computed_wrong=True)] = None
    identities = {culprit.identity for culprit in culprits}
    others = [culprit for culprit in answer.culprits if culprit.identity not in identities]
    also = [because("also", one) for one in answer.reasons[:1] if answer.outcome in ("failed", "error")]
    also += answer.reasons[1:] if also else []
    answer.outcome, answer.culprits = "failed", [*culprits, *others]
    answer.reasons = [because("text", f"{did} wrong data, {_seen(probed)}"), *also]
    answer.flags.append(WRONG_DATA)


def unasked_wrong_data(evidence: Evidence, asked: Collection[str]) -> list[str]:
    """Probes with wrong results on which the run judges nothing, one sentence each: the result counts all the same.

    A run measures such probes for the load that node checks need, or was measured with another thresholds file.

    Args:
        evidence: of the run.
        asked: names of the probes that its requirements are about, at each world size (`Arm.name`).
    """
    wrong = [probed for probed in evidence.probes if probed.arm not in asked and probed.wrong.any()]
    return [f"wrong data in the probe {probed.arm}, {_seen(probed)}" for probed in wrong]


def _seen(probed: ArmRounds) -> str:
    """``as seen by GPU 2 of n0 (2 of 8 rounds)``."""
    rows, columns = np.nonzero(probed.wrong)
    names = [f"{one.number} of {one.host}" for one in dict.fromkeys(probed.ranks.rank_places[columns])]
    rounds = (len(np.unique(numbers)) for numbers in (probed.numbers[rows], probed.numbers))
    return f"as seen by {first_few(names)} ({' of '.join(map(str, rounds))} rounds)"
