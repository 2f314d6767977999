"""The models and the noise of a machine: as published, and as large as asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.simulate.machine import (
    BUCKET_BYTES,
    COMPUTING,
    FIRST_BUCKET_BYTES,
    MODELS,
    Model,
    NodeSpread,
    Noise,
)
from pytest_ddpscale.util.arrays import FloatArray
from tests.rows import rows

MANY = Layout(2000, 8)


@rows("name", MODELS)
def test_parameters_and_work_of_a_model_are_torchvisions(name: str) -> None:
    meta = next(iter(pytest.importorskip("torchvision").models.get_model_weights(name))).meta
    assert MODELS[name].parameters == meta["num_params"]
    assert MODELS[name].forward_macs == pytest.approx(meta["_ops"] * 1e9)


@given(parameters=st.integers(1, 10**8))
def test_buckets_hold_every_fp32_gradient_once(parameters: int) -> None:
    buckets = Model(parameters, 1.0, 0.0).buckets
    assert sum(buckets) == 4 * parameters
    assert buckets[0] <= FIRST_BUCKET_BYTES
    assert all(0 < size <= BUCKET_BYTES for size in buckets)


def test_a_hiccup_only_makes_slower() -> None:
    noises = [Noise(0.01), Noise(0.01, hiccup_share=0.05)]
    usual, disturbed = (noise.of_rounds(np.random.default_rng(1), 32, 4000) for noise in noises)
    added = disturbed - usual
    assert (added.min(), added.max()) == (0, pytest.approx(0.1, rel=0.01))
    assert (added > 0).mean() == pytest.approx(0.05, abs=0.005)


def spread_logs(spread: NodeSpread, launch: int = 0, what: str = COMPUTING) -> FloatArray:
    """Logarithms of the times of sound ranks, (nodes, ranks)."""
    return np.log(spread.factors(what, MANY, launch)).reshape(MANY.nodes, MANY.ranks_per_node)


def test_each_part_of_the_spread_is_as_asked_for() -> None:
    assert (NodeSpread().factors(COMPUTING, Layout(2, 4), 3) == np.ones(8)).all()
    nodes, gpus = spread_logs(NodeSpread(node_sd=0.01)), spread_logs(NodeSpread(gpu_sd=0.01))
    assert (nodes.std(), gpus.std()) == pytest.approx((0.01, 0.01), rel=0.05)
    assert (nodes == nodes[:, :1]).all()
    assert gpus.mean(axis=1).std() == pytest.approx(0.01 / np.sqrt(8), rel=0.1)


def test_gpus_of_a_node_do_not_differ_in_what_they_do_together() -> None:
    both = NodeSpread(node_sd=0.01, gpu_sd=0.01)
    links, copies = spread_logs(both, what="all-reduce-32mib"), spread_logs(both, what="memory-copy")
    assert (links == links[:, :1]).all()
    assert (links.std(), copies.std()) == pytest.approx((0.01, 0.01 * np.sqrt(2)), rel=0.05)


def test_nodes_last_from_launch_to_launch_and_stay_the_same_in_a_larger_cluster() -> None:
    spread = NodeSpread(node_sd=0.01, launch_sd=0.002, seed=7)
    first, again, second, copies = (spread_logs(spread, *what) for what in ((1,), (1,), (2,), (1, "memory-copy")))
    assert (first == again).all()
    assert (second - first).std() == pytest.approx(0.002 * np.sqrt(2), rel=0.05)
    lasting = replace(spread, launch_sd=0.0)
    assert (spread_logs(lasting, 1) == spread_logs(lasting, 2)).all()
    others = spread_logs(replace(spread, seed=8), 1)
    _, of_second, *of_others = np.corrcoef([logs[:, 0] for logs in (first, second, copies, others)])[0]
    assert of_second > 0.9
    assert np.abs(of_others).max() < 0.1
    small, large = (replace(spread, gpu_sd=0.01).factors(COMPUTING, Layout(nodes, 8), 1) for nodes in (2, 5))
    assert small == pytest.approx(large[:16])
