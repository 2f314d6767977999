"""Spread of step times: percentiles and the coefficient of variation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_ddpscale.judge.rounds import ArmRounds
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.columns import StepArray
from pytest_ddpscale.run.readings import STEP_S

PERCENTS = (50, 75, 90, 95, 99)
_MS_PER_S = 1000.0


def percentile(values: Sequence[float] | StepArray, percent: float) -> float:
    """The value that `percent` of the values do not exceed, interpolated linearly between neighbours.

    The value at position (n - 1) * percent / 100 of n ordered values, counted from 0: definition 7 of
    Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50 (1996),
    which is numpy's default.

    Args:
        values: at least one, in any order.
        percent: 0 … 100.

    Raises:
        ValueError: there are no values, or `percent` is out of range.
    """
    if not len(values) or not 0 <= percent <= 100:
        raise ValueError(f"percentile {percent:g} of {len(values)} values; expected 0 to 100 of at least 1")
    return float(np.percentile(np.asarray(values, np.float64), percent))


def step_time_percentiles_ms(*measured: ArmRounds) -> dict[int, float]:
    """p50, p75, p90, p95 and p99 of an arm's step time over the raw steps of all ranks, rounds and launches.

    Returns:
        Milliseconds by per cent; empty if no round kept its raw steps.
    """
    steps_s = np.concatenate([np.zeros(0, np.float32), *(steps for one in measured for steps in _raw_steps_s(one))])
    if not len(steps_s):
        return {}
    found = np.percentile(steps_s.astype(np.float64), PERCENTS)
    return dict(zip(PERCENTS, (_MS_PER_S * found).tolist(), strict=True))


def round_percentiles_ms(measured: ArmRounds, percent: float) -> FloatArray:
    """A percentile of each round's step time over the raw steps of all its ranks, in ms; NaN without raw steps."""
    steps_s = measured.measured.of_steps(STEP_S)
    if measured.is_whole and steps_s.size and not np.isnan(steps_s).any():
        found: FloatArray = np.percentile(steps_s.reshape(len(steps_s), -1).astype(np.float64), percent, axis=1)
    else:
        of_rounds = _raw_steps_s(measured)
        found = np.array([percentile(one, percent) if len(one) else np.nan for one in of_rounds], np.float64)
    return _MS_PER_S * found


def step_time_cv(measured: ArmRounds) -> FloatArray:
    """Standard deviation of the step time over its mean, on the rank where it is largest, (rounds,).

    Each rank is compared with its own mean, so a uniformly slow rank counts as steady. NaN if any is unknown.
    """
    of_ranks = _cv(measured)
    unknown = (np.isnan(of_ranks) & measured.present).any(axis=1)
    largest = np.max(np.where(np.isnan(of_ranks), 0.0, of_ranks), axis=1, initial=0.0)
    return np.where(unknown, np.nan, largest)


def _cv(measured: ArmRounds) -> FloatArray:
    """Coefficient of variation of the raw steps; from the summary of imported results without raw steps."""
    steps_s = measured.measured.of_steps(STEP_S).astype(np.float64)
    is_step = ~np.isnan(steps_s)
    count = is_step.sum(axis=2)
    mean_s = np.where(is_step, steps_s, 0.0).sum(axis=2) / np.maximum(count, 1)
    squares = np.where(is_step, steps_s - mean_s[:, :, np.newaxis], 0.0) ** 2
    stdev_s = np.sqrt(squares.sum(axis=2) / np.maximum(count - 1, 1))
    of_steps = stdev_s / np.where(mean_s > 0, mean_s, np.nan)
    return np.where(count > 1, of_steps, measured.measured.reading("step_stdev_s") / measured.mean_step_s)


def _raw_steps_s(measured: ArmRounds) -> list[StepArray]:
    """Durations of all steps of all ranks in each round; empty if a rank kept none, as in imported results."""
    steps_s = measured.measured.of_steps(STEP_S)
    found = []
    for row, there in enumerate(measured.present):
        of_ranks = steps_s[row, there]
        is_step = ~np.isnan(of_ranks)
        found.append(of_ranks[is_step] if is_step.any(axis=1).all() else np.zeros(0, np.float32))
    return found
