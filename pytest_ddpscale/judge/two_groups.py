"""Ranks that fall into a fast and a slow group, where the rule for single stragglers has no baseline.

With half of the ranks slow, the deviation of all others from their median spans both groups and hides the gap between
them. So the ranks are sorted by their averages over all rounds and split at the largest gap. They are two groups if

- each has at least two ranks and a quarter of all,
- the medians of the groups differ by the minimum relative gap, with the confidence of `rank_averages`, and
- the slowest fast rank and the fastest slow rank differ by most of that gap, and by half of the distance of the
  medians: an even spread has no such gap.

Noise that changes from round to round does not separate the same ranks on average. If at least half of the ranks are
slow, it is unknown which group is normal: `Straggler.ambiguous`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pytest_ddpscale.judge.rank_averages import RankAverages, averages_of, relative_logs
from pytest_ddpscale.judge.rounds import ArmRounds
from pytest_ddpscale.judge.stragglers import MINIMUM_RELATIVE_GAP, MINIMUM_ROUNDS, Straggler
from pytest_ddpscale.run.column_record import FloatArray, IntArray
from pytest_ddpscale.run.rank_columns import RankColumns
from pytest_ddpscale.util.listing import first_few

_MOST_SHOWN = 8  # hosts or ranks of a group that are listed
_LEAST_SHARE = 0.25  # of all ranks, in each group
# Least gap between the nearest ranks of the groups: share of the minimum relative gap, and of the medians' distance.
_LEAST_GAP, _LEAST_SHARE_OF_DISTANCE = 0.8, 0.5


def find_slow_group(measured: ArmRounds, minimum_relative_gap: float = MINIMUM_RELATIVE_GAP) -> list[Straggler]:
    """The ranks of the slower of two groups, slowest first; none if there are not two by the rule of this module.

    Args:
        measured: rounds of an arm in which every rank computes alone, as in `find_stragglers`.
        minimum_relative_gap: between the groups, as a fraction.
    """
    enough = np.flatnonzero(measured.present.sum(axis=0) >= MINIMUM_ROUNDS)
    least = max(2, math.ceil(_LEAST_SHARE * len(enough)))
    if len(enough) < 2 * least:
        return []
    logs = relative_logs(measured.mean_step_s[:, enough])
    averages = averages_of(logs)
    order = np.argsort(averages.value, kind="stable")
    gaps = np.diff(averages.value[order])
    split = least + int(np.argmax(gaps[least - 1 : len(order) - least]))
    fast, slow = order[:split], order[split:]
    if not _are_apart(averages, fast, slow, math.log1p(minimum_relative_gap)):
        return []
    return _stragglers(measured, enough, logs, averages, fast, slow)


def _are_apart(averages: RankAverages, fast: IntArray, slow: IntArray, line: float) -> bool:
    """Whether two groups, each sorted from its fastest to its slowest rank, are far enough apart."""
    distance = np.median(averages.value[slow]) - np.median(averages.value[fast])
    reach = math.sqrt(2) * np.median(averages.reach)  # for two single ranks; that of medians is smaller
    gap = averages.value[slow[0]] - averages.value[fast[-1]]
    least = max(_LEAST_GAP * line, _LEAST_SHARE_OF_DISTANCE * distance)
    return bool(distance >= line and distance > reach and gap >= least)


def _stragglers(
    measured: ArmRounds, columns: IntArray, logs: FloatArray, averages: RankAverages, fast: IntArray, slow: IntArray
) -> list[Straggler]:
    """The slow ranks as stragglers, slowest first.

    Args:
        measured: all ranks.
        columns: columns of the compared ranks.
        logs: of the compared ranks, (rounds, ranks).
        averages: of the compared ranks.
        fast: indices of the fast ranks among them.
        slow: indices of the slow ranks, from the fastest to the slowest.
    """
    norm = float(np.median(averages.value[fast]))
    line = (norm + np.median(averages.value[slow])) / 2
    others = _in_words(columns[fast], columns[slow], measured.ranks)
    found = []
    for i in reversed(slow.tolist()):
        column, there = columns[i], ~np.isnan(logs[:, i])
        is_slow = logs[there, i] > line
        value, reach = averages.value[i] - norm, averages.reach[i]
        straggler = Straggler(
            *measured.ranks.who(column),
            ratio=math.exp(value),
            interval=(math.exp(value - reach), math.exp(value + reach)),
            ratio_when_slow=float(np.exp(np.median(logs[there, i][is_slow]) - norm)),
            slow_rounds=tuple(measured.numbers[there][is_slow].tolist()),
            rounds=int(there.sum()),
            peers=len(fast),
            ambiguous=2 * len(slow) >= len(columns),
            others=others,
        )
        found.append(straggler)
    return found


def _in_words(fast: IntArray, slow: IntArray, ranks: RankColumns) -> str:
    """Hosts of the fast group, ``n0, n1``; rank numbers if the groups share a host."""
    hosts = sorted(set(ranks.hosts[fast].tolist()))
    if not set(hosts) & set(ranks.hosts[slow].tolist()):
        return first_few(hosts, _MOST_SHOWN)
    return in_ranks(ranks.numbers[fast].tolist())


def in_ranks(numbers: Sequence[int]) -> str:
    """``ranks 0, 2``."""
    return "ranks " + first_few([f"{number}" for number in sorted(numbers)], _MOST_SHOWN)
