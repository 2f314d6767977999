"""A rank is compared with all the others and not with itself."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.peers import MAD_TO_STDEV, medians_of_others, slowest_to_peers, stdevs_of_others
from pytest_ddpscale.judge.rounds import ArmRounds
from tests.builders.measurements import Measurement
from tests.builders.rounds import rounds_of
from tests.rows import rows

# Few different values, so that ties are common.
TIMES = st.lists(st.floats(0.5, 2.0) | st.sampled_from([1.0, 1.25, 1.5]), min_size=2, max_size=12)


def round_of(times_s: list[float]) -> ArmRounds:
    ranks = [
        Measurement("weak/r", "each@k", 0, rank, rank, "node0", f"GPU-{rank}", 8, 1, time_s, 1.7e9)
        for rank, time_s in enumerate(times_s)
    ]
    return rounds_of(ranks)


@given(TIMES, st.integers(0, 3))
def test_peers_are_all_others(times: list[float], absent: int) -> None:
    row = np.array([times + [np.nan] * absent])
    medians = medians_of_others(row)[0]
    for rank in range(len(times)):
        others = times[:rank] + times[rank + 1 :]
        assert medians[rank] == statistics.median(others)
    assert np.isnan(medians[len(times) :]).all()


@given(TIMES)
def test_their_deviation_is_that_of_all_others(times: list[float]) -> None:
    stdevs = stdevs_of_others(np.array(times))
    for rank in range(len(times)):
        others = times[:rank] + times[rank + 1 :]
        mad = statistics.median(abs(other - statistics.median(others)) for other in others)
        assert stdevs[rank] >= MAD_TO_STDEV * mad or stdevs[rank] == pytest.approx(MAD_TO_STDEV * mad)


@rows("ranks", [4, 8, 12])
def test_their_deviation_is_right_on_average_however_few_they_are(ranks: int) -> None:
    found = [stdevs_of_others(values).mean() for values in np.random.default_rng(1).standard_normal((500, ranks))]
    assert np.mean(found) == pytest.approx(1.0, abs=0.04)


@given(TIMES)
def test_the_slowest_is_no_faster_than_its_peers(times: list[float]) -> None:
    assert slowest_to_peers(round_of(times))[0] >= 1.0


def test_nobody_is_compared_with_nobody() -> None:
    assert np.isnan(medians_of_others(np.array([[1.0], [2.0]]))).all()
