"""The model of a machine gives back what was published; what it adds follows from its parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm, ArmKind
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate.machine import (
    BUCKET_BYTES,
    COMPUTING,
    DDP_OVERHEAD,
    FIRST_BUCKET_BYTES,
    MODELS,
    Link,
    Model,
    NodeSpread,
    Noise,
    Topology,
    all_reduce_s,
    model_of,
    ring_s,
    tree_s,
)
from pytest_ddpscale.util.arrays import FloatArray
from tests.builders.clusters import NIC, NVLINK, RESNET, TOPOLOGY, a100, quiet, thresholds, weak_study

PERFORMANCE = quiet(a100())
WORKLOAD = weak_study(Arm("alone", 1, 512)).workload
DDP_1_S = 512 / 1189.5  # published under DDP
ALONE_S = DDP_1_S / (1 + DDP_OVERHEAD)
MANY = Layout(2000, 8)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ring_s(1e9, 8, Link(0.0, 100e9)), 2 * 7 / 8 * 1e9 / 100e9),
        (ring_s(0.0, 8, Link(1e-6, 100e9)), 14e-6),
        (tree_s(0.0, 1024, Link(1e-6, 1e9)), 20e-6),  # logarithmically many latencies
        (tree_s(1e9, 1024, Link(0.0, 1e9)), 2.0),
        (all_reduce_s(1e9, 1, 1, TOPOLOGY), 0.0),
        (all_reduce_s(1e9, 8, 1, Topology(8, NVLINK, Link(1.0, 1.0))), ring_s(1e9, 8, NVLINK)),
        (all_reduce_s(8e9, 16, 2, TOPOLOGY), ring_s(8e9, 8, NVLINK) + ring_s(1e9, 2, NIC)),
        (all_reduce_s(8e9, 4, 4, TOPOLOGY), ring_s(8e9, 4, NIC)),  # spread ranks
        (all_reduce_s(1e6, 10**5, 12_500, TOPOLOGY), ring_s(1e6, 8, NVLINK) + tree_s(1.25e5, 12_500, NIC)),
    ],
)
def test_an_all_reduce_takes_what_its_messages_take(found: float, expected: float) -> None:
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_work_of_a_model_are_torchvisions(name: str) -> None:
    meta = next(iter(pytest.importorskip("torchvision").models.get_model_weights(name))).meta
    assert MODELS[name].parameters == meta["num_params"]
    assert MODELS[name].forward_macs == pytest.approx(meta["_ops"] * 1e9)


def test_every_model_of_the_thresholds_is_known_and_others_are_refused() -> None:
    for sku in thresholds().thresholds.skus.values():
        for workload in sku.workloads.values():
            assert model_of(workload).parameters > 0
    for family in (ImageFamily("swin_t"), ImageFamily("resnet50", classifier_hidden=0)):
        with pytest.raises(OptionError, match=r"trains .*(swin_t|frozen resnet50), which .*resnet152.*--workloads"):
            model_of(Workload("w", family, "fp16", 8))


def test_work_and_memory_of_a_step_are_near_what_was_measured() -> None:
    resnet, small = (model_of(Workload("w", ImageFamily("resnet152", size), "fp16", 8)) for size in (224, 112))
    # torch.utils.flop_counter counts 68.85e9, because nobody needs the gradient of the images.
    assert resnet.flops_per_sample == pytest.approx(68.85e9, rel=0.005) == 4 * small.flops_per_sample
    for batch, published_gib in ((512, 44.11), (256, 22.44), (32, 3.54)):
        found = resnet.state_bytes + batch * resnet.bytes_per_sample
        assert found / 2**30 == pytest.approx(published_gib, rel=0.05)


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


def test_launches_differ_while_nodes_last_and_stay_the_same_in_a_larger_cluster() -> None:
    spread = NodeSpread(node_sd=0.01, launch_sd=0.002, seed=7)
    first, again, second = (spread_logs(spread, launch) for launch in (1, 1, 2))
    assert (first == again).all()
    lasting = [
        spread_logs(replace(spread, launch_sd=0.0, seed=seed), launch) for seed, launch in ((7, 1), (7, 2), (8, 1))
    ]
    assert (lasting[0] == lasting[1]).all()
    assert (lasting[0] != lasting[2]).any()
    assert (second - first).std() == pytest.approx(0.002 * np.sqrt(2), rel=0.05)
    assert np.corrcoef(first[:, 0], second[:, 0])[0, 1] > 0.9
    assert abs(np.corrcoef(first[:, 0], spread_logs(spread, what="memory-copy")[:, 0])[0, 1]) < 0.1
    small, large = (replace(spread, gpu_sd=0.01).factors(COMPUTING, Layout(nodes, 8), 1) for nodes in (2, 5))
    assert small == pytest.approx(large[:16])


def computation_s(kind: ArmKind, world_size: int, batch_size: int = 512) -> float:
    arm = Arm(kind, world_size, batch_size)
    return PERFORMANCE.step_time(weak_study(arm), arm).computation_s


def exposed_s(world_size: int, computation_s: float, link_share: float = 1.0) -> float:
    nodes = -(-world_size // 8)
    return float(PERFORMANCE.exposed_s(model_of(WORKLOAD), world_size, nodes, np.array(computation_s), link_share, 1.0))


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        ("alone", 1, ALONE_S), ("each", 8, ALONE_S), ("infer", 1, ALONE_S / 3), ("infer", 8, ALONE_S / 3),
        ("ddp", 1, DDP_1_S), ("no_sync", 1, DDP_1_S),
    ],
)  # fmt: skip
def test_one_rank_computes_as_long_as_published(kind: ArmKind, size: int, expected: float) -> None:
    assert computation_s(kind, size) == pytest.approx(expected)


def test_a_forward_pass_takes_what_the_thresholds_say_if_they_do() -> None:
    known = replace(PERFORMANCE.expectations[RESNET], inferred_samples_per_s=2560.0)
    arm = Arm("infer", 8, 512)
    found = replace(PERFORMANCE, expectations={RESNET: known}).step_time(weak_study(arm), arm)
    assert found.computation_s == pytest.approx(0.2)


@pytest.mark.parametrize(("world_size", "published"), [(2, 0.9891), (4, 0.9813), (8, 0.9745)])
def test_weak_scaling_of_equal_gpus_is_better_than_published(world_size: int, published: float) -> None:
    slowest_s = computation_s("ddp", world_size)
    assert DDP_1_S / (slowest_s + exposed_s(world_size, slowest_s)) == pytest.approx(published + 0.007, abs=1e-4)


def test_no_step_is_faster_than_its_computing() -> None:
    arm = Arm("ddp", 8, 512)
    assert replace(PERFORMANCE, unwaited=0.1).step_time(weak_study(arm), arm).computation_s == pytest.approx(DDP_1_S)


def test_beyond_what_is_published_communication_still_costs() -> None:
    eight, many = computation_s("ddp", 8), computation_s("ddp", 100_000)
    assert many == pytest.approx(eight)
    assert exposed_s(100_000, many) > exposed_s(8, eight)


def test_a_small_batch_waits_for_its_host_where_there_is_a_gpu() -> None:
    arm = Arm("ddp", 8, 32)
    study = Study("strong", WORKLOAD, (Arm("alone", 1, 256), arm), 5, 0.0, 0.0)
    step = PERFORMANCE.step_time(study, arm)
    step_s = step.computation_s + exposed_s(8, step.computation_s)
    assert 256 / 1189.5 / 8 / step_s == pytest.approx(1.007 * 0.2582, rel=0.001)  # 0.7 % more than published
    assert max(step.busy_share, step.utilization) < 0.5
    assert step.slowed_by(np.array([1.2, 10])).tolist() == [1.0, 10 * step.busy_share]  # the GPU has time left
    assert computation_s("infer", 8, 1) == pytest.approx(0.1 / 3)
    alone = Arm("alone", 1, 1)
    cpu = replace(PERFORMANCE, device_type="cpu").step_time(weak_study(alone), alone)
    assert cpu.computation_s == pytest.approx(ALONE_S / 512)
    assert cpu.slowed_by(np.array(1.2)) == pytest.approx(1.2)


def test_communication_hides_behind_the_backward_pass_but_for_the_last_bucket() -> None:
    assert exposed_s(8, 1e-4) > exposed_s(8, 1.0) == exposed_s(8, 2.0) > 0
    assert exposed_s(8, ALONE_S, 0.5) / ALONE_S < 0.01
    assert exposed_s(8, ALONE_S, 0.001) > 100 * exposed_s(8, ALONE_S)
