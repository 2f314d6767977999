"""Ranks that fall into two groups, one of them slower, where the rule for single stragglers has no norm.

With half of the ranks slow, the deviation of all others from their median spans both groups and swallows the gap
between them. So the ranks are put in the order of their averages over all rounds and parted where the largest gap is.
They are two groups if

- each has at least two ranks and a quarter of all,
- the medians of the groups are apart by the minimum relative gap, with the confidence of `rank_averages`, and
- the slowest of the fast ones and the fastest of the slow ones are apart by most of that gap, and by half of what the
  medians are: an even spread has no such place.

Noise alone that differs from round to round does not part the same ranks on average. Where at least half of the
ranks are slow nobody can say from this which group is as it should be: `Straggler.ambiguous`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pytest_ddpscale.blame.rank_averages import RankAverages, averages_of, relative_logs
from pytest_ddpscale.blame.stragglers import MINIMUM_RELATIVE_GAP, MINIMUM_ROUNDS, Straggler
from pytest_ddpscale.evidence.columns import RankColumns
from pytest_ddpscale.metrics.rounds import ArmRounds
from pytest_ddpscale.results.column_record import FloatArray, IntArray
from pytest_ddpscale.util.listing import first_few

_MOST_SHOWN = 8  # hosts or ranks of a group that are written out
_LEAST_SHARE = 0.25  # of all ranks, in each group
# Between the nearest ranks of the groups: of the minimum relative gap, and of the distance of their medians.
_LEAST_GAP, _LEAST_SHARE_OF_DISTANCE = 0.8, 0.5


def find_slow_group(measured: ArmRounds, minimum_relative_gap: float = MINIMUM_RELATIVE_GAP) -> list[Straggler]:
    """The ranks of the slower of two groups, slowest first; none if there are not two by the rule of this module.

    Args:
        measured: rounds of an arm in which every rank computes by itself, as in `find_stragglers`.
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
    """Whether two groups, each from its fastest to its slowest rank, are far enough apart."""
    distance = np.median(averages.value[slow]) - np.median(averages.value[fast])
    reach = math.sqrt(2) * np.median(averages.reach)  # of the difference of two ranks, more than that of medians
    gap = averages.value[slow[0]] - averages.value[fast[-1]]
    least = max(_LEAST_GAP * line, _LEAST_SHARE_OF_DISTANCE * distance)
    return bool(distance >= line and distance > reach and gap >= least)


def _stragglers(
    measured: ArmRounds, columns: IntArray, logs: FloatArray, averages: RankAverages, fast: IntArray, slow: IntArray
) -> list[Straggler]:
    """The slow ones as they are named, slowest first.

    Args:
        measured: all ranks.
        columns: of the ranks in question.
        logs: of these, (rounds, ranks).
        averages: of these.
        fast: which of these are the fast ones.
        slow: which are not, from the fastest to the slowest.
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
    """``n0, n1``; numbers of ranks where both groups are on one host."""
    hosts = sorted(set(ranks.hosts[fast].tolist()))
    if not set(hosts) & set(ranks.hosts[slow].tolist()):
        return first_few(hosts, _MOST_SHOWN)
    return in_ranks(ranks.numbers[fast].tolist())


def in_ranks(numbers: Sequence[int]) -> str:
    """``ranks 0, 2``."""
    return "ranks " + first_few([f"{number}" for number in sorted(numbers)], _MOST_SHOWN)
