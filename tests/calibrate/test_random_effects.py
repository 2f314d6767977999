"""Where the value of a further node in a further launch lies: known cases, and how often the bound is missed."""

from __future__ import annotations

import statistics
from dataclasses import astuple

import numpy as np
import pytest

from pytest_ddpscale.calibrate.random_effects import next_value
from tests.rows import rows


def drawn(
    chance: np.random.Generator, nodes: int, launches: int, node_sd: float, launch_sd: float, rest_sd: float
) -> dict[str, dict[str, float]]:
    values = node_sd * chance.standard_normal((nodes, 1)) + launch_sd * chance.standard_normal((1, launches))
    values = values + rest_sd * chance.standard_normal((nodes, launches))
    return {f"n{i}": {f"l{j}": float(values[i, j]) for j in range(launches)} for i in range(nodes)}


@rows(
    ("values", "expected", "reach"),
    [
        # Nodes that only err are one sample, of which this is the prediction bound; nodes that never vary are, too.
        (
            {"n1": {"a": 1.0, "b": 3.0}, "n2": {"c": 3.0, "d": 1.0}},
            (2.0, 0.0, 1.154701, 1.290994, 3),
            2.353363 * 1.290994,
        ),
        ({f"n{i}": {"a": i, "b": i} for i in range(5)}, (2.0, 1.581139, 0.0, 1.732051, 4), 2.131847 * 1.732051),
        # Mean squares of nodes, launches and the rest: 20.25, 2.25 and 0.25.
        (
            {"n1": {"a": 0, "b": 2}, "n2": {"a": 5, "b": 6}},
            (3.25, 10**0.5, 1.25**0.5, 16.875**0.5, 1),
            6.313752 * 16.875**0.5,
        ),
        # Equal values are granted a spread.
        ({f"n{i}": {"a": 1.0, "b": 1.0} for i in range(3)}, (1.0, 0.0, 0.0, 0.0, 5), 2.015048 * 0.1),
    ],
)
def test_known_cases(values: dict[str, dict[str, float]], expected: tuple[float, ...], reach: float) -> None:
    found = next_value(values)
    assert astuple(found) == pytest.approx(expected)
    ends = [found.bound(0.05, 0.1, upper=upper) for upper in (False, True)]
    assert ends == pytest.approx([expected[0] - reach, expected[0] + reach], rel=1e-5)


@rows(
    "sizes",
    [
        (18, 3, 0.4, 0.0, 0.2), (18, 3, 0.4, 0.2, 0.2), (6, 3, 0.4, 0.2, 0.2), (18, 3, 0.0, 0.0, 0.2),
        (4, 2, 0.4, 0, 0.2),
    ],
)  # fmt: skip
def test_a_bound_is_missed_as_often_as_it_says(sizes: tuple[int, int, float, float, float]) -> None:
    """Nodes, launches, and the deviations between nodes, between launches, and of the rest."""
    chance, truth = np.random.default_rng(7), statistics.NormalDist(0, sum(sd**2 for sd in sizes[2:]) ** 0.5)
    missed = [truth.cdf(next_value(drawn(chance, *sizes)).bound(0.01, 0.0, upper=False)) for _ in range(1000)]
    assert 0.006 < statistics.fmean(missed) < 0.013


def test_one_launch_of_each_node_tells_nothing_of_launches() -> None:
    with pytest.raises(ValueError, match="expected at least 2 nodes and a node with 2 launches"):
        next_value({f"n{i}": {"a": float(i)} for i in range(4)})
