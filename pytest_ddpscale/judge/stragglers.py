"""Stragglers: ranks and nodes that compute slower than their peers.

The rule uses arms without communication, because under DDP all ranks run at the pace of the slowest. It compares each
rank, round by round, with the median of all *other* ranks. A slow rank cannot move the median it is compared with, so
up to half of the ranks may be slow and are still found: k/2 fast ranks are a majority among the k - 1 others. The
average of these ratios over the rounds counts (`rank_averages`: the median, so a rank must be slow in half of the
rounds, and a hiccup accuses nobody). A rank is named if

- its average is a minimum relative gap above 1, because GPUs of one node differ and 2 % is no reason to drain one,
- the lower limit of that average is above 1, for all ranks together with the confidence of `rank_averages`, and
- its average is an outlier: it lies above those of the others by four of their robust standard deviations, more among
  few or many ranks. If the others differ little, the deviation is replaced by the root mean square of itself and 0.3 of
  the gap, so ordinary differences between GPUs and noise accuse nobody
  (median absolute deviation times 1.4826: Leys et al., Journal of Experimental Social Psychology 49, 2013).

More rounds make averages sharper: they find more stragglers and accuse fewer others. A rank that meets the rule only in
the last half of the rounds is named too, because it may be getting slower. So is a rank that is slower by twice the gap
in half of the rounds or more while its peers hardly ever are: its average would lie between two states and mean
nothing. From 0.6 of the gap on a rank is watched: it gets a note, but is no reason to drain.

Found: up to half of an even number of ranks, up to (k - 1)/2 of an odd number from 5 up, one of three. Not found: more
than that, because the majority is the baseline here (absolute bounds such as ``throughput_per_gpu`` find it, and
`two_groups` if the slow ranks form a group), and a rank that is slow in fewer rounds. Of two ranks the slower one is
found, but a single peer may as well be unusually fast: such a finding is marked ambiguous and has to be compared with
the floor of the SKU.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.judge.peers import medians_of_others, stdevs_of_others
from pytest_ddpscale.judge.rank_averages import averages_of, median_over_rounds, relative_logs
from pytest_ddpscale.judge.rounds import ArmRounds
from pytest_ddpscale.run.column_record import BoolArray, FloatArray

MINIMUM_RELATIVE_GAP = 0.05
MINIMUM_ROUNDS = 5
WATCHED_SHARE = 0.6  # of the minimum relative gap
# An outlier's distance in robust standard deviations, with 5 ranks or more and with fewer; and the ordinary spread of
# GPUs as a share of the gap, because peers may be alike by chance. In simulation less than 0.8 % of runs name a rank
# if GPUs differ by 1.5 % (benchmarks/straggler_roc.py).
_MAD_FACTOR, _FEW, _FACTOR_OF_FEW = 4.0, 4, 4.75
_USUAL_SPREAD = 0.3
_FALSE_NAMES = 0.005  # share of runs with many normally distributed ranks in which one is named by chance
_FAR = 2.0  # gaps by which a rank that is slow at times must be slower in those rounds
_CHANCE = 0.005  # share of runs in which noise alone may name a rank as slow at times
_MOSTLY = 0.9  # share of rounds that reports call "all"


@dataclass(frozen=True)
class Straggler:
    """A rank that is slower than its peers.

    Attributes:
        rank: global rank.
        host: host name.
        local_rank: rank on its host.
        device: GPU UUID, or ``cpu``.
        ratio: median over all rounds of its step time over the median of its peers'.
        interval: of that ratio, for all ranks together at 95 %.
        ratio_when_slow: the same median over the rounds in which it was slow.
        slow_rounds: numbers of those rounds, in which the ratio was over the middle between 1 and the threshold.
        rounds: number of rounds.
        peers: number of ranks it was compared with.
        ambiguous: the others may be the unusual ones: there is only one peer, or they are no majority.
        is_late: it was slow from some round on, and not before.
        is_held_down: it was throttled by heat, power supply or board when it was slow, and not otherwise.
        others: the faster group, if the ranks fall into two groups; empty if this rank stands out from all.
    """

    rank: int
    host: str
    local_rank: int
    device: str
    ratio: float
    interval: tuple[float, float]
    ratio_when_slow: float
    slow_rounds: tuple[int, ...]
    rounds: int
    peers: int
    ambiguous: bool
    is_late: bool = False
    is_held_down: bool = False
    others: str = ""

    @property
    def evidence(self) -> str:
        """The finding in words: ``1.31× the median of 15 peers in 9 of 9 rounds``."""
        whom = self._whom + (f" ({self.others})" if self.others else "")
        slow = len(self.slow_rounds)
        when = f"the last {slow} of {self.rounds} rounds" if self.is_late else f"{slow} of {self.rounds} rounds"
        share = "" if self.is_late or self.is_slow_throughout else f" ({slow / self.rounds:.0%})"
        why = ", in which heat, power supply or board held it down" if self.is_held_down else ""
        return f"{self.ratio_when_slow:.2f}× {whom} in {when}{share}{why}"

    @property
    def measured(self) -> str:
        """Average slowdown in words: ``1.04× (1.03 … 1.05×) the median of 7 peers``."""
        low, high = self.interval
        return f"{self.ratio:.2f}× ({low:.2f} … {high:.2f}×) {self._whom}"

    @property
    def _whom(self) -> str:
        return "the time of its only peer" if self.peers == 1 else f"the median of {self.peers} peers"

    @property
    def is_slow_throughout(self) -> bool:
        """Whether it was slow in nearly all rounds."""
        return len(self.slow_rounds) >= rounds_needed(_MOSTLY, self.rounds)


@dataclass(frozen=True)
class SlowNode:
    """A host on which all ranks are slow.

    Attributes:
        host: its name.
        stragglers: its ranks, slowest first; at least two.
    """

    host: str
    stragglers: tuple[Straggler, ...]

    @property
    def ratio(self) -> float:
        """Median `Straggler.ratio` of its ranks."""
        return statistics.median(straggler.ratio for straggler in self.stragglers)

    @property
    def evidence(self) -> str:
        """The finding in words: ``all 8 ranks slow, 1.31× the median of their peers``."""
        others = self.stragglers[0].others
        whom = f"their peers ({others})" if others else "their peers"
        return f"all {len(self.stragglers)} ranks slow, {self.ratio:.2f}× the median of {whom}"

    @property
    def ambiguous(self) -> bool:
        """Whether the other hosts may be the unusual ones."""
        return self.stragglers[0].ambiguous


def find_stragglers(measured: ArmRounds, minimum_relative_gap: float = MINIMUM_RELATIVE_GAP) -> list[Straggler]:
    """Ranks that are slower than their peers, slowest first, by the rule of this module.

    Args:
        measured: rounds of an arm in which every rank computes alone, ``each@k`` or ``no_sync@k``.
        minimum_relative_gap: how much slower than the median of its peers a rank has to be, as a fraction.
    """
    has_peers = measured.present.sum(axis=1, keepdims=True) >= 2
    enough = np.flatnonzero((measured.present & has_peers).sum(axis=0) >= MINIMUM_ROUNDS)
    if len(enough) < 2:
        return []
    times_s = measured.mean_step_s[:, enough]
    logs = np.log(times_s / medians_of_others(times_s))
    relative, line = relative_logs(times_s), math.log1p(minimum_relative_gap)
    last = slice(len(logs) // 2, None)
    has_halves = len(logs) >= 2 * MINIMUM_ROUNDS and (~np.isnan(logs[last])).sum(axis=0).min() >= MINIMUM_ROUNDS
    looks = 2 if has_halves else 1
    averages = averages_of(logs, looks)
    named = _stand_out(logs, relative, line, looks)
    if has_halves:
        named |= _stand_out(logs[last], relative[last], line, looks) & _got_slower(logs, line)
    named |= _are_slow_at_times(logs, line)
    found = [_straggler(measured, int(enough[i]), logs[:, i], averages.reach[i], line) for i in np.flatnonzero(named)]
    return sorted(found, key=lambda straggler: (-straggler.ratio, straggler.rank))


def find_watched(
    measured: ArmRounds, named: Iterable[Straggler], minimum_relative_gap: float = MINIMUM_RELATIVE_GAP
) -> list[Straggler]:
    """Ranks that meet the rule with `WATCHED_SHARE` of the gap and are not named, slowest first.

    Args:
        measured: as in `find_stragglers`.
        named: ranks that are named.
        minimum_relative_gap: gap at which ranks are named.
    """
    numbers = {straggler.rank for straggler in named}
    found = find_stragglers(measured, WATCHED_SHARE * minimum_relative_gap)
    return [straggler for straggler in found if straggler.rank not in numbers]


def _stand_out(logs: FloatArray, relative: FloatArray, line: float, looks: int) -> BoolArray:
    """Whether each rank is slow by the rule of this module in these rounds, (ranks,).

    Args:
        logs: logarithms of times over the median of peers, (rounds, ranks).
        relative: logarithms of times over the median rank, the same baseline for all, (rounds, ranks).
        line: logarithm of the smallest ratio that counts.
        looks: number of windows of rounds that are looked at.
    """
    averages, ranks = averages_of(logs, looks), logs.shape[1]
    usual = median_over_rounds(relative)
    excess = usual - medians_of_others(usual[np.newaxis])[0]
    seen = stdevs_of_others(usual)
    spread = np.maximum(seen, np.sqrt((seen**2 + (_USUAL_SPREAD * line) ** 2) / 2))
    is_far = excess > _spread_factor(ranks) * spread
    stands_out: BoolArray = (averages.value >= line) & (averages.value > averages.reach) & is_far
    return stands_out


def _are_slow_at_times(logs: FloatArray, line: float) -> BoolArray:
    """Whether each rank is far over the line in half of the rounds or more, though not in all, (ranks,).

    A binomial test of each rank with Bonferroni correction; the chance is the share of rounds in which its peers are
    over the line, with one added.
    """
    is_slow = logs > line
    rounds, times, ranks = (~np.isnan(logs)).sum(axis=0), is_slow.sum(axis=0), logs.shape[1]
    by_chance = (1 + times.sum() - times) / (1 + rounds.sum() - rounds)
    found = np.zeros(ranks, np.bool_)
    is_at_times = (2 * times >= rounds) & (times >= MINIMUM_ROUNDS) & (times < _MOSTLY * rounds)
    for i in np.flatnonzero(is_at_times):
        n, p = int(rounds[i]), float(by_chance[i])
        tail = math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(int(times[i]), n + 1))
        is_far = np.median(logs[is_slow[:, i], i]) >= _FAR * line
        found[i] = is_far and tail <= _CHANCE / ranks
    return found


def _got_slower(logs: FloatArray, line: float) -> BoolArray:
    """Whether each rank was slower in the last half of the rounds than in the first by half the line, (ranks,).

    Without this condition ordinary differences of ranks would have two chances to look large.
    """
    first, last = logs[: len(logs) // 2], logs[len(logs) // 2 :]
    is_slower: BoolArray = median_over_rounds(last) - median_over_rounds(first) >= line / 2
    return is_slower


def _spread_factor(ranks: int) -> float:
    """Distance of an outlier, in standard deviations of the others."""
    if ranks <= _FEW:
        return _FACTOR_OF_FEW
    return max(_MAD_FACTOR, statistics.NormalDist().inv_cdf(1 - _FALSE_NAMES / ranks))


def _straggler(measured: ArmRounds, column: int, logs: FloatArray, reach: float, line: float) -> Straggler:
    there = np.flatnonzero(~np.isnan(logs))
    is_slow, value = logs[there] > line / 2, float(np.median(logs[there]))
    peers = int(measured.present[there[-1]].sum()) - 1
    return Straggler(
        *measured.ranks.who(column),
        ratio=math.exp(value),
        interval=(math.exp(value - reach), math.exp(value + reach)),
        ratio_when_slow=float(np.exp(np.median(logs[there][is_slow]))),
        slow_rounds=tuple(measured.numbers[there[is_slow]].tolist()),
        rounds=len(there),
        peers=peers,
        ambiguous=peers == 1,
        is_late=_is_late(is_slow),
    )


def _is_late(is_slow: BoolArray) -> bool:
    """Whether a rank was slow in most rounds from some round on, and in hardly any before."""
    slow = int(is_slow.sum())
    before, after = is_slow[: len(is_slow) - slow], is_slow[len(is_slow) - slow :]
    return bool(slow < rounds_needed(_MOSTLY, len(is_slow)) and (~before).mean() >= _MOSTLY and after.mean() >= _MOSTLY)


def slow_nodes(stragglers: Iterable[Straggler], measured: ArmRounds) -> list[SlowNode]:
    """Hosts with two or more ranks that are all slow, while another host is not, slowest first.

    Args:
        stragglers: found by `find_stragglers` in `measured`.
        measured: the same rounds.
    """
    by_host = measured.ranks.by_host
    slow: dict[str, list[Straggler]] = defaultdict(list)
    for straggler in stragglers:
        slow[straggler.host].append(straggler)
    wholly = [host for host, found in slow.items() if len(found) == len(by_host[host])]
    if len(wholly) == len(by_host):
        return []
    nodes = [SlowNode(host, tuple(slow[host])) for host in wholly if len(slow[host]) >= 2]
    return sorted(nodes, key=lambda node: (-node.ratio, node.host))


def slower_than_their_node(node: SlowNode, measured: ArmRounds, minimum_relative_gap: float) -> list[Straggler]:
    """Ranks of a slow node that are slow even compared with its other ranks, by the same rule, slowest first.

    With two ranks the slower one is certain here, because both are slow compared with other nodes.

    Args:
        node: found by `slow_nodes` in `measured`.
        measured: the same rounds.
        minimum_relative_gap: how much slower than the median of the node's other ranks, as a fraction.
    """
    on_node = ArmRounds(measured.measured.of(slice(None), measured.ranks.by_host[node.host]))
    numbers = {straggler.rank for straggler in find_stragglers(on_node, minimum_relative_gap)}
    return [straggler for straggler in node.stragglers if straggler.rank in numbers]


def rounds_needed(share: float, rounds: int) -> int:
    """A share of the rounds, rounded up; 0.7 of 10 is 7, although the floating-point product is slightly more."""
    return math.ceil(share * rounds - 1e-9)
