"""Per-round values are what their metric says, in its unit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.metrics import (
    PERCENTS,
    VALUE_OF,
    Arms,
    Read,
    percentile,
    read,
    round_percentiles_ms,
    slowness_of,
    step_time_cv,
    step_time_percentiles_ms,
)
from pytest_ddpscale.judge.rounds import GIB, NO_ROUNDS, ArmRounds
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS, TRAINING_METRICS, WEAK_SCALING_EFFICIENCY
from tests.builders.judged import make_measurement, with_steps
from tests.builders.measurements import Measurement
from tests.builders.rounds import rounds_of
from tests.rows import rows

RATES = st.lists(st.floats(1.0, 1e4), min_size=2, max_size=2)


def block(rank: int, number: int, samples_per_s: float, **changes: Any) -> Measurement:
    one = Measurement("weak/r", "ddp@2", number, rank, rank, "node0", f"GPU-{rank}", 8, 10, 80 / samples_per_s, 1.7e9)
    return replace(one, **changes)


def blocks(*samples_per_s: Sequence[float], **changes: Any) -> list[Measurement]:
    """Of the ranks with these paces, round by round."""
    return [block(rank, n, pace, **changes) for n, paces in enumerate(samples_per_s) for rank, pace in enumerate(paces)]


def rounds(*samples_per_s: Sequence[float], **changes: Any) -> ArmRounds:
    """Rounds of the ranks with these paces."""
    return rounds_of(blocks(*samples_per_s, **changes))


def without(measured: ArmRounds, number: int) -> ArmRounds:
    return measured.of(measured.numbers != number)


def read_of(
    metric: str, measured: ArmRounds, compared: ArmRounds = NO_ROUNDS, world_size: int = 2, **further: Any
) -> Read:
    definition = METRICS[metric]
    return read(definition, Arms(measured, compared if definition.baseline else None, world_size, **further))


def of(metric: str, *rounds: Any, **further: Any) -> list[float]:
    """Known values of a metric, round by round."""
    return [value for value in read_of(metric, *rounds, **further).values.tolist() if not math.isnan(value)]


def errors(metric: str, *rounds: Any) -> list[float] | None:
    found = read_of(metric, *rounds).errors
    return None if found is None else found.tolist()


def test_every_metric_of_training_has_a_function() -> None:
    assert VALUE_OF.keys() == {name for name, metric in TRAINING_METRICS.items() if not metric.reads_own_pace}


def test_throughput_per_gpu_is_at_the_slowest_ranks_pace() -> None:
    assert of("throughput_per_gpu", rounds([100, 80], [90, 120])) == pytest.approx([80.0, 90.0])


def test_weak_efficiency_is_all_gpus_together_over_as_many_alone() -> None:
    many, alone = rounds([90, 95], [80, 99]), rounds([100], [100])
    together = [2 * pace for pace in of("throughput_per_gpu", many)]
    assert of("weak_scaling_efficiency", many, alone) == pytest.approx([t / (2 * 100) for t in together])
    assert of("weak_scaling_efficiency", many, alone) == pytest.approx([0.9, 0.8])


def test_a_round_is_compared_with_the_same_round() -> None:
    many, alone = rounds([90], [45]), rounds([100], [50])
    assert of("weak_scaling_efficiency", many, alone) == pytest.approx([0.9, 0.9])


def test_rounds_that_only_one_arm_has_are_left_out() -> None:
    many, alone = rounds([90], [90], [90]), rounds([100], [100])
    many = without(many, 0)
    assert of("weak_scaling_efficiency", many, alone) == pytest.approx([0.9])
    assert of("weak_scaling_efficiency", many) == of("weak_scaling_efficiency", NO_ROUNDS, alone) == []


@given(st.integers(2, 64), RATES)
def test_speedup_is_the_time_of_the_global_batch_alone_over_that_of_many(world_size: int, rates: list[float]) -> None:
    global_batch = 8 * world_size
    alone_s, many_s = global_batch / rates[0], (global_batch / world_size) / rates[1]
    speedup = of("strong_scaling_speedup", rounds([rates[1]]), rounds([rates[0]]), world_size)
    assert speedup == pytest.approx([alone_s / many_s])


def test_exposed_communication_is_the_share_of_a_step_that_no_sync_does_not_take() -> None:
    # 8 images: 0.08 s and 0.1 s a step at the slowest rank's pace, so that a fifth of the latter is exposed
    assert of("exposed_communication", rounds([80, 90]), rounds([110, 100])) == pytest.approx([0.2])


def test_computation_and_communication_add_up_to_the_step_in_milliseconds() -> None:
    no_sync, ddp = rounds([110, 100], [160, 200]), rounds([80, 90], [80, 80])
    assert of("computation_time", no_sync) == pytest.approx([80, 50])
    assert of("communication_time", ddp, no_sync) == pytest.approx([20, 50])


def test_communication_that_is_hidden_comes_out_as_noise_about_zero() -> None:
    assert of("exposed_communication", rounds([100], [101]), rounds([100], [100])) == pytest.approx([0, -0.01])


def test_ddp_overhead_is_the_time_a_step_takes_longer_than_without() -> None:
    # 0.1 s a step instead of 0.08 s
    assert of("ddp_overhead", rounds([80]), rounds([100])) == pytest.approx([0.25])
    assert of("ddp_overhead", rounds([100]), rounds([80])) == pytest.approx([-0.2])


@rows("metric", ["exposed_communication", "communication_time", "ddp_overhead"])
def test_differences_are_of_rounds_that_both_arms_have(metric: str) -> None:
    many, other = rounds([80], [50]), rounds([100], [100], [100])
    assert len(of(metric, without(many, 0), other)) == 1
    assert of(metric, many) == of(metric, NO_ROUNDS, other) == []


@rows("metric", ["exposed_communication", "communication_time", "ddp_overhead"])
def test_imported_samples_say_too_little_about_a_difference(metric: str) -> None:
    one, other = (rounds([speed], step_stdev_s=0.01, single_sample=True) for speed in (64, 80))
    assert of(metric, one, other) == []


def test_model_flops_utilization_is_what_the_model_needs_of_the_peak() -> None:
    # ResNet-152 on an A100 as published: 1159.2 img/s, 68.85 GFLOP each, 312 TFLOPS
    samples = of("model_flops_utilization", rounds([1200, 1159.2]), flops_per_sample=68.85e9)
    assert samples == pytest.approx([0.2558 * 312], rel=0.001)


def test_cv_is_that_of_the_least_steady_rank() -> None:
    steady, unsteady = (0.2, 0.2, 0.2), (0.1, 0.2, 0.3)
    measured = rounds_of([block(i, 0, 100, steps=3, step_s=steps) for i, steps in enumerate((steady, unsteady))])
    assert of("step_time_cv", measured) == pytest.approx([0.5])


def test_rounds_of_our_own_carry_no_error() -> None:
    measured, alone = rounds([100], utilization=0.9, peak_memory_bytes=GIB, step_stdev_s=0.001), rounds([100])
    metrics = ("throughput_per_gpu", "weak_scaling_efficiency", "device_utilization", "peak_memory_gib")
    assert [errors(metric, measured, alone) for metric in metrics] == [None] * 4


def test_the_error_of_an_imported_ratio_has_both_parts() -> None:
    # 80 / 100 / 10 = 0.08 s a step
    many = rounds([100], step_stdev_s=0.008, single_sample=True)
    alone = rounds([100], step_stdev_s=0.016, single_sample=True)
    assert errors("weak_scaling_efficiency", many, alone) == pytest.approx([math.hypot(0.1, 0.2) / math.sqrt(10)])
    assert errors("generation_ratio", many) == pytest.approx([0.1 / math.sqrt(10)])


def test_an_imported_ratio_without_one_of_its_errors_has_none() -> None:
    many, alone = rounds([100], step_stdev_s=0.008, single_sample=True), rounds([100], single_sample=True)
    for arms in ((many, alone), (alone, many)):
        assert errors("weak_scaling_efficiency", *arms) == pytest.approx([math.nan], nan_ok=True)


def test_imported_readings_stand_for_themselves() -> None:
    # 0.08 s a step
    measured = rounds([100], single_sample=True, utilization=0.9, peak_memory_bytes=GIB, step_stdev_s=0.004)
    expected = {"device_utilization": 0.9, "peak_memory_gib": 1.0, "memory_spread": 0.0, "step_time_cv": 0.05}
    for metric, value in expected.items():
        assert of(metric, measured) == pytest.approx([value])
        assert errors(metric, measured) == [0.0]


def test_imported_results_keep_no_steps_of_which_to_take_a_percentile() -> None:
    assert of("step_time_p95", rounds([100], single_sample=True, step_stdev_s=0.004)) == []
    assert of("step_time_cv", rounds([100], single_sample=True)) == []


EACH, ALONE = Arm("each", 4, 4), Arm("alone", 1, 4)


def timed(*step_s: tuple[float, ...], per_host: int = 4, arm: Arm = EACH) -> ArmRounds:
    times = [(n, rank, step) for n, steps in enumerate(step_s) for rank, step in enumerate(steps)]
    return rounds_of([timed_block(arm, n, rank, step, per_host) for n, rank, step in times])


def timed_block(arm: Arm, number: int, rank: int, step_s: float, per_host: int = 4) -> Measurement:
    host, local_rank = f"n{rank // per_host}", rank % per_host
    return with_steps(make_measurement("weak/r", arm, number, rank, host=host, local_rank=local_rank), [step_s] * 4)


def test_a_slow_rank_is_as_slow_as_it_is_whatever_a_round_was_like() -> None:
    found = slowness_of(timed((1.0, 1.0, 1.1, 1.0), (2.0, 2.0, 2.2, 2.0)))
    assert found == pytest.approx({("n0", 0): 1.0, ("n0", 1): 1.0, ("n0", 2): 1.1, ("n0", 3): 1.0})


def test_of_two_the_faster_one_is_typical() -> None:
    assert slowness_of(timed((1.2, 1.0))) == pytest.approx({("n0", 0): 1.2, ("n0", 1): 1.0})


def test_ranks_of_a_host_are_compared_with_each_other() -> None:
    found = slowness_of(timed((1.0, 1.1, 2.0, 2.0), per_host=2), within_hosts=True)
    assert found == pytest.approx({("n0", 0): 1.0, ("n0", 1): 1.1, ("n1", 0): 1.0, ("n1", 1): 1.0})


def test_without_rounds_nobody_is_known() -> None:
    assert slowness_of(NO_ROUNDS) == {}


def test_a_rank_alone_counts_as_a_typical_one() -> None:
    many = timed((1.1,) * 4, (1.1,) * 4)
    turns = rounds_of([timed_block(ALONE, n, rank, step) for n, rank, step in ((0, 0, 1.0), (1, 2, 1.1))])
    slowness = slowness_of(timed((1.0, 1.0, 1.1, 1.0)))
    scaled, unscaled = (read(WEAK_SCALING_EFFICIENCY, Arms(many, turns, 4, one)).values for one in (slowness, {}))
    assert scaled == pytest.approx([1 / 1.1] * 2)
    assert unscaled == pytest.approx([1 / 1.1, 1.0])


TIMES = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=40)


def rank_of(rank: int, *step_s: float, stdev_s: float | None = None) -> Measurement:
    return Measurement(
        "weak/r", "ddp@2", 0, rank, rank, "node0", f"GPU-{rank}", 8, max(len(step_s), 1), sum(step_s) or 1.0, 1.7e9,
        step_s=step_s, step_stdev_s=stdev_s,
    )  # fmt: skip


@given(TIMES, st.floats(0, 100))
def test_percentiles_are_those_of_numpy(times: list[float], percent: float) -> None:
    assert percentile(times, percent) == pytest.approx(float(np.percentile(times, percent)))


@rows(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 101), ([1.0], float("nan"))])
def test_there_is_no_such_percentile(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="expected 0 to 100 of at least 1"):
        percentile(values, percent)


def test_percentiles_of_an_arm_are_over_all_ranks_and_rounds_in_ms() -> None:
    steps = [0.001 * i for i in range(100)]
    first = [rank_of(0, *steps[:20]), rank_of(1, *steps[20:40])]
    second = [rank_of(0, *steps[40:70]), rank_of(1, *steps[70:])]
    expected = {50: 49.5, 75: 74.25, 90: 89.1, 95: 94.05, 99: 98.01}
    measured = rounds_of([*first, *(replace(one, round=1) for one in second)])
    assert step_time_percentiles_ms(measured) == pytest.approx(expected)


def test_rounds_without_the_steps_of_every_rank_do_not_count() -> None:
    whole, part = [rank_of(0, 0.1), rank_of(1, 0.1)], [replace(rank_of(rank), round=1) for rank in (0, 1)]
    part[1] = replace(part[1], step_s=(9.0,))
    assert round_percentiles_ms(rounds_of([*whole, *part]), 95).tolist() == pytest.approx([100, math.nan], nan_ok=True)
    assert step_time_percentiles_ms(rounds_of([*whole, *part])) == pytest.approx(dict.fromkeys(PERCENTS, 100.0))
    assert step_time_percentiles_ms(rounds_of(part)) == step_time_percentiles_ms(NO_ROUNDS) == {}


def cv_of(*ranks: Measurement) -> float:
    (cv,) = step_time_cv(rounds_of(ranks))
    return float(cv)


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=20), st.floats(0.1, 10.0))
def test_a_rank_that_is_slow_throughout_is_as_steady_as_a_fast_one(times: list[float], factor: float) -> None:
    fast, slow = rank_of(0, *times), rank_of(1, *[factor * time for time in times])
    found = cv_of(fast, slow)
    assert found == pytest.approx(statistics.stdev(times) / statistics.fmean(times), abs=1e-6)


def test_the_spread_of_an_import_is_the_one_it_states() -> None:
    # 1 s a step
    stated, other = rank_of(0, stdev_s=0.02), rank_of(1)
    assert cv_of(stated, replace(other, step_stdev_s=0.03)) == pytest.approx(0.03)
    assert math.isnan(cv_of(stated, other))


def test_one_step_has_no_spread_and_steps_of_no_time_have_none() -> None:
    assert math.isnan(cv_of(rank_of(0, 0.1)))
    assert math.isnan(cv_of(rank_of(0, 0.0, 0.0)))
