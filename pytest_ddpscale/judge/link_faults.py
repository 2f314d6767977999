"""Nodes and links that communicate slower than the others, from measured node pairs.

The rule is that of `plan.pairing.Standings`, which also chose the measured pairs. A node is named if it is slow with
every partner, at least two of which are known to be good, in more than `CONFIRMATIONS` measurements. A link is named if
it is slow in as many measurements and never fast, while both its ends are fast with others. One fast measurement
clears. If more than half of the nodes were never fast, none is named: the majority is slow, so there is no baseline. A
node pair counts with its slowest rail (equal local ranks of both nodes); if only some rails are slow, those are named.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from pytest_ddpscale.judge.probes import GIGA
from pytest_ddpscale.plan.pairing import SLOW_SHARES, NodePair, PairResult, Standings
from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.run.columns import ArmColumns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.readings import STEP_S

_PARTNERS_SHOWN = 3


class Rail(NamedTuple):
    """Two ranks of different nodes in one round; two-element fields are in the order of the names of their hosts."""

    round: int
    ranks: tuple[int, int]
    hosts: tuple[str, str]
    local_ranks: tuple[int, int]
    devices: tuple[str, str]
    gbps: float


@dataclass(frozen=True)
class LinkEnd:
    """The node at one end of a fault.

    Attributes:
        host: its name.
        ranks: global ranks with slow rails; all measured ones if all rails are slow.
        local_ranks: their local ranks.
        devices: their GPU UUIDs, or ``cpu``.
    """

    host: str
    ranks: tuple[int, ...]
    local_ranks: tuple[int, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True)
class LinkFault:
    """A node that is slow with every partner, or a slow link between two nodes that are fast with others.

    Attributes:
        kind: ``node`` or ``link``.
        ends: the node, or both ends of the link.
        partners: good hosts that a node was measured with; empty for a link.
        whole: all rails are slow; False if only those of the ends' local ranks are.
        slow_gbps: median bus bandwidth of the slow measurements, in GB/s.
        fast_gbps: median bus bandwidth of the partners, or of the link's ends, with good nodes, in GB/s.
        fast_with_each_other: the partners were measured with each other, not only with third nodes.
        measurements: number of measurements, all of them slow.
    """

    kind: Literal["node", "link"]
    ends: tuple[LinkEnd, ...]
    partners: tuple[str, ...]
    whole: bool
    slow_gbps: float
    fast_gbps: float
    fast_with_each_other: bool
    measurements: int

    @property
    def hosts(self) -> tuple[str, ...]:
        """The node, or both ends."""
        return tuple(end.host for end in self.ends)

    @property
    def evidence(self) -> str:
        """The finding: ``0.024 GB/s with n1 and n3, which reach 0.61 GB/s with each other (4 measurements)``."""
        between = f"with {listed(self.partners)}" if self.kind == "node" else f"between {listed(self.hosts)}"
        whom = "each other" if self.fast_with_each_other else "others"
        return (
            f"{self._rails}{self.slow_gbps:.3g} GB/s {between}, which reach {self.fast_gbps:.3g} GB/s with {whom} "
            f"({self.measurements} measurements)"
        )

    @property
    def _rails(self) -> str:
        if self.whole:
            return ""
        numbers = listed([str(number) for number in self.ends[0].local_ranks])
        return f"only local rank{'s' if len(self.ends[0].local_ranks) > 1 else ''} {numbers}: "


def find_link_faults(
    rails: Sequence[Rail], device_type: DeviceType, excused: Set[str] = frozenset()
) -> list[LinkFault]:
    """Nodes and links at fault by the rule of this module: nodes before links, slowest first.

    Args:
        rails: all measurements, in order.
        device_type: of the ranks; on CPUs a larger gap is needed than on GPUs.
        excused: hosts known to compute slowly; their pairs are ignored, because that explains them.
    """
    told = _NodePairs(rail for rail in rails if excused.isdisjoint(rail.hosts))
    standings = Standings(told.results, SLOW_SHARES[device_type])
    if len(standings.suspect_nodes) > standings.nodes // 2:
        return []
    nodes = [node for node in standings.suspect_nodes if standings.is_confirmed_node(node)]
    links = [pair for pair in standings.suspect_links if standings.is_confirmed_link(pair)]
    faults = [_node_fault(told, standings, node) for node in nodes]
    faults += [_link_fault(told, standings, pair) for pair in links]
    return sorted(faults, key=lambda fault: (fault.kind != "node", fault.slow_gbps, fault.hosts))


def rails_of(evidence: Evidence) -> Sequence[Rail]:
    """The measured rails between nodes, round by round."""
    found: Sequence[Rail] = evidence.once("rails", lambda: [rail for arm in evidence.pairs for rail in _rails(arm)])
    return found


def _rails(measured: ArmColumns) -> Iterator[Rail]:
    """GB/s of the fastest message of the slower rank: with two ranks, bus bandwidth is bytes over time."""
    steps_s, who = measured.of_steps(STEP_S), measured.ranks
    mean_s = measured.seconds / np.where(measured.present, measured.count, 1)  # lines of earlier versions keep no steps
    fastest_s = np.fmin.reduce(steps_s, axis=2, initial=np.inf) if steps_s.shape[2] else mean_s
    gbps = measured.work / fastest_s / GIGA
    for row, number in enumerate(measured.numbers.tolist()):
        pairs: dict[int, list[int]] = defaultdict(list)
        for column in np.flatnonzero(measured.present[row]).tolist():
            pairs[int(measured.groups[row, column])].append(column)
        for ends in pairs.values():
            ends.sort(key=lambda column: str(who.hosts[column]))
            ranks, hosts, local_ranks, devices = zip(*map(who.who, ends), strict=True)
            if len(set(hosts)) == 2:
                yield Rail(number, ranks, hosts, local_ranks, devices, float(gbps[row, ends].min()))


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
    """Measurements of rails, combined to results of node pairs.

    Attributes:
        hosts: host names by node number.
        results: one per measurement of a node pair.
    """

    def __init__(self, rails: Iterable[Rail]) -> None:
        together = _rails_together(rails)
        self.hosts = sorted({host for _, hosts in together for host in hosts})
        numbers = {host: number for number, host in enumerate(self.hosts)}
        self._rails: dict[PairResult, list[Rail]] = defaultdict(list)
        self.results: list[PairResult] = []
        for (number, (one, other)), of_pair in together.items():
            slowest = min(rail.gbps for rail in of_pair)
            result = PairResult(number, (numbers[one], numbers[other]), slowest)
            self.results.append(result)
            self._rails[result] += of_pair

    def slow_rails(self, results: Sequence[PairResult], node: int, slow_below_gbps: float) -> tuple[LinkEnd, bool]:
        """A node's end of the rails that are slow in all given results, and whether these are all of its rails.

        All rails count as slow if none is slow in every result.
        """
        slow, ends = self._tell_rails(results, self.hosts[node], slow_below_gbps)
        always = [rank for rank, each in slow.items() if all(each)]
        ranks = sorted(always or slow)
        local_ranks = tuple(ends[rank][0] for rank in ranks)
        devices = tuple(ends[rank][1] for rank in ranks)
        return LinkEnd(self.hosts[node], tuple(ranks), local_ranks, devices), len(ranks) == len(slow)

    def _tell_rails(
        self, results: Sequence[PairResult], host: str, slow_below_gbps: float
    ) -> tuple[Mapping[int, list[bool]], Mapping[int, tuple[int, str]]]:
        """Whether each rank of a host was slow in each result, and its local rank and device."""
        slow: dict[int, list[bool]] = defaultdict(list)
        ends: dict[int, tuple[int, str]] = {}
        for result in results:
            for rail in self._rails[result]:
                end = rail.hosts.index(host)
                slow[rail.ranks[end]].append(rail.gbps < slow_below_gbps)
                ends[rail.ranks[end]] = (rail.local_ranks[end], rail.devices[end])
        return slow, ends


def _node_fault(told: _NodePairs, standings: Standings, node: int) -> LinkFault:
    slow = standings.with_good_partners(node)
    partners = standings.partners(node)
    among = [r for r in told.results if standings.is_fast(r) and partners.issuperset(r.nodes)]
    end, whole = told.slow_rails(slow, node, standings.slow_below_gbps)
    return LinkFault(
        kind="node",
        ends=(end,),
        partners=tuple(told.hosts[partner] for partner in sorted(partners)),
        whole=whole,
        slow_gbps=statistics.median(result.gbps for result in slow),
        fast_gbps=_median_gbps(among or _fast_of(told, standings, partners)),
        fast_with_each_other=bool(among),
        measurements=len(slow),
    )


def _link_fault(told: _NodePairs, standings: Standings, pair: NodePair) -> LinkFault:
    slow = standings.of_pair(pair)
    (one, whole), (other, _) = (told.slow_rails(slow, node, standings.slow_below_gbps) for node in pair)
    return LinkFault(
        kind="link",
        ends=(one, other),
        partners=(),
        whole=whole,
        slow_gbps=statistics.median(result.gbps for result in slow),
        fast_gbps=_median_gbps(_fast_of(told, standings, pair)),
        fast_with_each_other=False,
        measurements=len(slow),
    )


def _fast_of(told: _NodePairs, standings: Standings, nodes: Iterable[int]) -> list[PairResult]:
    return [r for r in told.results if standings.is_fast(r) and not set(nodes).isdisjoint(r.nodes)]


def _median_gbps(results: Sequence[PairResult]) -> float:
    return statistics.median(result.gbps for result in results)


def listed(names: Sequence[str]) -> str:
    """``n1``, ``n1 and n3`` or ``n1, n2, n3 and 9 more``."""
    shown = list(names[:_PARTNERS_SHOWN])
    if len(names) > _PARTNERS_SHOWN:
        shown.append(f"{len(names) - _PARTNERS_SHOWN} more")
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
