"""The simulation of pairs of launches shows what is large, and next to nothing where nothing differs."""

from __future__ import annotations

import pytest

from tests.benchmarks.scripts import benchmark

pairs = benchmark("ddp_benchmark_pairs")


@pytest.mark.parametrize(("slower", "least", "most"), [(0.0, 0, 1), (0.2, 19, 20)])
def test_differences_are_shown_as_often_as_there_are_some(slower: float, least: int, most: int) -> None:
    found = [pairs.pair(seed, 0.0, slower).result for seed in range(20)]
    assert least <= sum(one in ("slower", "faster") for one in found) <= most
    assert "faster" not in found
