"""Chooses node pairs to measure, to find a slow node or link among N nodes in O(log N) rounds.

A round is a set of disjoint node pairs, all measured at once. The first rounds are fixed:

- for up to `ALL_PAIRS_UP_TO` nodes, all pairs, by the circle method of round-robin tournaments;
- for more, the pairs 1, 2, 4, 8 … apart, which collectives use: rings connect neighbours, double binary trees (Sanders,
  Speck & Träff, Parallel Computing 35, 2009) and recursive doubling connect nodes powers of two apart. This takes
  about 2 log2 N rounds. The other links are not measured, as that would take N - 1 rounds.

Then slow results are measured again: a *suspect node*, which was fast with no other node, with nodes known to be good;
a *suspect link*, which was slow although both its ends are fast with others, as it is. Each is confirmed by
`CONFIRMATIONS` more slow results, or cleared by one fast result. One fault takes two more rounds, f faults at most 2f.
A node whose messages stall is measured again until that is certain or no longer likely. `most_rounds` is the limit.

Idle good nodes repeat pairs known to be fast, because a round with few pairs would load switches and shared cores less,
and would not be comparable with the others.

Fast and slow are relative to the best results of nodes, not to the median pair: with one bad node among three, two of
three pairs are slow. `Standings` has the rule. It works if at least half of the nodes are good and have been paired
with another good one; if more than half are slow, they set the reference, and no node is named.

A node that drops packets is fast at times, but some of its messages stall. If no later packet tells TCP of a loss, it
waits for 0.2 s at least (Linux; RFC 6298 asks for 1 s). Some messages take that long, while the fastest, by which a
pair is rated, may have lost nothing. Processes that wait for a core make messages stall too, between any nodes. So
results of a node have to stall more often than those of all other nodes, by Fisher's exact test at `ALPHA` over all
nodes together (Bonferroni): a third of them, three at least, with most of its partners, two at least. Results of a node
that was found count no more, so that its partners are not found in its place. Of two nodes neither can be told.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Pair, all_pairs, in_order
from pytest_ddpscale.plan.words import DeviceType, refuse_below_one

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A stalled message takes longer than the median of its pair by this: less than the shortest wait for a lost packet, but
# more than busy cores delay it (0.12 s was seen on two of them) …
STALL_S = 0.15
# … and so many times as long: over a slow link 0.15 s may be a small part of a message.
STALL_RATIO = 3.0
ALPHA = 0.01
FEWEST_STALLED, LEAST_SHARE = 3, 1 / 3  # results of a node, and share of its results


def are_stalled(step_s: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Whether any message of a rank stalled, (...,), from seconds of its messages, (..., messages); not if NaN."""
    import numpy as np

    is_stalled = np.zeros(step_s.shape[:-1], np.bool_)
    if step_s.shape[-1]:
        longest = step_s.max(axis=-1)
        candidates = longest > STALL_S
        typical = np.median(step_s[candidates], axis=-1)
        is_stalled[candidates] = longest[candidates] > np.maximum(typical + STALL_S, STALL_RATIO * typical)
    return is_stalled


class StallSuspects(NamedTuple):
    """Nodes whose results stall; see `find_stalling_nodes`.

    Attributes:
        named: by the rule of this module, the most certain first.
        open: nodes that may prove so if they are measured again.
    """

    named: tuple[int, ...] = ()
    open: tuple[int, ...] = ()


def find_stalling_nodes(results: Sequence[tuple[Pair, bool]]) -> StallSuspects:
    """Nodes whose results stall, by the rule of this module.

    Args:
        results: nodes of each measured pair, and whether any of its messages stalled.
    """
    nodes = len({node for pair, _ in results for node in pair})
    left, named = list(results), list[int]()
    while nodes > 2 and len(named) < nodes // 2:
        suspect = _likeliest(left)
        if not suspect or suspect[0][0] * nodes > ALPHA:
            return StallSuspects(tuple(named), tuple(sorted(node for _, node in suspect)))
        named.append(suspect[0][1])
        left = [one for one in left if named[-1] not in one[0]]
    return StallSuspects(tuple(named))


def _likeliest(results: Sequence[tuple[Pair, bool]]) -> list[tuple[float, int]]:
    """Nodes of which `LEAST_SHARE` of the results stall, after the chance that at least as many do if all nodes' stall
    alike, by Fisher's exact test, one-sided; it is 1 while they are too few to name the node.

    Fisher (1922), "On the interpretation of χ² from contingency tables, and the calculation of P", Journal of the Royal
    Statistical Society 85.
    """
    met = defaultdict[int, list[tuple[int, bool]]](list)
    for (one, other), is_stalled in results:
        met[one].append((other, is_stalled))
        met[other].append((one, is_stalled))
    all_stalled, candidates = sum(is_stalled for _, is_stalled in results), list[tuple[float, int]]()
    for node, own in met.items():
        stalled_with = [partner for partner, is_stalled in own if is_stalled]
        count, measured, partners = len(stalled_with), len(own), len(set(stalled_with))
        if not count or count < LEAST_SHARE * measured:
            continue
        chance = 1.0
        if count >= FEWEST_STALLED and partners > 1 and 2 * partners > len(dict(own)):
            sound = len(results) - all_stalled
            ways = (math.comb(all_stalled, i) * math.comb(sound, measured - i) for i in range(count, measured + 1))
            chance = sum(ways) / math.comb(len(results), measured)
        candidates.append((chance, node))
    return sorted(candidates)


