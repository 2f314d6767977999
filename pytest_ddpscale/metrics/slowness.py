"""How much slower each rank is than a typical one, where all compute by themselves at the same time."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping

from pytest_ddpscale.metrics.rounds import ArmRound, Rounds, mean_step_s
from pytest_ddpscale.results.records import Measurement

Place = tuple[str, int]  # host and local rank
Slowness = Mapping[Place, float]


def place_of(rank: Measurement) -> Place:
    """Where a rank is: its number may be another one after a relaunch."""
    return rank.host, rank.local_rank


def slowness_of(each: Rounds) -> dict[Place, float]:
    """Step time of each rank, by its place, over that of the typical one: the median, of two the faster.

    Taken within rounds and averaged over them, so that it varies by little of what a block does.

    Args:
        each: rounds in which every rank computes by itself.
    """
    found: dict[Place, list[float]] = defaultdict(list)
    for arm_round in each.values():
        steps = [math.log(mean_step_s(rank)) for rank in arm_round.ranks]
        middle = statistics.fmean(steps)
        for rank, step in zip(arm_round.ranks, steps, strict=True):
            found[place_of(rank)].append(step - middle)
    means = {place: statistics.fmean(values) for place, values in found.items()}
    typical = statistics.median_low(means.values()) if means else 0.0
    return {place: math.exp(mean - typical) for place, mean in means.items()}


def slowness_by_host(each: Rounds) -> dict[str, dict[Place, float]]:
    """The same on every host by itself, by its name: ranks are compared with those of their own host."""
    hosts: dict[str, dict[int, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for number, arm_round in each.items():
        for rank in arm_round.ranks:
            hosts[rank.host][number].append(rank)
    return {
        host: slowness_of({number: ArmRound(number, tuple(ranks)) for number, ranks in theirs.items()})
        for host, theirs in hosts.items()
    }
