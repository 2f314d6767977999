"""Culprits of slow probes: a GPU, a node, or the link between two GPUs.

All places do the same work at the same time, so the value of a place that misses the bound is compared with the others.
If more than half of them miss it, no culprit is certain, because a wrong bound must not drain a cluster; except that
fewer than half of the nodes may explain all failed pairs between nodes. Neither is a GPU that is within the limit of
its peers: all may be slow, and it the worst of their spread. With several nodes, a node on which all places fail is
named as a whole.

A failed pair blames its link, unless a GPU explains it: a GPU that meets the bound with no partner and misses it with
most of them is named instead of its links. If all failed pairs share one GPU, that GPU is named even if it meets the
bound with some partners, but not as certain. If groups of GPUs are slow with each other, such as the two halves of a
node, no GPU explains it and the links are named.

Pairs between nodes form a ring, so each node has two neighbours. A node that meets the bound with neither is named, as
certain if both neighbours meet it with another node: otherwise they may be the cause. Else the link is named: between
the nodes if all their rails are slow, between GPUs if only some are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_ddpscale.judge.judged import PlaceVerdict
from pytest_ddpscale.judge.probes import JudgedPlace
from pytest_ddpscale.judge.slow_links import with_slow_node_pairs
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.verdicts import Verdict


def with_probe_culprits(
    verdict: Verdict, judged: Sequence[PlaceVerdict], planned: int, evidence: Evidence, limit: float | None = None
) -> Verdict:
    """Add the culprits to a verdict on all places that failed; node pairs show slow links of a group over several.

    `limit` is that by which a GPU may be slower than its peers; without it certainty does not depend on them.
    Between nodes a verdict may be inconclusive because a node's messages stall, so these get what node pairs show too.
    """
    if verdict.outcome == "inconclusive" and judged and (judged[0].place.kind == "gang" or _is_between_nodes(judged)):
        return with_slow_node_pairs(verdict, evidence)
    failed = [place for place in judged if place.is_failed] if verdict.outcome == "failed" else []
    if not failed:
        return verdict
    if failed[0].place.kind == "gang":
        return with_slow_node_pairs(verdict, evidence)
    probe = verdict.id.partition("[")[2].removesuffix("]")
    culprits = tuple(_culprits(judged, _Values(judged, probe, failed[0].unit, limit)))
    are_few = 2 * len(failed) <= planned
    # Where most are undecided, all may be slow alike, of which the first to fail is no worse than the others.
    if (are_few and 2 * sum(one.outcome == "passed" for one in judged) >= len(judged)) or _are_few_nodes(
        culprits, judged
    ):
        return replace(verdict, culprits=culprits)
    uncertain = tuple(replace(culprit, is_certain=False) for culprit in culprits)
    if planned == 1 or are_few:
        return replace(verdict, culprits=uncertain)
    alike = f"{len(failed)} of {planned} {failed[0].place.noun} fail alike"
    note = f"{alike}: is the bound right? This names no culprit for certain"
    return replace(verdict, culprits=uncertain, notes=(*verdict.notes, note))


def shared_end(links: Sequence[JudgedPlace]) -> Place | None:
    """The only GPU that is an end of each of two or more links; None if there is none."""
    common = set.intersection(*(set(link.ends) for link in links)) if len(links) > 1 else set()
    return common.pop() if len(common) == 1 else None


def _are_few_nodes(culprits: Sequence[Culprit], judged: Sequence[PlaceVerdict]) -> bool:
    """Whether fewer than half of the nodes explain all failures between nodes: of three, one fails two pairs."""
    if not _is_between_nodes(judged):
        return False
    hosts = {host for pair in judged for host in _hosts(pair)}
    are_explained = all(culprit.kind == "node" and culprit.is_certain for culprit in culprits)
    return are_explained and 0 < 2 * len(culprits) < len(hosts)


def _is_between_nodes(judged: Sequence[PlaceVerdict]) -> bool:
    return any(place.place.is_between_nodes for place in judged)


class _Values:
    """Values of all places that have one, sorted once, because thousands of failed places may be compared with them."""

    def __init__(self, judged: Sequence[PlaceVerdict], probe: str, unit: str, limit: float | None) -> None:
        self.probe, self.limit, self._unit, self._sorted = probe, limit, unit, sorted(_values_of(judged))

    def beside(self, mine: Sequence[PlaceVerdict]) -> str:
        """``; the median of 7 others is 790 GB/s``; `mine` are places among all."""
        others = len(self._sorted) - len(_values_of(mine))
        if not others:
            return "; no other to compare with"
        whom = "the other one" if others == 1 else f"the median of {others} others"
        return f"; {whom} is {self._of_others(mine):.4g} {self._unit}"

    def is_within(self, one: PlaceVerdict) -> bool:
        """Whether a place is within the limit of the others; not known without a limit, or without others."""
        if self.limit is None or one.value is None or len(self._sorted) < 2:
            return False
        return self._of_others([one]) <= one.value * (1 + self.limit)

    def _of_others(self, mine: Sequence[PlaceVerdict]) -> float:
        """The median of the others, of which there is at least one."""
        own = sorted(_values_of(mine))
        others = len(self._sorted) - len(own)
        return (self._other((others - 1) // 2, own) + self._other(others // 2, own)) / 2

    def _other(self, number: int, own: Sequence[float]) -> float:
        """The value with this number, from 0, among the others in order."""
        for passed, value in enumerate(own):
            first = bisect_left(self._sorted, value) + passed - bisect_left(own, value)
            if first > number:
                break
            number += 1
        return self._sorted[number]


def _values_of(places: Iterable[PlaceVerdict]) -> list[float]:
    return [place.value for place in places if place.value is not None]


def _culprits(judged: Sequence[PlaceVerdict], values: _Values) -> Iterable[Culprit]:
    if _is_between_nodes(judged):
        yield from _between_nodes(judged, values)
        return
    by_host: dict[str, list[PlaceVerdict]] = defaultdict(list)
    for place in judged:
        by_host[place.place.host].append(place)
    for host, theirs in by_host.items():
        failed = [place for place in theirs if place.is_failed]
        if len(by_host) > 1 and len(failed) == len(theirs) > 1:
            what = f"all {len(theirs)} {theirs[0].place.noun} fail {values.probe}, the worst at {_worst(theirs)}"
            yield Culprit("node", (Place(host),), f"{what}{values.beside(theirs)}")
        elif theirs[0].place.kind == "link":
            yield from _of_links(theirs, values)
        else:
            for one in failed:
                where, evidence = one.place, _of_one(one, values)
                if not where.ends:
                    yield Culprit("node", (Place(where.host),), evidence)
                elif values.is_within(one):
                    evidence += f"; within {100 * (values.limit or 0):.3g} % of it, so all may be slow"
                    yield Culprit("gpu", where.ends, evidence, is_certain=False)
                else:
                    yield Culprit("gpu", where.ends, evidence)


def _of_links(pairs: Sequence[PlaceVerdict], values: _Values) -> Iterable[Culprit]:
    """Culprits among the pairs of one node, by the rule of this module."""
    by_end: dict[Place, list[PlaceVerdict]] = defaultdict(list)
    for pair in pairs:
        for end in pair.place.ends:
            by_end[end].append(pair)
    slow = [end for end, own in by_end.items() if _explains_its_pairs(own)]
    for end in slow:
        yield _of_end(end, by_end[end], values, is_certain=True)
    left = [pair for pair in pairs if pair.is_failed and not set(slow) & set(pair.place.ends)]
    shared = shared_end([pair.place for pair in left])
    if shared is not None:
        yield _of_end(shared, by_end[shared], values, is_certain=False)
        return
    yield from (Culprit("link", pair.place.ends, _of_one(pair, values)) for pair in left)


def _between_nodes(pairs: Sequence[PlaceVerdict], values: _Values) -> Iterable[Culprit]:
    """Culprits among the pairs of a ring of nodes, by the rule of this module."""
    by_host: dict[str, list[PlaceVerdict]] = defaultdict(list)
    by_hosts: dict[tuple[str, ...], list[PlaceVerdict]] = defaultdict(list)
    for pair in pairs:
        by_hosts[_hosts(pair)].append(pair)
        for host in _hosts(pair):
            by_host[host].append(pair)
    neighbours = {host: {other for hosts in by_hosts if host in hosts for other in hosts} - {host} for host in by_host}
    good = {host for host, own in by_host.items() if any(pair.outcome == "passed" for pair in own)}
    slow = [host for host, own in by_host.items() if len(neighbours[host]) > 1 and _explains_its_pairs(own)]
    for host in slow:
        evidence = f"{_failed_of(by_host[host], values)}: it is slow with {' and '.join(sorted(neighbours[host]))}"
        yield Culprit("node", (Place(host),), evidence, is_certain=neighbours[host] <= good)
    rails: list[PlaceVerdict] = []
    for hosts, own in by_hosts.items():
        if set(hosts) & set(slow):
            continue
        if len(own) > 1 and all(pair.is_failed for pair in own):
            yield Culprit("link", (Place(hosts[0]), Place(hosts[-1])), _failed_of(own, values))
        else:
            rails += own
    yield from _of_links(rails, values)


def _hosts(pair: PlaceVerdict) -> tuple[str, ...]:
    """Hosts of both ends."""
    return tuple(end.host for end in pair.place.ends)


def _failed_of(own: Sequence[PlaceVerdict], values: _Values) -> str:
    """``2 of its 2 pairs fail all-pairs-64mib, the worst at 0.006 GB/s; the median of 2 others is 0.2 GB/s``."""
    failed = [pair for pair in own if pair.is_failed]
    worst = f"the worst at {_worst(failed)}{values.beside(own)}"
    return f"{len(failed)} of its {len(own)} pairs fail {values.probe}, {worst}"


def _of_one(place: PlaceVerdict, values: _Values) -> str:
    """``all-reduce-16gib-8gpu at 335.6 GB/s; the median of 7 others is 838.9 GB/s``."""
    return f"{values.probe} at {_worst([place])}{values.beside([place])}"


def _explains_its_pairs(own: Sequence[PlaceVerdict]) -> bool:
    """Whether a GPU or node meets the bound with no partner, and misses it with most of several partners."""
    failed = sum(pair.is_failed for pair in own)
    return failed > 1 and 2 * failed > len(own) and all(pair.outcome != "passed" for pair in own)


def _of_end(end: Place, own: Sequence[PlaceVerdict], values: _Values, *, is_certain: bool) -> Culprit:
    evidence = _failed_of(own, values)
    evidence += ": the GPU or its own links are at fault" if is_certain else ": the GPU or these links are at fault"
    return Culprit("gpu", (end,), evidence, is_certain=is_certain)


def _worst(places: Iterable[PlaceVerdict]) -> str:
    """``612 TFLOPS``."""
    worst = min(places, key=lambda place: place.margin)
    return f"{worst.value:.4g} {worst.unit}"