NodePair = Pair

PAIRS: Literal["pairs"] = "pairs"  # id of the study
CONFIRMATIONS = 2
ALL_PAIRS_UP_TO = 16
# Between GPUs only the network matters. Ranks on CPUs share cores: pairs of six healthy ranks on two busy cores
# measured 0.56 to 1.66 of their median.
SLOW_SHARES: Mapping[DeviceType, float] = {"cuda": 0.7, "cpu": 0.4}


@dataclass(frozen=True)
class PairStudy:
    """Pairs of nodes, each rank with the one of the same number on the other node; rank 0 chooses those of each round.

    Attributes:
        arms: the one arm that each pair of ranks times, an fp32 all-reduce: ``all-reduce-32mib@2``.
        iterations: number of timed all-reduces, after one untimed.
    """

    arms: tuple[Arm, ...]
    iterations: int
    id: Literal["pairs"] = PAIRS

    launch: ClassVar[int] = 1

    def __post_init__(self) -> None:
        refuse_below_one(self, "a pair study", "iterations")
        if [(arm.kind.startswith("all-reduce-"), arm.world_size) for arm in self.arms] != [(True, 2)]:
            found = ", ".join(arm.name for arm in self.arms) or "nothing"
            raise ValueError(f"a pair study times {found}; expected one all-reduce of 2 ranks")

    @property
    def message_bytes(self) -> int:
        """Size of one all-reduce, in bytes."""
        return self.arms[0].operation.message_bytes or 0


def pair_study(device_type: DeviceType) -> PairStudy:
    """Messages long enough to be bandwidth-bound; on CPUs short enough to take a second on a link of 200 Mbit/s."""
    return PairStudy((Arm("all-reduce-32mib" if device_type == "cuda" else "all-reduce-1mib", 2),), 20)


@dataclass(frozen=True)
class PairResult:
    """Result of a node pair, smaller number first, in one round: bus bandwidth of its slowest rail in GB/s.

    A rail is the ranks with the same local rank. `is_stalled` says whether a message of any rail stalled.
    """

    round: int
    nodes: NodePair
    gbps: float
    is_stalled: bool = False


