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

import numpy as np

from pytest_ddpscale.blame.link_faults import listed
from pytest_ddpscale.blame.stragglers import MINIMUM_RELATIVE_GAP, MINIMUM_ROUNDS, Straggler, rounds_needed
from pytest_ddpscale.evidence.columns import RankColumns
from pytest_ddpscale.metrics.rounds import ArmRounds
from pytest_ddpscale.results.column_record import FloatArray, IntArray

_LEAST_SHARE = 0.25  # of all ranks, in each group
_APART = 0.9  # of the ranks of a group that are apart from as many of the other one in a round, and of the rounds


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
    usual = np.full(len(measured.ranks), np.nan)
    usual[enough] = np.nanmedian(_relative_times(measured)[:, enough], axis=0)
    order = enough[np.argsort(usual[enough], kind="stable")]
    ordered = usual[order]
    split = least + int(np.argmax(ordered[least : len(order) - least + 1] / ordered[least - 1 : len(order) - least]))
    fast, slow = order[:split], order[split:]
    if usual[slow[0]] < (1 + minimum_relative_gap) * usual[fast[-1]]:
        return []
    apart = _rounds_apart(measured, fast, slow)
    if sum(apart) < rounds_needed(_APART, len(apart)):
        return []
    norm, others, ranks = np.median(usual[fast]), _in_words(fast, slow, measured.ranks), measured.ranks
    return [
        Straggler(
            rank=int(ranks.numbers[i]),
            host=str(ranks.hosts[i]),
            local_rank=int(ranks.local_ranks[i]),
            device=str(ranks.devices[i]),
            ratio=float(usual[i] / norm),
            rounds_slow=sum(apart),
            rounds=len(apart),
            peers=len(fast),
            ambiguous=2 * len(slow) >= len(order),
            others=others,
        )
        for i in reversed(slow.tolist())
    ]


def _relative_times(measured: ArmRounds) -> FloatArray:
    """Step times relative to the median of the round, (rounds, ranks): what slows all down parts nobody."""
    return measured.mean_step_s / np.nanmedian(measured.mean_step_s, axis=1, keepdims=True)


def _rounds_apart(measured: ArmRounds, fast: IntArray, slow: IntArray) -> list[bool]:
    """Of each round that both groups took part in, whether most of both are apart in it."""
    found = []
    for times_s, there in zip(measured.mean_step_s, measured.present, strict=True):
        of_fast, of_slow = np.sort(times_s[fast[there[fast]]]), np.sort(times_s[slow[there[slow]]])[::-1]
        if len(of_fast) and len(of_slow):
            found.append(bool(_at(of_fast) < _at(of_slow)))
    return found


def _at(ordered: FloatArray) -> float:
    """What nine tenths do not go beyond."""
    return float(ordered[math.ceil(_APART * len(ordered)) - 1])


def _in_words(fast: IntArray, slow: IntArray, ranks: RankColumns) -> str:
    """``n0 and n1``; numbers of ranks where both groups are on one host."""
    hosts = sorted(set(ranks.hosts[fast].tolist()))
    is_by_host = not set(hosts) & set(ranks.hosts[slow].tolist())
    names = hosts if is_by_host else [f"{number}" for number in sorted(ranks.numbers[fast].tolist())]
    words = listed(names)
    return words if is_by_host else f"rank{'s' if len(names) > 1 else ''} {words}"
