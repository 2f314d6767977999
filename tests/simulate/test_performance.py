"""The model of a step gives back what was published, and what it adds follows from its parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm, ArmKind
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.simulate.allreduce import LinkShares
from pytest_ddpscale.simulate.performance import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    _buckets,
)
from pytest_ddpscale.simulate.sound_machine import DDP_OVERHEAD
from pytest_ddpscale.simulate.spread import NodeSpread
from tests.builders.clusters import RESNET, a100, quiet, weak_study

PERFORMANCE = quiet(a100())
WORKLOAD = weak_study(Arm("alone", 1, 512)).workload
DDP_1_S = 512 / 1189.5  # published under DDP
ALONE_S = DDP_1_S / (1 + DDP_OVERHEAD)


def computation_s(kind: ArmKind, world_size: int, batch_size: int = 512) -> float:
    arm = Arm(kind, world_size, batch_size)
    return PERFORMANCE.step_time(weak_study(arm), arm).computation_s


def exposed_s(world_size: int, computation_s: float, link_share: float = 1.0) -> float:
    nodes = PERFORMANCE.topology.nodes(world_size)
    return float(
        PERFORMANCE.exposed_s(WORKLOAD, world_size, nodes, np.array(computation_s), LinkShares(link_share, 1.0))
    )


def test_a_gpu_alone_is_a_little_faster_than_published_under_ddp() -> None:
    assert computation_s("alone", 1) == pytest.approx(ALONE_S)
    assert computation_s("each", 8) == pytest.approx(ALONE_S)


def test_a_forward_pass_takes_a_third_of_a_step_however_many_do_it_at_once() -> None:
    assert computation_s("infer", 1) == computation_s("infer", 8) == pytest.approx(ALONE_S / 3)


def test_a_forward_pass_takes_what_the_thresholds_say_if_they_do() -> None:
    known = replace(PERFORMANCE.expectations[RESNET], inferred_samples_per_s=2560.0)
    performance = replace(PERFORMANCE, expectations={RESNET: known})
    arm = Arm("infer", 8, 512)
    assert performance.step_time(weak_study(arm), arm).computation_s == pytest.approx(0.2)


@pytest.mark.parametrize("kind", ["ddp", "no_sync"])
def test_ddp_costs_a_little_even_alone(kind: ArmKind) -> None:
    assert computation_s(kind, 1) == pytest.approx(ALONE_S * (1 + DDP_OVERHEAD))


@pytest.mark.parametrize(("world_size", "published"), [(2, 0.9891), (4, 0.9813), (8, 0.9745)])
def test_weak_scaling_of_equal_gpus_is_better_than_published(world_size: int, published: float) -> None:
    slowest_s = computation_s("ddp", world_size)
    step_s = slowest_s + exposed_s(world_size, slowest_s)
    assert DDP_1_S / step_s == pytest.approx(published + 0.007, abs=1e-4)


def test_what_is_published_does_not_depend_on_the_spread() -> None:
    spread = replace(PERFORMANCE, spread=NodeSpread(gpu_sd=0.02))
    arm = Arm("ddp", 8, 512)
    assert spread.step_time(weak_study(arm), arm) == PERFORMANCE.step_time(weak_study(arm), arm)


def test_no_step_is_faster_than_its_computing() -> None:
    fast = replace(PERFORMANCE, unwaited=0.1)
    arm = Arm("ddp", 8, 512)
    assert fast.step_time(weak_study(arm), arm).computation_s == pytest.approx(DDP_1_S)


def test_beyond_what_is_published_communication_still_costs() -> None:
    eight, many = computation_s("ddp", 8), computation_s("ddp", 100_000)
    assert many == pytest.approx(eight)
    assert exposed_s(100_000, many) > exposed_s(8, eight)


def test_a_small_batch_waits_for_its_host() -> None:
    arm = Arm("ddp", 8, 32)
    study = Study("strong", WORKLOAD, (Arm("alone", 1, 256), arm), 5, 0.0, 0.0)
    step = PERFORMANCE.step_time(study, arm)
    step_s = step.computation_s + exposed_s(8, step.computation_s)
    assert 256 / 1189.5 / 8 / step_s == pytest.approx(1.007 * 0.2582, rel=0.001)  # 0.7 % more than published
    assert step.busy_share < 0.5
    assert step.utilization < 0.5
    assert step.slowed_by(1.2) == 1.0  # the GPU has time left
    assert step.slowed_by(10) > 1.0


def test_a_busy_gpu_that_is_slower_slows_the_step() -> None:
    arm = Arm("each", 8, 512)
    assert PERFORMANCE.step_time(weak_study(arm), arm).slowed_by(1.2) == pytest.approx(1.2)


def test_communication_hides_behind_the_backward_pass_but_for_the_last_bucket() -> None:
    long_step_s, short_step_s = 1.0, 1e-4
    hidden = exposed_s(8, long_step_s)
    assert hidden == exposed_s(8, 2 * long_step_s)
    assert exposed_s(8, short_step_s) > hidden


def test_a_slow_link_shows_once_it_no_longer_hides() -> None:
    sound = exposed_s(8, ALONE_S)
    assert exposed_s(8, ALONE_S, 0.5) / ALONE_S < 0.01
    assert exposed_s(8, ALONE_S, 0.001) > 100 * sound


@given(gradient_bytes=st.integers(1, 10**9))
def test_buckets_hold_every_gradient_once(gradient_bytes: int) -> None:
    buckets = _buckets(gradient_bytes)
    assert sum(buckets) == gradient_bytes
    assert buckets[0] <= FIRST_BUCKET_BYTES
    assert all(0 < size <= BUCKET_BYTES for size in buckets)


def test_on_cpu_nothing_waits_for_a_host() -> None:
    from pytest_ddpscale.simulate.performance import Performance

    cpu = Performance("cpu", PERFORMANCE.topology, PERFORMANCE.expectations, PERFORMANCE.noise)
    arm = Arm("alone", 1, 1)
    assert cpu.step_time(weak_study(arm), arm).computation_s == pytest.approx(ALONE_S / 512)


def test_all_parameters_are_kept_as_json() -> None:
    kept = a100().performance.parameters
    assert kept["samples_per_s"] == {RESNET: 512 / ALONE_S}
    assert kept["noise"]["round_sd"] == 0.003
    assert kept["topology"]["inside"]["bytes_per_s"] == pytest.approx(240e9)
