"""Stragglers: ranks and nodes that are slower than their peers, each by its own pace.

Who is slow says `peers.compare` with the limit of ``peers:``: a rank whose interval lies beyond the limit is named.
With too few peers for that rule (of two, three or four ranks) such a rank is a suspect: the others may be the unusual
ones, and the floor of the SKU decides. A rank is also named if it is beyond in the last half of the rounds and not
before, because it may be getting slower; and if it is slower by twice the limit in a quarter of the rounds or more
while its peers hardly ever are: its average lies between two states and means nothing.

A rank within the limit that stands out is watched, which is a remark: its average is above 0.6 of the limit, and
certainly above 1.

With half of the ranks slow the median of the others lies between both groups. So the ranks are also sorted by their
averages and split at the largest gap. They are two groups if

- each has at least two ranks and a quarter of all,
- the medians of the groups differ by 0.6 of the limit, clear of noise, and
- the slowest fast rank and the fastest slow rank differ by most of that, and by half of the distance of the medians: an
  even spread has no such gap.

Noise that changes from round to round does not separate the same ranks on average. If at least half of the ranks are
slow, it is unknown which group is normal; and groups closer than the limit accuse nobody.

Found: up to half of an even number of ranks, up to (k - 1)/2 of an odd number from 5 up, one of three. More than that
are the baseline here, and absolute bounds such as ``throughput_per_gpu`` find them.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pytest_ddpscale.judge.peers import (
    FEWEST_PEERS,
    FEWEST_PEERS_OF_FAR,
    MINIMUM_ROUNDS,
    averages_of,
    compare,
    median_over_rounds,
    medians_of_others,
    relative_logs,
)
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, IntArray
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

WATCHED_SHARE = 0.6  # of the limit
_FAR = 2.0  # limits by which a rank that is slow at times must be slower in those rounds
_CHANCE = 0.005  # share of runs in which noise alone may name a rank as slow at times
# Least share and number of rounds in which it must be, so that no hiccup is taken for a fault.
_AT_TIMES, _FEWEST_TIMES = 0.25, 3
_MOSTLY = 0.9  # share of rounds that reports call "all"
_MOST_SHOWN = 8  # hosts or ranks of a group that are listed
_LEAST_SHARE = 0.25  # of all ranks, in each of two groups
# Least gap between the nearest ranks of the groups: share of the least distance of the medians, and of the distance.
_LEAST_GAP, _LEAST_SHARE_OF_DISTANCE = 0.8, 0.5


@dataclass(frozen=True)
class Straggler:
    """A rank that is slower than its peers.

    Attributes:
        rank: global rank.
        culprit: the rank's device as a culprit: its slowdown and evidence are those of the rounds in which it was slow.
        ratio: median over all rounds of its step time over the median of its peers'.
        interval: of that ratio, for all ranks together at 95 %.
        ambiguous: the others may be the unusual ones: they are few, or no majority.
        mean_ratio: mean over all rounds instead: what it costs those who wait for it, also if it is slow at times.
        others: the faster group, if the ranks fall into two groups; empty if this rank stands out from all.
    """

    rank: int
    culprit: Culprit
    ratio: float
    interval: tuple[float, float]
    ambiguous: bool
    mean_ratio: float
    others: str = ""

    @property
    def host(self) -> str:
        """Host name."""
        return self.culprit.host

    @property
    def measured(self) -> str:
        """Average slowdown in words: ``1.04× (1.03 … 1.05×) the median of 7 peers``."""
        low, high = self.interval
        return f"{self.ratio:.2f}× ({low:.2f} … {high:.2f}×) {_whom(self.culprit.peers)}"

    @property
    def is_slow_throughout(self) -> bool:
        """Whether it was slow in nearly all rounds."""
        return _are_mostly(self.culprit.slow_rounds or 0, self.culprit.rounds or 0)


def stragglers_of(measured: ArmRounds, limit: float) -> list[Straggler]:
    """Ranks that compute slowly, slowest first: those that are beyond their peers, or the slower of two groups.

    Args:
        measured: rounds in which every rank works at its own pace.
        limit: by which a rank may be slower than its peers, 0.05 for 5 %; infinite if none is ever too slow.
    """
    found, group = find_stragglers(measured, limit), find_slow_group(measured, limit)
    return group if len(group) > len(found) or any(straggler.ambiguous for straggler in group) else found


def find_stragglers(measured: ArmRounds, limit: float) -> list[Straggler]:
    """Ranks that are slower than their peers by more than the limit, slowest first."""
    return _found(measured, limit, _beyond)


def find_slow_at_times(measured: ArmRounds, limit: float) -> list[Straggler]:
    """Ranks that are far slower than their peers in some of the rounds, and hardly ever in the others."""
    return _found(measured, limit, _none)


def find_watched(measured: ArmRounds, named: Iterable[Straggler], limit: float) -> list[Straggler]:
    """Ranks that stand out by `WATCHED_SHARE` of the limit and are not named, slowest first."""
    numbers = {straggler.rank for straggler in named}
    found = _found(measured, WATCHED_SHARE * limit, _stand_out)
    return [straggler for straggler in found if straggler.rank not in numbers]


# Which ranks are slow in some rounds, which are one of several looks, and which of those for certain, (ranks,) each.
# Takes times of ranks, (rounds, ranks), the limit and the looks.
_Rule: TypeAlias = Callable[[FloatArray, float, int], tuple[BoolArray, BoolArray]]


def _found(measured: ArmRounds, limit: float, rule: _Rule) -> list[Straggler]:
    """Ranks that are slow by a rule in all rounds, in the last half, or at times, slowest first."""
    has_peers = measured.present.sum(axis=1, keepdims=True) >= 2
    enough = np.flatnonzero((measured.present & has_peers).sum(axis=0) >= MINIMUM_ROUNDS)
    if len(enough) < 2 or math.isinf(limit):
        return []
    times_s = measured.mean_step_s[:, enough]
    logs, line = np.log(times_s / medians_of_others(times_s)), math.log1p(limit)
    last = slice(len(logs) // 2, None)
    has_halves = len(logs) >= 2 * MINIMUM_ROUNDS and (~np.isnan(logs[last])).sum(axis=0).min() >= MINIMUM_ROUNDS
    named, certain = rule(times_s, limit, 1)  # all that fails uniformity
    if has_halves:
        # Without the condition, and at one look, ordinary differences of ranks would have two chances to look large.
        got_slower = median_over_rounds(logs[last]) - median_over_rounds(logs[: last.start]) >= line / 2
        lately, lately_certain = rule(times_s[last], limit, 2)
        named, certain = named | (lately & got_slower), certain | (lately_certain & got_slower)
    peers = _peers_of(measured.present[:, enough])
    at_times = _are_slow_at_times(logs, line)
    named, certain = named | at_times, certain | (at_times & (peers >= FEWEST_PEERS_OF_FAR))
    (values, reaches), found = averages_of(logs), []
    for i in np.flatnonzero(named).tolist():
        of_rank = logs[:, i], values[i], reaches[i]
        is_doubtful = not certain[i]
        found.append(_straggler(measured, enough[i], *of_rank, line / 2, int(peers[i]), ambiguous=is_doubtful))
    return sorted(found, key=lambda straggler: (-straggler.ratio, straggler.rank))


def _peers_of(present: BoolArray) -> IntArray:
    """Number of others beside each rank in its last round, (ranks,)."""
    last = len(present) - 1 - np.argmax(present[::-1], axis=0)
    return np.asarray(present.sum(axis=1)[last] - 1)


def _beyond(times_s: FloatArray, limit: float, looks: int) -> tuple[BoolArray, BoolArray]:
    """A `_Rule`: that of `peers`; with too few peers for it a rank is a suspect."""
    compared = compare(times_s, limit, looks=looks)
    suspects = (compared.peers < FEWEST_PEERS) & (compared.low > 1 + limit)
    if 2 * (compared.low > 1).sum() > len(suspects):  # what most do is the norm
        suspects[:] = False
    return compared.beyond | suspects, compared.beyond


def _none(times_s: FloatArray, limit: float, looks: int) -> tuple[BoolArray, BoolArray]:
    """A `_Rule` by which no rank is slow in all of its rounds."""
    nobody = np.zeros(times_s.shape[1], np.bool_)
    return nobody, nobody


def _stand_out(times_s: FloatArray, limit: float, looks: int) -> tuple[BoolArray, BoolArray]:
    """A `_Rule`: slower than the line and certainly than peers; none is certain to be at fault."""
    logs, line = np.log(times_s / medians_of_others(times_s)), math.log1p(limit)
    values, reaches = averages_of(logs, looks)
    return np.asarray((values >= line) & (values > reaches)), np.zeros(logs.shape[1], np.bool_)


def _are_slow_at_times(logs: FloatArray, line: float) -> BoolArray:
    """Whether each rank is far over the line in `_AT_TIMES` of the rounds or more, though not in all, (ranks,).

    A binomial test of each rank with Bonferroni correction; the chance is the share of rounds in which its peers are
    over the line, with one added.
    """
    is_slow = logs > line
    rounds, times, ranks = (~np.isnan(logs)).sum(axis=0), is_slow.sum(axis=0), logs.shape[1]
    by_chance = (1 + times.sum() - times) / (1 + rounds.sum() - rounds)
    found = np.zeros(ranks, np.bool_)
    is_at_times = (times >= _AT_TIMES * rounds) & (times >= _FEWEST_TIMES) & (times < _MOSTLY * rounds)
    for i in np.flatnonzero(is_at_times):
        n, p = int(rounds[i]), float(by_chance[i])
        tail = math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(int(times[i]), n + 1))
        is_far = np.median(logs[is_slow[:, i], i]) >= _FAR * line
        found[i] = is_far and tail <= _CHANCE / ranks
    return found


def find_slow_group(measured: ArmRounds, limit: float) -> list[Straggler]:
    """The ranks of the slower of two groups, slowest first; none if there are not two by the rule of this module."""
    enough = np.flatnonzero(measured.present.sum(axis=0) >= MINIMUM_ROUNDS)
    least = max(2, math.ceil(_LEAST_SHARE * len(enough)))
    if len(enough) < 2 * least or math.isinf(limit):
        return []
    logs, line = relative_logs(measured.mean_step_s[:, enough]), math.log1p(WATCHED_SHARE * limit)
    values, reaches = averages_of(logs)
    order = np.argsort(values, kind="stable")
    split = least + int(np.argmax(np.diff(values[order])[least - 1 : len(order) - least]))
    fast, slow = order[:split], order[split:]
    norm, norm_of_slow = float(np.median(values[fast])), float(np.median(values[slow]))
    distance, gap = norm_of_slow - norm, values[slow[0]] - values[fast[-1]]
    reach = math.sqrt(2) * np.median(reaches)  # for two single ranks; that of medians is smaller
    least_gap = max(_LEAST_GAP * line, _LEAST_SHARE_OF_DISTANCE * distance)
    if not (distance >= line and distance > reach and gap >= least_gap):
        return []
    ranks = measured.ranks
    hosts, slow_hosts = (set(ranks.hosts[enough[group]].tolist()) for group in (fast, slow))
    others = first_few(sorted(hosts), _MOST_SHOWN)
    if hosts & slow_hosts:
        others = in_ranks(ranks.numbers[enough[fast]].tolist())
    return [
        _straggler(
            measured, enough[i], logs[:, i], values[i] - norm, reaches[i], (norm + norm_of_slow) / 2, len(fast), norm,
            others, ambiguous=2 * len(slow) >= len(enough) or distance < math.log1p(limit),
        )
        for i in reversed(slow.tolist())
    ]  # fmt: skip


def groups_text(found: Sequence[Straggler], nodes: Collection[str]) -> str:
    """``two groups of ranks: n0, n1 and n2, n3, 1.06× apart even without communication``.

    Args:
        found: the slower group.
        nodes: on which all ranks are slow.
    """
    all_in_nodes = set(nodes) == {straggler.host for straggler in found}
    slower = first_few(sorted(nodes)) if all_in_nodes else in_ranks([straggler.rank for straggler in found])
    ratio = statistics.median(straggler.ratio for straggler in found)
    return f"two groups of ranks: {found[0].others} and {slower}, {ratio:.2f}× apart even without communication"


def in_ranks(numbers: Sequence[int]) -> str:
    """``ranks 0, 2``."""
    return "ranks " + first_few([f"{number}" for number in sorted(numbers)], _MOST_SHOWN)


def _straggler(
    measured: ArmRounds, column: int, logs: FloatArray, value: float, reach: float, line: float, peers: int,
    norm: float = 0.0, others: str = "", *, ambiguous: bool,
) -> Straggler:  # fmt: skip
    """The rank of a column, with the average of its logs over its peers' norm; it was slow where these are over a line.

    `others` are its peers, if they are one of two groups.
    """
    there = ~np.isnan(logs)
    is_slow, rounds = logs[there] > line, int(there.sum())
    slow_rounds = int(is_slow.sum())
    ratio_when_slow = float(np.exp(np.median(logs[there][is_slow]) - norm))
    when, share = f"{slow_rounds} of {rounds} rounds", f" ({percent(slow_rounds / rounds)})"
    since = rounds - slow_rounds
    if _are_mostly(slow_rounds, rounds):
        share = ""
    elif not others and (~is_slow[:since]).mean() >= _MOSTLY and is_slow[since:].mean() >= _MOSTLY:
        when, share = f"the last {when}", ""
    whom = f"{_whom(peers)} ({others})" if others else _whom(peers)
    rank, place = measured.ranks.who(column)
    culprit = Culprit(
        "gpu", (place,), f"{ratio_when_slow:.2f}× {whom} in {when}{share}",
        slowdown=ratio_when_slow, peers=peers, slow_rounds=slow_rounds, rounds=rounds,
    )  # fmt: skip
    interval = math.exp(value - reach), math.exp(value + reach)
    mean_ratio = math.exp(float(logs[there].mean()) - norm)
    return Straggler(rank, culprit, math.exp(value), interval, ambiguous, mean_ratio, others)


def _whom(peers: int | None) -> str:
    return "the time of its only peer" if peers == 1 else f"the median of {peers} peers"


def _are_mostly(slow: int, rounds: int) -> bool:
    """Whether these are nearly all rounds; 0.7 of 10 is 7, although the floating-point product is slightly more."""
    return slow >= math.ceil(_MOSTLY * rounds - 1e-9)


def slow_nodes(stragglers: Iterable[Straggler], measured: ArmRounds) -> dict[str, list[Straggler]]:
    """Hosts with two or more ranks that are all slow, while another host is not, slowest first, with these ranks."""
    by_host = measured.ranks.by_host
    slow: dict[str, list[Straggler]] = defaultdict(list)
    for straggler in stragglers:
        slow[straggler.host].append(straggler)
    wholly = {host: found for host, found in slow.items() if len(found) == len(by_host.get(host, ()))}
    if len(wholly) == len(by_host):
        return {}
    nodes = [(-_ratio(found), host) for host, found in wholly.items() if len(found) >= 2]
    return {host: wholly[host] for _, host in sorted(nodes)}


def node_culprit(ranks: Sequence[Straggler]) -> Culprit:
    """A host as a culprit, from its ranks."""
    first = ranks[0]
    whom = f"their peers ({first.others})" if first.others else "their peers"
    evidence = f"all {len(ranks)} ranks slow, {_ratio(ranks):.2f}× the median of {whom}"
    return Culprit("node", (Place(first.host),), evidence, slowdown=_ratio(ranks))


def _ratio(ranks: Sequence[Straggler]) -> float:
    return statistics.median(straggler.ratio for straggler in ranks)
