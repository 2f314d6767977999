"""Where the value of a further node in a further launch lies: known cases, and how often the bound is missed."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from pytest_ddpscale.calibrate.random_effects import NextValue, next_value
from tests.rows import rows


def drawn(
    chance: np.random.Generator, nodes: int, launches: int, node_sd: float, launch_sd: float, rest_sd: float
) -> dict[str, dict[str, float]]:
    values = node_sd * chance.standard_normal((nodes, 1)) + launch_sd * chance.standard_normal((1, launches))
    values = values + rest_sd * chance.standard_normal((nodes, launches))
    return {f"n{i}": {f"l{j}": float(values[i, j]) for j in range(launches)} for i in range(nodes)}


def test_nodes_that_only_err_are_one_sample() -> None:
    """Without any difference between nodes or launches it is the prediction bound of one sample."""
    values = {"n1": {"a": 1.0, "b": 3.0}, "n2": {"c": 3.0, "d": 1.0}}
    found = next_value(values)
    sample = [1.0, 3.0, 3.0, 1.0]
    assert (found.mean, found.node_sd, found.degrees) == (2.0, 0.0, 3)
    assert found.launch_sd == pytest.approx(statistics.stdev(sample))
    assert found.sd == pytest.approx(statistics.stdev(sample) * (1 + 1 / 4) ** 0.5)
    assert found.bound(0.05, 0.0, upper=False) == pytest.approx(2 - 2.353363 * found.sd)
    assert found.bound(0.05, 0.0, upper=True) == pytest.approx(2 + 2.353363 * found.sd)


def test_nodes_that_never_vary_have_as_many_degrees_as_nodes() -> None:
    values = {f"n{i}": {"a": float(i), "b": float(i)} for i in range(5)}
    found = next_value(values)
    assert found.degrees == 4
    assert found.node_sd == pytest.approx(statistics.stdev(range(5)))
    assert found.sd == pytest.approx(statistics.stdev(range(5)) * (1 + 1 / 5) ** 0.5)


def test_parts_are_told_apart() -> None:
    chance = np.random.default_rng(3)
    found = [next_value(drawn(chance, 30, 12, 0.4, 0.3, 0.1)) for _ in range(30)]
    assert statistics.fmean(one.node_sd for one in found) == pytest.approx(0.4, rel=0.1)
    assert statistics.fmean(one.launch_sd for one in found) == pytest.approx((0.3**2 + 0.1**2) ** 0.5, rel=0.15)


@rows(
    ("nodes", "launches", "node_sd", "launch_sd", "rest_sd"),
    [
        (18, 3, 0.4, 0.0, 0.2),
        (18, 3, 0.4, 0.2, 0.2),
        (6, 3, 0.4, 0.2, 0.2),
        (18, 3, 0.0, 0.0, 0.2),
        (4, 2, 0.4, 0, 0.2),
    ],
)
def test_a_bound_is_missed_as_often_as_it_says(
    nodes: int, launches: int, node_sd: float, launch_sd: float, rest_sd: float
) -> None:
    chance, truth = np.random.default_rng(7), statistics.NormalDist(0, (node_sd**2 + launch_sd**2 + rest_sd**2) ** 0.5)
    missed = [
        truth.cdf(next_value(drawn(chance, nodes, launches, node_sd, launch_sd, rest_sd)).bound(0.01, 0.0, upper=False))
        for _ in range(1000)
    ]
    assert 0.006 < statistics.fmean(missed) < 0.013


def test_one_launch_of_each_node_tells_nothing_of_launches() -> None:
    with pytest.raises(ValueError, match="expected at least 2 nodes and a node with 2 launches"):
        next_value({f"n{i}": {"a": float(i)} for i in range(4)})


def test_equal_values_are_granted_a_spread() -> None:
    found = next_value({f"n{i}": {"a": 1.0, "b": 1.0} for i in range(3)})
    assert found == NextValue(1.0, 0.0, 0.0, 0.0, 5)
    assert found.bound(0.05, 0.1, upper=False) == pytest.approx(1 - 0.1 * 2.015048)
