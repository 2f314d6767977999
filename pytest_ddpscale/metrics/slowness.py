"""How much slower each rank is than a typical one, where all compute by themselves at the same time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import numpy as np

from pytest_ddpscale.metrics.rounds import ArmRounds, on_hosts

Place = tuple[str, int]  # host and local rank: a rank's number may be another one after a relaunch
Slowness = Mapping[Place, float]


def slowness_of(each: ArmRounds) -> dict[Place, float]:
    """Step time of each rank, by its place, over that of the typical one: the median, of two the faster.

    Taken within rounds and averaged over them, so that it varies by little of what a block does.

    Args:
        each: rounds in which every rank computes by itself.
    """
    if not len(each):
        return {}
    logs = np.log(each.mean_step_s)
    means = np.nanmean(logs - np.nanmean(logs, axis=1, keepdims=True), axis=0)
    typical = statistics.median_low(means.tolist())
    return dict(zip(each.ranks.places, map(math.exp, (means - typical).tolist()), strict=True))


def slowness_by_host(each: ArmRounds) -> dict[str, dict[Place, float]]:
    """The same on every host by itself, by its name: ranks are compared with those of their own host."""
    return {host: slowness_of(on_hosts(each, {host})) for host in each.ranks.by_host}
