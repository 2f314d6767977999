"""Nodes and links that communicate slower than the others, from measured node pairs.

The rule is that of `plan.pairing.Standings`, which also chose the measured pairs. A node is named if it is slow with
every partner, at least two of which are known to be good, in more than `CONFIRMATIONS` measurements. A link is named if
it is slow in as many measurements and never fast, while both its ends are fast with others. One fast measurement
clears. If more than half of the nodes were never fast, none is named: the majority is slow, so there is no baseline. A
node pair counts with its slowest rail (equal local ranks of both nodes); if only some rails are slow, those are named.

Pairs are rated by their fastest message. A node that loses packets may pass by that: it is named by messages that stall
(`plan.pairing`), but never as certain, because a host that is busy with something else delays messages too.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.metrics import GIGA
from pytest_ddpscale.plan.pairing import SLOW_SHARES, NodePair, PairResult, Standings, are_stalled
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.block import STEP_S
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.run.verdicts import Verdict

_PARTNERS_SHOWN = 3


class Rail(NamedTuple):
    """Two ranks of different nodes in one round; `ends` are in the order of the names of their hosts.

    Attributes:
        gbps: GB/s of the fastest message of the slower rank.
        mean_gbps: GB/s over all messages.
        longest_s: time of the longest message, in seconds.
        is_stalled: whether any message stalled.
    """

    round: int
    ends: tuple[Place, Place]
    gbps: float
    mean_gbps: float
    longest_s: float
    is_stalled: bool

    @property
    def hosts(self) -> tuple[str, str]:
        """Of both ends."""
        return self.ends[0].host, self.ends[1].host


def with_slow_node_pairs(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Add nodes and links that communicate slowly as culprits to a verdict on ranks of several nodes.

    Links of a host that the verdict certainly blames for slow computation are not accused.
    """
    faults = _faults(evidence, frozenset(culprit.host for culprit in verdict.culprits if culprit.is_certain))
    if not faults:
        return verdict
    who = f"{_name(faults[0])}{f' and {len(faults) - 1} more' if len(faults) > 1 else ''}"
    reason = f"{verdict.reason}; communication is slow at {who} ({faults[0].evidence})"
    return replace(verdict, culprits=(*verdict.culprits, *faults), reason=reason)


def slow_links(evidence: Evidence) -> dict[str, set[str]]:
    """Hosts of the nodes and links that communicate slowly, by a description of each: all that the rule finds."""
    return {f"{_name(one)} ({one.evidence})": set(one.hosts) for one in _faults(evidence, frozenset())}


def _faults(evidence: Evidence, excused: frozenset[str]) -> list[Culprit]:
    device_type = evidence.plan.device_type
    return evidence.once(("link faults", excused), lambda: find_link_faults(rails_of(evidence), device_type, excused))


def _name(fault: Culprit) -> str:
    hosts = " and ".join(fault.hosts)
    return f"node {hosts}" if fault.kind == "node" else f"the link between {hosts}"


def find_link_faults(rails: Sequence[Rail], device_type: DeviceType, excused: Set[str] = frozenset()) -> list[Culprit]:
    """Nodes and links at fault by the rule of this module: slow nodes before slow links, slowest first, then stalls.

    They have the local ranks and devices of their ends if only one rail is slow. Pairs of excused hosts, which compute
    slowly, are ignored, because that explains them.
    """
    counting = [rail for rail in rails if excused.isdisjoint(rail.hosts)] if excused else rails
    told = _NodePairs(counting, SLOW_SHARES[device_type])
    standings = told.standings
    if len(standings.suspect_nodes) > standings.nodes // 2:
        return []
    found = [told.node_fault(node) for node in standings.confirmed_nodes]
    found += [told.link_fault(pair) for pair in standings.confirmed_links]
    slow = [fault for _, fault in sorted(found, key=lambda one: (one[1].kind != "node", one[0], one[1].hosts))]
    return slow + [told.stalling_node(node) for node in standings.stalls.named]


def rails_of(evidence: Evidence) -> Sequence[Rail]:
    """The measured rails between nodes, round by round."""
    return evidence.once("rails", lambda: [rail for arm in evidence.pairs for rail in _rails(arm)])


def _rails(measured: ArmRounds) -> Iterator[Rail]:
    """With two ranks, bus bandwidth is bytes over time."""
    steps_s, who = measured.of_steps(STEP_S), measured.ranks
    mean_s = measured.seconds / np.where(measured.present, measured.count, 1)
    fastest_s, longest_s = np.fmin.reduce(steps_s, axis=2, initial=np.inf), steps_s.max(axis=2, initial=0.0)
    gbps, mean_gbps = (measured.work / of / GIGA for of in (fastest_s, np.where(measured.present, mean_s, np.nan)))
    stalled = are_stalled(steps_s)
    host_of = np.unique(who.hosts.astype(str), return_inverse=True)[1]
    for row, number in enumerate(measured.numbers.tolist()):
        there = np.flatnonzero(measured.present[row])
        there = there[np.lexsort((host_of[there], measured.groups[row, there]))]
        group, host = measured.groups[row, there], host_of[there]
        first = np.flatnonzero((group[1:] == group[:-1]) & (host[1:] != host[:-1]))
        a, b = there[first], there[first + 1]
        ends = zip(who.rank_places[a], who.rank_places[b], strict=True)
        values = (
            np.minimum(gbps[row, a], gbps[row, b]),
            np.minimum(mean_gbps[row, a], mean_gbps[row, b]),
            np.maximum(longest_s[row, a], longest_s[row, b]),
            stalled[row, a] | stalled[row, b],
        )
        yield from map(Rail, repeat(number), ends, *(of.tolist() for of in values))


