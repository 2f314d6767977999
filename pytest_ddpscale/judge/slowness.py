"""How much slower each rank is than a typical one when all compute alone at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pytest_ddpscale.judge.rounds import ArmRounds
from pytest_ddpscale.run.column_record import FloatArray, IntArray

Place = tuple[str, int]  # host and local rank: a relaunch may renumber ranks
Slowness = Mapping[Place, float]


def slowness_of(each: ArmRounds) -> dict[Place, float]:
    """Step time of each rank over that of the median rank (the faster of two middle ones), by place.

    Ratios are taken within rounds and averaged over them, which cancels variation common to a round.

    Args:
        each: rounds in which every rank computes alone.
    """
    return _slowness(each, [np.arange(len(each.ranks))]) if len(each) else {}


def slowness_within_hosts(each: ArmRounds) -> dict[Place, float]:
    """`slowness_of` within each host: ranks are compared with those of their own host."""
    by_size: dict[int, list[IntArray]] = {}
    for columns in each.ranks.by_host.values():
        by_size.setdefault(len(columns), []).append(columns)
    found: dict[Place, float] = {}
    for groups in by_size.values():
        found |= _slowness(each, groups)
    return found


def _slowness(each: ArmRounds, groups: Sequence[IntArray]) -> dict[Place, float]:
    """Slowness within each group; all groups have equally many ranks."""
    columns = np.stack(groups)
    logs = np.log(each.mean_step_s)[:, columns]
    means = _mean(logs - _mean(logs, axis=2)[:, :, np.newaxis], axis=0)
    typical = np.sort(means, axis=1)[:, (columns.shape[1] - 1) // 2]
    factors = np.exp(means - typical[:, np.newaxis]).ravel().tolist()
    return dict(zip(each.ranks.of(columns.ravel()).places, factors, strict=True))


def _mean(values: FloatArray, axis: int) -> FloatArray:
    """Mean of the values that are not NaN; NaN if there are none."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
