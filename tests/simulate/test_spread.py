"""Sound nodes that differ, from each other and from launch to launch."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.simulate.spread import ALIKE, COMPUTING, NodeSpread

MANY = Layout(2000, 8)


def logs(
    spread: NodeSpread, launch: int = 0, what: str = COMPUTING
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.log(spread.factors(what, MANY, launch)).reshape(MANY.nodes, MANY.ranks_per_node)


def test_nothing_differs_unless_asked() -> None:
    assert (ALIKE.factors(COMPUTING, Layout(2, 4), 3) == np.ones(8)).all()


def test_each_part_has_the_spread_that_was_asked_for() -> None:
    nodes, gpus = logs(NodeSpread(node_sd=0.01)), logs(NodeSpread(gpu_sd=0.01))
    assert nodes.std() == pytest.approx(0.01, rel=0.05)
    assert (nodes == nodes[:, :1]).all()
    assert gpus.std() == pytest.approx(0.01, rel=0.05)
    assert gpus.mean(axis=1).std() == pytest.approx(0.01 / np.sqrt(8), rel=0.1)


def test_gpus_of_a_node_do_not_differ_in_what_they_do_together() -> None:
    spread = NodeSpread(node_sd=0.01, gpu_sd=0.01)
    links, copies = logs(spread, what="all-reduce-32mib"), logs(spread, what="memory-copy")
    assert (links == links[:, :1]).all()
    assert links.std() == pytest.approx(0.01, rel=0.05)
    assert copies.std() == pytest.approx(0.01 * np.sqrt(2), rel=0.05)


def test_launches_differ_and_nodes_last() -> None:
    spread = NodeSpread(node_sd=0.01, launch_sd=0.002, seed=7)
    first, second = logs(spread, launch=1), logs(spread, launch=2)
    assert (first == logs(spread, launch=1)).all()
    assert (second - first).std() == pytest.approx(0.002 * np.sqrt(2), rel=0.05)
    assert np.corrcoef(first[:, 0], second[:, 0])[0, 1] > 0.9
    assert abs(np.corrcoef(first[:, 0], logs(spread, what="memory-copy")[:, 0])[0, 1]) < 0.1


def test_a_node_is_the_same_in_a_larger_cluster() -> None:
    spread = NodeSpread(node_sd=0.01, gpu_sd=0.01, launch_sd=0.01)
    small, large = (spread.factors(COMPUTING, Layout(nodes, 8), 1) for nodes in (2, 5))
    assert small == pytest.approx(large[:16])