class Standings:
    """Classification of nodes and links after some rounds.

    A result is slow below `slow_share` of the reference, which is the median of the upper half of the nodes' best
    results. The best result of a good node is fast, so the reference is sound if half of the nodes are good. A suspect
    link has ends that are fast with at least half of their good partners. If there are more such links than half of the
    nodes, the cause is the network's structure (racks behind a thin spine) or a noisy machine, and no link is suspect.

    Attributes:
        of_pair: results of each pair of nodes, in order.
        nodes: number of measured nodes.
        slow_below_gbps: the limit between slow and fast.
        fast_pairs: pairs of nodes that were fast at least once.
        good: nodes that were fast at least once.
        with_good: results of each node with good partners, in order.
        partners: those good partners, by node.
        suspect_nodes: nodes that were never fast, in order.
        confirmed_nodes: those that were slow often enough, with enough good partners, to be named.
        stalls: good nodes whose messages stall, by their results with each other: a slow node's are long anyway.
        suspect_links: pairs of good nodes that were never fast with each other, unless stalls of an end explain it.
        confirmed_links: those that were slow often enough to be named.
    """

    def __init__(self, results: Sequence[PairResult], slow_share: float) -> None:
        self.of_pair, of_node = defaultdict[NodePair, list[PairResult]](list), defaultdict[int, list[PairResult]](list)
        for result in results:
            self.of_pair[result.nodes].append(result)
            for node in result.nodes:
                of_node[node].append(result)
        self.nodes = len(of_node)
        best = sorted(max(result.gbps for result in own) for own in of_node.values())[self.nodes // 2 :]
        self.slow_below_gbps = slow_share * statistics.median(best or [0.0])
        self.fast_pairs = {result.nodes for result in results if result.gbps >= self.slow_below_gbps}
        self.good = {node for pair in self.fast_pairs for node in pair}
        self.with_good = {
            node: [result for result in own if self.good.issuperset({*result.nodes} - {node})]
            for node, own in of_node.items()
        }
        self.partners = {
            node: {end for result in own for end in result.nodes} - {node} for node, own in self.with_good.items()
        }
        self.suspect_nodes = sorted(of_node.keys() - self.good)
        self.confirmed_nodes = [
            node
            for node in self.suspect_nodes
            if len(self.with_good[node]) > CONFIRMATIONS and len(self.partners[node]) >= 2
        ]
        among_good = [result for result in results if self.good.issuperset(result.nodes)]
        self.stalls = find_stalling_nodes([(result.nodes, result.is_stalled) for result in among_good])
        mostly_fast = {
            node
            for node in self.good.difference(self.stalls.named)
            if 2 * sum(in_order(node, other) in self.fast_pairs for other in self.partners[node])
            >= len(self.partners[node])
        }
        slow_links = sorted({result.nodes for result in among_good} - self.fast_pairs)
        are_few = len(slow_links) <= self.nodes // 2
        self.suspect_links = [pair for pair in slow_links if are_few and mostly_fast.issuperset(pair)]
        self.confirmed_links = [pair for pair in self.suspect_links if len(self.of_pair[pair]) > CONFIRMATIONS]


def next_round(nodes: int, results: Sequence[PairResult], slow_share: float) -> tuple[NodePair, ...]:
    """The disjoint node pairs to measure after these results; empty if there is nothing left to find out."""
    number = 1 + max((result.round for result in results), default=-1)
    first = first_rounds(nodes)
    if number < len(first):
        return first[number]
    if number >= most_rounds(nodes):
        return ()
    standings = Standings(results, slow_share)
    chosen = _confirming(nodes, results, standings)
    # Nodes whose messages may stall with good nodes, whose messages do not if there are such.
    free = standings.good.difference(standings.stalls.named, *chosen)
    for node in standings.stalls.open:
        if node in free and (others := free - {node}):
            partner = _least_met(standings, node, others.difference(standings.stalls.open) or others)
            free -= {node, partner}
            chosen.append(in_order(node, partner))
    if not chosen:
        return ()
    # Idle nodes known to be fast, so that the load equals that of other rounds.
    taken, fast = {node for pair in chosen for node in pair}, sorted(standings.fast_pairs)
    start = number % len(fast)
    for pair in fast[start:] + fast[:start]:
        if taken.isdisjoint(pair):
            taken.update(pair)
            chosen.append(pair)
    return tuple(chosen)


def is_undecided(nodes: int, results: Sequence[PairResult], slow_share: float) -> bool:
    """Whether a slow node or link still should be measured again. Stalls alone leave nothing undecided."""
    return bool(_confirming(nodes, results, Standings(results, slow_share)))


@cache
def first_rounds(nodes: int) -> tuple[tuple[NodePair, ...], ...]:
    """The fixed first rounds: all pairs, at most 15 rounds; or, for more than 16 nodes, every pair 1, 2, 4 … apart in a
    circle once, each in the first round in which both are free: at most 2⌈log2 N⌉ + 2."""
    if nodes <= ALL_PAIRS_UP_TO:
        return all_pairs(nodes)
    rounds, busy = defaultdict[int, list[NodePair]](list), defaultdict[int, set[int]](set)
    distances = [2**power for power in range((nodes - 1).bit_length())]  # ⌈log2 N⌉ of them
    pairs = [in_order(node, (node + distance) % nodes) for distance in distances for node in range(nodes)]
    for one, other in dict.fromkeys(pairs):
        number = next(number for number in count() if number not in busy[one] | busy[other])
        rounds[number].append((one, other))
        busy[one].add(number)
        busy[other].add(number)
    return tuple(map(tuple, rounds.values()))


def most_rounds(nodes: int) -> int:
    """The limit of rounds including confirmations: 2⌈log2 N⌉ + 4 after the first ones."""
    return len(first_rounds(nodes)) + 2 * (nodes - 1).bit_length() + 4 if nodes > 1 else 0


def _confirming(nodes: int, results: Iterable[PairResult], standings: Standings) -> list[NodePair]:
    """Suspect links, and suspect nodes with good partners, as many as can be measured at once."""
    if len(standings.confirmed_nodes) > standings.nodes // 2:
        return []
    first = len(first_rounds(nodes))
    times_of_pair = Counter(result.nodes for result in results if result.round >= first)
    times_of_node = Counter(node for pair in times_of_pair.elements() for node in pair)
    free, chosen = set(standings.good), list[NodePair]()
    for pair in sorted(standings.suspect_links, key=times_of_pair.__getitem__):
        if times_of_pair[pair] < CONFIRMATIONS and free.issuperset(pair):
            free.difference_update(pair)
            chosen.append(pair)
    for node in sorted(standings.suspect_nodes, key=times_of_node.__getitem__):
        if free and (times_of_node[node] < CONFIRMATIONS or node not in standings.confirmed_nodes):
            partner = _least_met(standings, node, free)
            free.remove(partner)
            chosen.append(in_order(node, partner))
    return chosen


def _least_met(standings: Standings, node: int, free: Set[int]) -> int:
    """The free good partner paired least often with a node; among equals the next one in a circle, to spread them."""

    def meetings(partner: int) -> tuple[int, int]:
        return len(standings.of_pair.get(in_order(node, partner), ())), (partner - node) % standings.nodes

    return min(free, key=meetings)
