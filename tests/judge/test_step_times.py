"""Percentiles are numpy's, and steadiness is each rank's own."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.metrics import (
    PERCENTS,
    percentile,
    round_percentiles_ms,
    step_time_cv,
    step_time_percentiles_ms,
)
from pytest_ddpscale.judge.rounds import NO_ROUNDS
from tests.builders.measurements import Measurement
from tests.builders.rounds import rounds_of
from tests.rows import rows

TIMES = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=40)


def rank_of(rank: int, *step_s: float, stdev_s: float | None = None) -> Measurement:
    return Measurement(
        "weak/r", "ddp@2", 0, rank, rank, "node0", f"GPU-{rank}", 8, max(len(step_s), 1), sum(step_s) or 1.0, 1.7e9,
        step_s=step_s, step_stdev_s=stdev_s,
    )  # fmt: skip


@given(TIMES, st.floats(0, 100))
def test_percentiles_are_those_of_numpy(times: list[float], percent: float) -> None:
    assert percentile(times, percent) == pytest.approx(float(np.percentile(times, percent)))


@given(TIMES)
def test_percentiles_are_in_order_and_among_the_values(times: list[float]) -> None:
    found = [percentile(times, percent) for percent in (0, *PERCENTS, 100)]
    assert (found[0], found[-1]) == (min(times), max(times))
    assert all(low <= high + 1e-9 * high for low, high in itertools.pairwise(found))


def test_half_of_the_values_lie_below_the_median() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([7.0], 95) == 7.0


@rows(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 101), ([1.0], float("nan"))])
def test_there_is_no_such_percentile(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="expected 0 to 100 of at least 1"):
        percentile(values, percent)


def test_percentiles_of_an_arm_are_over_all_ranks_and_rounds_in_ms() -> None:
    steps = [0.001 * i for i in range(100)]
    first = [rank_of(0, *steps[:20]), rank_of(1, *steps[20:40])]
    second = [rank_of(0, *steps[40:70]), rank_of(1, *steps[70:])]
    expected = {50: 49.5, 75: 74.25, 90: 89.1, 95: 94.05, 99: 98.01}
    measured = rounds_of([*first, *(replace(one, round=1) for one in second)])
    assert step_time_percentiles_ms(measured) == pytest.approx(expected)


def test_rounds_without_the_steps_of_every_rank_do_not_count() -> None:
    whole, part = [rank_of(0, 0.1), rank_of(1, 0.1)], [replace(rank_of(rank), round=1) for rank in (0, 1)]
    part[1] = replace(part[1], step_s=(9.0,))
    assert round_percentiles_ms(rounds_of([*whole, *part]), 95).tolist() == pytest.approx([100, math.nan], nan_ok=True)
    assert step_time_percentiles_ms(rounds_of([*whole, *part])) == pytest.approx(dict.fromkeys(PERCENTS, 100.0))
    assert step_time_percentiles_ms(rounds_of(part)) == step_time_percentiles_ms(NO_ROUNDS) == {}


def cv_of(*ranks: Measurement) -> float:
    (cv,) = step_time_cv(rounds_of(ranks))
    return float(cv)


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=20), st.floats(0.1, 10.0))
def test_a_rank_that_is_slow_throughout_is_as_steady_as_a_fast_one(times: list[float], factor: float) -> None:
    fast, slow = rank_of(0, *times), rank_of(1, *[factor * time for time in times])
    found = cv_of(fast, slow)
    assert found == pytest.approx(statistics.stdev(times) / statistics.fmean(times), abs=1e-6)


def test_the_spread_of_an_import_is_the_one_it_states() -> None:
    # 1 s a step
    stated, other = rank_of(0, stdev_s=0.02), rank_of(1)
    assert cv_of(stated, replace(other, step_stdev_s=0.03)) == pytest.approx(0.03)
    assert math.isnan(cv_of(stated, other))


def test_one_step_has_no_spread_and_steps_of_no_time_have_none() -> None:
    assert math.isnan(cv_of(rank_of(0, 0.1)))
    assert math.isnan(cv_of(rank_of(0, 0.0, 0.0)))
