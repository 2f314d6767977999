"""A rank is compared with all the others and not with itself."""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.peers import (
    Compared,
    compare,
    median_over_rounds,
    medians_of_others,
)
from pytest_ddpscale.util.arrays import FloatArray
from tests.rows import rows

# Few different values, so that ties are common.
TIMES = st.lists(st.floats(0.5, 2.0) | st.sampled_from([1.0, 1.25, 1.5]), min_size=2, max_size=12)


@given(TIMES, st.integers(0, 3))
def test_peers_are_all_others(times: list[float], absent: int) -> None:
    row = np.array([times + [np.nan] * absent])
    medians = medians_of_others(row)[0]
    for rank in range(len(times)):
        others = times[:rank] + times[rank + 1 :]
        assert medians[rank] == statistics.median(others)
    assert np.isnan(medians[len(times) :]).all()


def slowed(*factors: float, rounds: int = 8, noise: float = 0.003, seed: int = 0) -> FloatArray:
    """Times of places that are slower by these factors, (rounds, places)."""
    scatter = np.random.default_rng(seed).standard_normal((rounds, len(factors)))
    return np.array(factors) * np.exp(noise * scatter)


def states(found: Compared) -> str:
    """One letter a place: beyond, within or open."""
    of_each = zip(found.beyond, found.within, strict=True)
    return "".join("b" if is_beyond else "w" if is_within else "o" for is_beyond, is_within in of_each)


@rows(
    ("factors", "expected"),
    [
        ([1] * 8, "wwwwwwww"),
        ([1.08, 1, 1, 1, 1, 1, 1, 1], "bwwwwwww"),
        ([1, 1, 1, 1, 1, 1, 1, 1.08], "wwwwwwwb"),
        ([1.04, 1.01, 0.99, 1, 1, 0.98, 1, 1.02], "wwwwwwww"),
        ([1.05, 1, 1, 1, 1, 1, 1, 1], "owwwwwww"),
        # Three peers: only twice the limit tells.
        ([1, 1.08, 1, 1], "woww"),
        ([1, 1.13, 1, 1], "wbww"),
        # Fewer say nothing, however slow one is.
        ([1, 1.5, 1], "ooo"),
        ([1, 1.5], "oo"),
        ([1], "o"),
    ],
)
def test_a_place_is_beyond_its_peers_by_more_than_the_limit_or_within_it(factors: list[float], expected: str) -> None:
    assert states(compare(slowed(*factors), 0.05)) == expected


@given(st.permutations(range(7)))
def test_labels_may_be_in_any_order_and_of_any_size(order: list[int]) -> None:
    measured, labels = slowed(*[1.0] * 4, *[3.0] * 3), np.array([5] * 4 + [2] * 3)
    whole, found = (compare(measured[:, at], 0.05, labels[at]) for at in (np.arange(7), np.array(order)))
    assert found.ratio == pytest.approx(whole.ratio[order])
    assert found.peers.tolist() == whole.peers[order].tolist()


@rows("places", [8, 64])
@rows("correlation", [0.0, 0.5])
def test_a_place_on_the_limit_is_rarely_decided_however_often_one_looks(places: int, correlation: float) -> None:
    random, wrong = np.random.default_rng(1), 0
    for _ in range(60):
        noise = random.standard_normal((32, places))
        for row in range(1, 32):
            noise[row] = correlation * noise[row - 1] + np.sqrt(1 - correlation**2) * noise[row]
        measured = np.exp(0.006 * noise)
        measured[:, 3] *= 1.05
        looks = (compare(measured[:rounds], 0.05) for rounds in range(8, 33, 2))
        wrong += any(found.beyond.any() or found.within[3] for found in looks)
    assert wrong <= 4


def test_thousands_of_places_are_compared_in_well_under_a_second() -> None:
    measured = slowed(*[1.0] * 8191, 1.2, rounds=32)
    began = time.process_time()
    found = compare(measured, 0.05, np.arange(8192) % 8)
    assert time.process_time() - began < 2  # 0.2 s without other work
    assert np.flatnonzero(found.beyond).tolist() == [8191]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(st.lists(st.tuples(*[st.sampled_from([np.nan, 1.0, 2.0, 4.0, np.inf])] * 2), max_size=5))
def test_medians_are_those_of_numpy_and_missing_without_rounds(rounds: list[tuple[float, float]]) -> None:
    values = np.array(rounds).reshape(-1, 2)
    np.testing.assert_array_equal(median_over_rounds(values), np.nanmedian(values, axis=0))
