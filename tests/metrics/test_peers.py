"""A rank is compared with all the others and not with itself."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.metrics.peers import MAD_TO_STDEV, Peers, median_without, slowest_to_peers
from pytest_ddpscale.metrics.rounds import ArmRounds
from tests.builders.measurements import Measurement
from tests.builders.rounds import rounds_of

# Few different values, so that ties are common.
TIMES = st.lists(st.floats(0.5, 2.0) | st.sampled_from([1.0, 1.25, 1.5]), min_size=2, max_size=12)


def round_of(times_s: list[float]) -> ArmRounds:
    ranks = [
        Measurement("weak/r", "each@k", 0, rank, rank, "node0", f"GPU-{rank}", 8, 1, time_s, 1.7e9)
        for rank, time_s in enumerate(times_s)
    ]
    return rounds_of(ranks)


@given(TIMES, st.data())
def test_a_median_without_one_value_is_the_median_of_the_rest(times: list[float], data: st.DataObject) -> None:
    left_out = data.draw(st.sampled_from(times))
    rest = list(times)
    rest.remove(left_out)
    assert median_without(np.sort(times), np.array([left_out])).tolist() == [statistics.median(rest)]


@given(TIMES)
def test_peers_are_all_others(times: list[float]) -> None:
    peers = Peers(np.array(times))
    medians_s, stdevs_s = peers.median_s(np.array(times)), peers.stdev_s(np.array(times))
    for rank in range(len(times)):
        others = times[:rank] + times[rank + 1 :]
        median_s = statistics.median(others)
        assert medians_s[rank] == median_s
        mad_s = statistics.median(abs(other - median_s) for other in others)
        assert stdevs_s[rank] == pytest.approx(MAD_TO_STDEV * mad_s)


@given(TIMES)
def test_the_slowest_is_no_faster_than_its_peers(times: list[float]) -> None:
    assert slowest_to_peers(round_of(times))[0] >= 1.0


def test_nobody_is_compared_with_nobody() -> None:
    with pytest.raises(ValueError, match="1 rank has no peers"):
        Peers(np.array([1.0]))
