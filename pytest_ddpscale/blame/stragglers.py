"""Ranks, and nodes, that compute slower than their peers.

Told from arms without communication: under DDP all ranks take the step of the slowest. The rule compares each
rank, round by round, with the median of all *other* ranks. Left out of its own yardstick, a slow rank cannot
widen it, and half of the ranks may be slow and are still caught: k/2 fast ones are then a majority among the
k - 1 others. It is over the line in a round if it is slower than that median by

- a minimum relative gap, because GPUs of one node differ and nobody is to be drained for 2 %, and
- `mad_factor` robust standard deviations of the others, so that on a noisy machine the line moves away
  (median absolute deviation times 1.4826: Leys et al., Journal of Experimental Social Psychology 49, 2013),

and it is named if it is over the line in enough of the rounds, so that one hiccup accuses nobody.

Caught: any number of slow ranks up to half of an even number of ranks, and up to (k - 1)/2 of an odd number
from 5 up; one of three. Not caught: more than that, for what most ranks do is the norm here (absolute
bounds such as ``throughput_per_gpu`` see it), and a rank that is slow in fewer rounds than the rule asks for.
Of two ranks the slower one is found, but with a single peer nobody can say whether the other is unusually
fast: such a finding is marked, and wants a comparison with what the SKU should do. With exactly half of the
ranks slow, the fast half's whole range is what the robust deviation sees, so that the slowness has to stand
out from it by `mad_factor`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.metrics.peers import Peers
from pytest_ddpscale.metrics.rounds import ArmRounds
from pytest_ddpscale.results.column_record import BoolArray, FloatArray

MINIMUM_RELATIVE_GAP = 0.05
MAD_FACTOR = 4.0
MINIMUM_ROUNDS = 5
MINIMUM_SHARE = 0.75


@dataclass(frozen=True)
class Straggler:
    """A rank that is slower than its peers.

    Attributes:
        rank: global rank.
        host: host name.
        local_rank: rank on its host.
        device: GPU UUID, or ``cpu``.
        ratio: median over all rounds of its step time over the median of its peers'.
        rounds_slow: in how many rounds it was over the line.
        rounds: how many there were.
        peers: how many ranks it was compared with.
        ambiguous: it may be the others that are unusual: there is but one peer, or they are no majority.
        others: who they are, where the ranks fall into two groups; empty where this rank stands out from all.
    """

    rank: int
    host: str
    local_rank: int
    device: str
    ratio: float
    rounds_slow: int
    rounds: int
    peers: int
    ambiguous: bool
    others: str = ""

    @property
    def evidence(self) -> str:
        """What was seen: ``1.31× the median of 15 peers in 9 of 9 rounds``."""
        whom = "the time of its only peer" if self.peers == 1 else f"the median of {self.peers} peers"
        if self.others:
            whom += f" ({self.others})"
        return f"{self.ratio:.2f}× {whom} in {self.rounds_slow} of {self.rounds} rounds"


@dataclass(frozen=True)
class SlowNode:
    """A host all of whose ranks are slow.

    Attributes:
        host: its name.
        stragglers: its ranks, slowest first; at least two.
    """

    host: str
    stragglers: tuple[Straggler, ...]

    @property
    def ratio(self) -> float:
        """Median over its ranks of their `Straggler.ratio`."""
        return statistics.median(straggler.ratio for straggler in self.stragglers)

    @property
    def evidence(self) -> str:
        """What was seen: ``all 8 ranks slow, 1.31× the median of their peers``."""
        others = self.stragglers[0].others
        whom = f"their peers ({others})" if others else "their peers"
        return f"all {len(self.stragglers)} ranks slow, {self.ratio:.2f}× the median of {whom}"

    @property
    def ambiguous(self) -> bool:
        """Whether it may be the others that are unusual."""
        return self.stragglers[0].ambiguous


def find_stragglers(
    measured: ArmRounds,
    minimum_relative_gap: float = MINIMUM_RELATIVE_GAP,
    mad_factor: float = MAD_FACTOR,
    minimum_rounds: int = MINIMUM_ROUNDS,
    minimum_share: float = MINIMUM_SHARE,
) -> list[Straggler]:
    """Ranks that are slower than their peers, slowest first, by the rule of this module.

    Args:
        measured: rounds of an arm in which every rank computes by itself, ``each@k`` or ``no_sync@k``.
        minimum_relative_gap: how much slower than the median of its peers a rank has to be, as a fraction.
        mad_factor: the same in robust standard deviations of the peers.
        minimum_rounds: fewer rounds accuse nobody.
        minimum_share: share of its rounds in which a rank has to be over the line, rounded up.
    """
    ratio, is_slow = _against_peers(measured, minimum_relative_gap, mad_factor)
    compared = ~np.isnan(ratio)
    rounds, slow = compared.sum(axis=0), is_slow.sum(axis=0)
    needed = [rounds_needed(minimum_share, count) for count in range(len(measured) + 1)]
    named = np.flatnonzero((rounds >= max(minimum_rounds, 1)) & (slow >= np.array(needed)[rounds]))
    found = []
    for i in named.tolist():
        last = np.flatnonzero(compared[:, i])[-1]
        peers = int(measured.present[last].sum()) - 1
        straggler = Straggler(
            rank=int(measured.ranks.numbers[i]),
            host=str(measured.ranks.hosts[i]),
            local_rank=int(measured.ranks.local_ranks[i]),
            device=str(measured.ranks.devices[i]),
            ratio=float(np.nanmedian(ratio[:, i])),
            rounds_slow=int(slow[i]),
            rounds=int(rounds[i]),
            peers=peers,
            ambiguous=peers == 1,
        )
        found.append(straggler)
    return sorted(found, key=lambda straggler: (-straggler.ratio, straggler.rank))


def slow_nodes(stragglers: Iterable[Straggler], measured: ArmRounds) -> list[SlowNode]:
    """Hosts of two or more ranks all of which are slow, while another host is not, slowest first.

    Args:
        stragglers: as `find_stragglers` found them in `measured`.
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


def _against_peers(measured: ArmRounds, minimum_relative_gap: float, mad_factor: float) -> tuple[FloatArray, BoolArray]:
    """Step time of each rank over the median of its peers, NaN without any, and whether that is over the line."""
    ratio = np.full(measured.present.shape, np.nan)
    is_slow = np.zeros(measured.present.shape, np.bool_)
    for row, there in enumerate(measured.present):
        if there.sum() < 2:
            continue
        times_s = measured.mean_step_s[row, there]
        peers = Peers(times_s)
        median_s = peers.median_s(times_s)
        excess_s = times_s - median_s
        ratio[row, there] = times_s / median_s
        is_slow[row, there] = excess_s >= minimum_relative_gap * median_s
        is_slow[row, there] &= excess_s > mad_factor * peers.stdev_s(times_s)
    return ratio, is_slow


def rounds_needed(share: float, rounds: int) -> int:
    """A share of the rounds, rounded up; 0.7 of 10 is 7, although the product in floating point is more."""
    return math.ceil(share * rounds - 1e-9)