def node_pair_results(rails: Iterable[Rail]) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield each pair of hosts in each round: names in order, and GB/s of the slowest rail."""
    for (_, hosts), together in _rails_together(rails).items():
        yield hosts, min(rail.gbps for rail in together)


def _rails_together(rails: Iterable[Rail]) -> dict[tuple[int, tuple[str, str]], list[Rail]]:
    """Rails by round and hosts."""
    together: dict[tuple[int, tuple[str, str]], list[Rail]] = defaultdict(list)
    for rail in rails:
        together[rail.round, rail.hosts].append(rail)
    return together


class _NodePairs:
    """Measurements of rails, combined to results of node pairs; nodes are numbered in the order of their names."""

    def __init__(self, rails: Iterable[Rail], slow_share: float) -> None:
        self._rails = _rails_together(rails)
        self._hosts = sorted({host for _, hosts in self._rails for host in hosts})
        numbers = {host: number for number, host in enumerate(self._hosts)}
        results = [
            PairResult(
                number,
                (numbers[one], numbers[other]),
                min(rail.gbps for rail in together),
                any(rail.is_stalled for rail in together),
            )
            for (number, (one, other)), together in self._rails.items()
        ]
        self.standings = Standings(results, slow_share)
        self._results = results
        self._fast = [result for result in results if result.gbps >= self.standings.slow_below_gbps]

    def node_fault(self, node: int) -> tuple[float, Culprit]:
        """Median GB/s of the slow results of a node, and the node as a culprit."""
        slow, partners = self.standings.with_good[node], self.standings.partners[node]
        end, rails = self._slow_end(slow, node)
        among = [result.gbps for result in self._fast if partners.issuperset(result.nodes)]
        between = f"with {_listed([self._hosts[partner] for partner in sorted(partners)])}"
        if among:
            whom = f"which reach {statistics.median(among):.3g} GB/s with each other"
        else:
            whom = f"which reach {self._fast_gbps(partners):.3g} GB/s with others"
        slow_gbps = statistics.median(result.gbps for result in slow)
        evidence = f"{rails}{slow_gbps:.3g} GB/s {between}, {whom} ({len(slow)} measurements)"
        return slow_gbps, Culprit("node", (end or Place(self._hosts[node]),), evidence)

    def link_fault(self, pair: NodePair) -> tuple[float, Culprit]:
        """Median GB/s of the slow results of a link, and the link as a culprit."""
        slow = self.standings.of_pair[pair]
        (end, rails), (peer, _) = (self._slow_end(slow, node) for node in pair)
        slow_gbps = statistics.median(result.gbps for result in slow)
        evidence = (
            f"{rails}{slow_gbps:.3g} GB/s between {_listed([self._hosts[node] for node in pair])}, which reach "
            f"{self._fast_gbps(pair):.3g} GB/s with others ({len(slow)} measurements)"
        )
        ends = end or Place(self._hosts[pair[0]]), peer or Place(self._hosts[pair[1]])
        return slow_gbps, Culprit("link", ends, evidence)

    def stalling_node(self, node: int) -> Culprit:
        """A node whose messages stall as a culprit, with the range over rounds of its pairs and of all others."""
        own = [result for result in self._results if node in result.nodes]
        others = [result for result in self._results if node not in result.nodes]
        stalled = [result for result in own if result.is_stalled]
        longest_s = max(rail.longest_s for result in stalled for rail in self._rails_of(result) if rail.is_stalled)
        evidence = (
            f"pairs with it are slow and erratic: {self._mean_gbps(own)} over {len(own)} rounds, other pairs "
            f"{self._mean_gbps(others)}; a message waited up to {longest_s:.2g} s, as after a lost packet, in "
            f"{len(stalled)} of {len(own)} pairs with it and {sum(one.is_stalled for one in others)} of {len(others)} "
            "without it"
        )
        return Culprit("node", (Place(self._hosts[node]),), evidence, is_certain=False)

    def _mean_gbps(self, results: Iterable[PairResult]) -> str:
        """``0.042 … 0.31 GB/s``: the range of the slowest rails by the mean of their messages."""
        gbps = [min(rail.mean_gbps for rail in self._rails_of(result)) for result in results]
        return f"{min(gbps):.2g} … {max(gbps):.2g} GB/s"

    def _rails_of(self, result: PairResult) -> Sequence[Rail]:
        one, other = result.nodes
        return self._rails[result.round, (self._hosts[one], self._hosts[other])]

    def _fast_gbps(self, nodes: Iterable[int]) -> float:
        return statistics.median(result.gbps for result in self._fast if not set(nodes).isdisjoint(result.nodes))

    def _slow_end(self, results: Sequence[PairResult], node: int) -> tuple[Place | None, str]:
        """The place of a node's only slow rail, if there is only one; and its slow rails in words.

        A rail is slow if it is in all these results; all rails count as slow if none is in all of them.
        """
        slow = defaultdict[Place, list[bool]](list)
        for result in results:
            for rail in self._rails_of(result):
                end = rail.ends[rail.hosts.index(self._hosts[node])]
                slow[end].append(rail.gbps < self.standings.slow_below_gbps)
        always = sorted((end for end, each in slow.items() if all(each)), key=lambda end: end.of_rank)
        if not always or len(always) == len(slow):
            return None, ""
        local_ranks = [str(end.local_rank) for end in always]
        words = f"only local rank{'s' if len(local_ranks) > 1 else ''} {_listed(local_ranks)}: "
        return always[0] if len(always) == 1 else None, words


def _listed(names: Sequence[str]) -> str:
    """``n1``, ``n1 and n3`` or ``n1, n2, n3 and 9 more``."""
    shown = list(names[:_PARTNERS_SHOWN])
    if len(names) > _PARTNERS_SHOWN:
        shown.append(f"{len(names) - _PARTNERS_SHOWN} more")
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
