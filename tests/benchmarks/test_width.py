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


def test_a_run_ends_with_its_decision_and_its_interval_holds() -> None:
    near, far = (width.stop(0.0, 0.006, margin, runs=60, limit=32, seed=3) for margin in (0.01, 0.05))
    assert FEWEST_ROUNDS == far.rounds < near.rounds < 32
    assert near.half_width < far.half_width
    assert all(one.covered >= 0.95 and one.decided == 1 for one in (near, far))


def test_both_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    width.show_widths(width.widths(runs=40, seed=1))
    width.show_stops([width.stop(0.0, 0.003, 0.05, runs=5, limit=10, seed=1)])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1 + len(width.ROUNDS) + 2
    assert said[0].startswith("rounds  median, σ")
