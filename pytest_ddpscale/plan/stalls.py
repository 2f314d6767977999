"""Nodes whose messages stall: pairs with them are fast at times, but some messages wait far longer than the others.

A node that drops packets does this. If no later packet tells TCP of a loss, it waits for 0.2 s at least (Linux; RFC
6298 asks for 1 s). Some messages take that long, while the fastest, by which a pair is rated, may have lost nothing.

Processes that wait for a core make messages stall too, between any nodes. So results of a node have to stall more often
than those of all other nodes, by Fisher's exact test at `ALPHA` over all nodes together (Bonferroni): a third of them,
three at least, with most of its partners, two at least. Results of a node that was found count no more, so that its
partners are not found in its place. Of two nodes neither can be told.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_ddpscale.plan.rank_pairs import Pair, other_end

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

    found = np.zeros(step_s.shape[:-1], np.bool_)
    if step_s.shape[-1]:
        longest = step_s.max(axis=-1)
        candidates = longest > STALL_S
        typical = np.median(step_s[candidates], axis=-1)
        found[candidates] = longest[candidates] > np.maximum(typical + STALL_S, STALL_RATIO * typical)
    return found


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
    while nodes > 2 and len(named) < nodes // 2 and any(is_stalled for _, is_stalled in left):
        found = _likeliest(left)
        if not found or found[0][0] * nodes > ALPHA:
            return StallSuspects(tuple(named), tuple(sorted(node for _, node in found)))
        named.append(found[0][1])
        left = [one for one in left if named[-1] not in one[0]]
    return StallSuspects(tuple(named))


def _likeliest(results: Sequence[tuple[Pair, bool]]) -> list[tuple[float, int]]:
    """Nodes of which `LEAST_SHARE` of the results stall, after the chance that at least as many do if all nodes' stall
    alike, by Fisher's exact test, one-sided; it is 1 while they are too few to name the node.

    Fisher (1922), "On the interpretation of χ² from contingency tables, and the calculation of P", Journal of the Royal
    Statistical Society 85.
    """
    partners, stalled_with = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for pair, is_stalled in results:
        for node in pair:
            partners[node].append(other_end(pair, node))
            if is_stalled:
                stalled_with[node].append(other_end(pair, node))
    all_stalled, found = sum(is_stalled for _, is_stalled in results), list[tuple[float, int]]()
    for node, stalled in stalled_with.items():
        count, measured, with_whom = len(stalled), len(partners[node]), len(set(stalled))
        if count < LEAST_SHARE * measured:
            continue
        chance = 1.0
        if count >= FEWEST_STALLED and with_whom > 1 and 2 * with_whom > len(set(partners[node])):
            sound = len(results) - all_stalled
            ways = (math.comb(all_stalled, i) * math.comb(sound, measured - i) for i in range(count, measured + 1))
            chance = sum(ways) / math.comb(len(results), measured)
        found.append((chance, node))
    return sorted(found)
