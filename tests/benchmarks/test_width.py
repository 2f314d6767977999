"""The simulation that shows how wide intervals are stops where a session would."""

from __future__ import annotations

import itertools

import pytest

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from tests.benchmarks.scripts import benchmark

width = benchmark("width")


def test_intervals_become_narrower_with_every_round() -> None:
    found = width.widths(runs=200, seed=1)
    assert all(b.median < a.median and b.most < a.most for a, b in itertools.pairwise(found))
    assert all(one.median < one.most for one in found)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_noise_has_variance_one_and_the_correlation_asked_for(correlation: float) -> None:
    values = width.noise_of(width.random.Random(1), correlation, 20_000)
    products = [a * b for a, b in itertools.pairwise(values)]
    assert sum(one * one for one in values) / len(values) == pytest.approx(1.0, rel=0.05)
    assert sum(products) / len(products) == pytest.approx(correlation, abs=0.05)


def test_who_asks_for_more_precision_gets_narrower_intervals_after_more_rounds_that_hold() -> None:
    decided, wide, narrow = width.stops(0.0, 0.003, 0.02, runs=60, limit=32, seed=3)
    assert (decided.precision, wide.precision, narrow.precision) == (None, 0.01, 0.005)
    assert FEWEST_ROUNDS <= decided.rounds <= wide.rounds < narrow.rounds
    assert narrow.half_width <= 0.005 < decided.half_width
    assert all(one.covered >= 0.95 and one.lost == one.turned == 0 for one in (decided, wide, narrow))


def test_both_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    width.show_widths(width.widths(runs=40, seed=1))
    width.show_stops(width.stops(0.0, 0.003, 0.05, runs=5, limit=10, seed=1))
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1 + len(width.ROUNDS) + 1 + len(width.PRECISIONS)
    assert said[0].startswith("rounds  median, σ")
