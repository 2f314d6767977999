"""Per-round values are what their metric says, in its unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.metrics.rounds import GIB, ArmRound
from pytest_ddpscale.metrics.samples import (
    Sample,
    efficiency_samples,
    generation_ratio_samples,
    peak_memory_samples,
    strong_speedup_samples,
    throughput_samples,
    utilization_samples,
)
from pytest_ddpscale.results.records import Measurement

RATES = st.lists(st.floats(1.0, 1e4), min_size=2, max_size=2)


def block(rank: int, number: int, img_per_s: float, **changes: Any) -> Measurement:
    one = Measurement("weak/r", "ddp@2", number, rank, rank, "node0", f"GPU-{rank}", 8, 10, 80 / img_per_s, 1.7e9)
    return replace(one, **changes)


def rounds(*img_per_s: Sequence[float], **changes: Any) -> dict[int, ArmRound]:
    """Rounds of the ranks with these paces."""
    return {
        number: ArmRound(number, tuple(block(rank, number, pace, **changes) for rank, pace in enumerate(paces)))
        for number, paces in enumerate(img_per_s)
    }


def values(samples: list[Sample]) -> list[float]:
    return [sample.value for sample in samples]


def test_throughput_per_gpu_is_at_the_slowest_ranks_pace() -> None:
    assert values(throughput_samples(rounds([100, 80], [90, 120]))) == pytest.approx([80.0, 90.0])


def test_weak_efficiency_is_all_gpus_together_over_as_many_alone() -> None:
    many, alone = rounds([90, 95], [80, 99]), rounds([100], [100])
    together = [2 * pace for pace in values(throughput_samples(many))]
    assert values(efficiency_samples(many, alone)) == pytest.approx([t / (2 * 100) for t in together])
    assert values(efficiency_samples(many, alone)) == pytest.approx([0.9, 0.8])


def test_a_round_is_compared_with_the_same_round() -> None:
    many, alone = rounds([90], [45]), rounds([100], [50])
    assert values(efficiency_samples(many, alone)) == pytest.approx([0.9, 0.9])


def test_rounds_that_only_one_arm_has_are_left_out() -> None:
    many, alone = rounds([90], [90], [90]), rounds([100], [100])
    del many[0]
    assert values(efficiency_samples(many, alone)) == pytest.approx([0.9])
    assert efficiency_samples(many, {}) == efficiency_samples({}, alone) == []


@given(st.integers(2, 64), RATES)
def test_speedup_is_the_time_of_the_global_batch_alone_over_that_of_many(world_size: int, rates: list[float]) -> None:
    global_batch = 8 * world_size
    alone_s, many_s = global_batch / rates[0], (global_batch / world_size) / rates[1]
    speedup = strong_speedup_samples(rounds([rates[1]]), rounds([rates[0]]), world_size)
    assert values(speedup) == pytest.approx([alone_s / many_s])


@given(st.integers(2, 64), RATES)
def test_strong_efficiency_is_speedup_over_number_of_gpus(world_size: int, rates: list[float]) -> None:
    many, alone = rounds([rates[1]]), rounds([rates[0]])
    (speedup,), (efficiency,) = strong_speedup_samples(many, alone, world_size), efficiency_samples(many, alone)
    assert speedup.value / world_size == pytest.approx(efficiency.value)


def test_generation_ratio_is_relative_to_the_published_throughput() -> None:
    assert values(generation_ratio_samples(rounds([100, 80]), 40.0)) == pytest.approx([2.0])


def test_utilization_is_the_least_busy_ranks_and_unread_rounds_are_left_out() -> None:
    measured = rounds([100, 100], [100, 100])
    busy = [replace(rank, utilization=0.7 + rank.rank / 10) for rank in measured[0].ranks]
    measured[0] = ArmRound(0, tuple(busy))
    assert values(utilization_samples(measured)) == pytest.approx([0.7])


def test_peak_memory_is_the_fullest_ranks_and_unread_rounds_are_left_out() -> None:
    measured = rounds([100, 100], [100, 100])
    held = [replace(rank, peak_memory_bytes=(rank.rank + 1) * GIB) for rank in measured[1].ranks]
    measured[1] = ArmRound(1, tuple(held))
    assert values(peak_memory_samples(measured)) == [2.0]


def test_rounds_of_our_own_carry_no_error() -> None:
    measured, alone = rounds([100], utilization=0.9, peak_memory_bytes=GIB, step_stdev_s=0.001), rounds([100])
    found = [
        *throughput_samples(measured), *efficiency_samples(measured, alone), *utilization_samples(measured),
        *peak_memory_samples(measured), *generation_ratio_samples(measured, 1.0),
    ]  # fmt: skip
    assert [sample.relative_error for sample in found] == [None] * 5


def test_the_error_of_an_imported_ratio_has_both_parts() -> None:
    # 80 / 100 / 10 = 0.08 s a step
    many = rounds([100], step_stdev_s=0.008, single_sample=True)
    alone = rounds([100], step_stdev_s=0.016, single_sample=True)
    (sample,) = efficiency_samples(many, alone)
    assert sample.relative_error == pytest.approx(math.hypot(0.1, 0.2) / math.sqrt(10))
    (ratio,) = generation_ratio_samples(many, 50.0)
    assert ratio.relative_error == pytest.approx(0.1 / math.sqrt(10))


def test_an_imported_ratio_without_one_of_its_errors_has_none() -> None:
    many, alone = rounds([100], step_stdev_s=0.008, single_sample=True), rounds([100], single_sample=True)
    assert [sample.relative_error for sample in efficiency_samples(many, alone)] == [None]
    assert [sample.relative_error for sample in efficiency_samples(alone, many)] == [None]


def test_imported_readings_stand_for_themselves() -> None:
    measured = rounds([100], single_sample=True, utilization=0.9, peak_memory_bytes=GIB)
    assert utilization_samples(measured) == [Sample(0.9, 0.0)]
    assert peak_memory_samples(measured) == [Sample(1.0, 0.0)]
