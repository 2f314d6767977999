"""The sampler's cost is a ratio within each round, and its CPU time that of the blocks it was at work in."""

from __future__ import annotations

import os
import time

import pytest

from tests.benchmarks.scripts import benchmark

sampler_overhead = benchmark("sampler_overhead")
Round = sampler_overhead.Round


def test_each_side_goes_first_once_in_every_two_rounds() -> None:
    found = sampler_overhead.orders(7, seed=3)
    assert len(found) == 7
    assert all(set(order) == {True, False} for order in found)
    assert all({found[i][0], found[i + 1][0]} == {True, False} for i in (0, 2, 4))
    assert {order[0] for order in sampler_overhead.orders(40, seed=1)[::2]} == {True, False}


def test_the_ratio_is_taken_within_rounds() -> None:
    # The machine slows down threefold; the sampler costs 2 % all the same.
    rounds = [Round(0.98 * pace, pace, 0.01, 2.0) for pace in (9.0, 6.0, 3.0)]
    found = sampler_overhead.overhead(rounds)
    assert found.ratio.value == pytest.approx(0.98)
    assert found.ratio.interval == pytest.approx((0.98, 0.98))
    assert found.cpu_s_per_s == pytest.approx(0.005)


def test_one_round_has_no_spread() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        sampler_overhead.overhead([Round(1.0, 1.0, 0.01, 2.0)])


def test_cpu_time_is_that_of_the_process() -> None:
    before_s = sampler_overhead.cpu_s_of(os.getpid())
    began_s = time.process_time()
    while time.process_time() - began_s < 0.1:
        pass
    assert 0.08 <= sampler_overhead.cpu_s_of(os.getpid()) - before_s <= 1.0
