"""Ranks that fall into two groups, one of them slower, where the rule for single stragglers has no norm.

With half of the ranks slow, the deviation of all others from their median spans both groups and swallows the gap
between them. So the ranks are put in the order of their step times over all rounds and parted where the largest gap
is. They are two groups if

- each has at least two ranks and a quarter of all,
- the fastest rank of the slow one takes longer than the slowest of the fast one by the minimum relative gap, in the
  median over the rounds, and
- in nine tenths of the rounds nine tenths of the slow ones take longer than nine tenths of the fast ones.

Noise alone that differs from round to round does not part the same ranks again and again. Where at least half of the
ranks are slow nobody can say from this which group is as it should be: `Straggler.ambiguous`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from pytest_ddpscale.blame.link_faults import listed
from pytest_ddpscale.blame.stragglers import (
    MINIMUM_RELATIVE_GAP,
    MINIMUM_ROUNDS,
    Place,
    Straggler,
    place_of,
    rounds_needed,
)
from pytest_ddpscale.metrics.rounds import Rounds, mean_step_s
from pytest_ddpscale.results.records import Measurement

_LEAST_SHARE = 0.25  # of all ranks, in each group
_APART = 0.9  # of the ranks of a group that are apart from as many of the other one in a round, and of the rounds


def find_slow_group(measured: Rounds, minimum_relative_gap: float = MINIMUM_RELATIVE_GAP) -> list[Straggler]:
    """The ranks of the slower of two groups, slowest first; none if there are not two by the rule of this module.

    Args:
        measured: rounds of an arm in which every rank computes by itself, as in `find_stragglers`.
        minimum_relative_gap: between the groups, as a fraction.
    """
    ranks = {place_of(rank): rank for number in sorted(measured) for rank in measured[number].ranks}
    times = _relative_times(measured)
    usual = {place: statistics.median(own.values()) for place, own in times.items() if len(own) >= MINIMUM_ROUNDS}
    order = sorted(usual, key=lambda place: usual[place])
    least = max(2, math.ceil(_LEAST_SHARE * len(order)))
    splits = range(least, len(order) - least + 1)
    if not splits:
        return []
    split = max(splits, key=lambda i: usual[order[i]] / usual[order[i - 1]])
    fast, slow = order[:split], order[split:]
    if usual[slow[0]] < (1 + minimum_relative_gap) * usual[fast[-1]]:
        return []
    apart = list(_rounds_apart(measured, fast, slow))
    if sum(apart) < rounds_needed(_APART, len(apart)):
        return []
    norm, others = statistics.median(usual[place] for place in fast), _in_words(fast, slow, ranks)
    return [
        Straggler(
            rank=ranks[place].rank,
            host=ranks[place].host,
            local_rank=ranks[place].local_rank,
            device=ranks[place].device,
            ratio=usual[place] / norm,
            rounds_slow=sum(apart),
            rounds=len(apart),
            peers=len(fast),
            ambiguous=2 * len(slow) >= len(order),
            others=others,
        )
        for place in reversed(slow)
    ]


def _relative_times(measured: Rounds) -> dict[Place, dict[int, float]]:
    """Step times by place and round, relative to the median of the round: what slows all down parts nobody."""
    found: dict[Place, dict[int, float]] = defaultdict(dict)
    for number, arm_round in measured.items():
        median_s = statistics.median(map(mean_step_s, arm_round.ranks))
        for rank in arm_round.ranks:
            found[place_of(rank)][number] = mean_step_s(rank) / median_s
    return found


def _rounds_apart(measured: Rounds, fast: Collection[Place], slow: Collection[Place]) -> Iterator[bool]:
    """Of each round, whether most of both groups are apart in it."""
    groups = {**dict.fromkeys(fast, 0), **dict.fromkeys(slow, 1)}
    for arm_round in measured.values():
        times: tuple[list[float], list[float]] = ([], [])
        for rank in arm_round.ranks:
            if place_of(rank) in groups:
                times[groups[place_of(rank)]].append(mean_step_s(rank))
        if all(times):
            of_fast, of_slow = sorted(times[0]), sorted(times[1], reverse=True)
            yield _at(of_fast) < _at(of_slow)


def _at(ordered: Sequence[float]) -> float:
    """What nine tenths do not go beyond."""
    return ordered[math.ceil(_APART * len(ordered)) - 1]


def _in_words(fast: Sequence[Place], slow: Sequence[Place], ranks: Mapping[Place, Measurement]) -> str:
    """``n0 and n1``; numbers of ranks where both groups are on one host."""
    hosts = sorted({host for host, _, _ in fast})
    is_by_host = not set(hosts) & {host for host, _, _ in slow}
    names = hosts if is_by_host else [f"{number}" for number in sorted(ranks[place].rank for place in fast)]
    words = listed(names)
    return words if is_by_host else f"rank{'s' if len(names) > 1 else ''} {words}"
