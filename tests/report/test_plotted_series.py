"""What is plotted is what was measured."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from pytest_ddpscale.plan.metric_catalogue import STRONG_SCALING_SPEEDUP, THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.study import Arm
from pytest_ddpscale.plan.variant import Variant
from pytest_ddpscale.report.plotted_series import throughput_series
from tests.builders.judgements import MEASUREMENTS, PLAN, RESNET, STUDIES, make_measurements, make_plan, make_study
from tests.builders.measurements import Measurement
from tests.builders.rounds import columns_of

WEAK = make_study("weak", RESNET, (1, 2))


def _block(arm: str, number: int, rank: int, block_s: float) -> Measurement:
    return Measurement("weak/resnet152-fp16", arm, number, rank, rank, "n", "cpu", 512, 10, block_s, 1.7e9)


def test_slowest_rank_sets_the_throughput_of_a_round() -> None:
    (series,) = throughput_series(columns_of([_block("ddp@2", 0, 0, 4.0), _block("ddp@2", 0, 1, 5.0)]), make_plan(WEAK))
    (point,) = series.points(THROUGHPUT_PER_GPU)
    assert point.world_size == 2
    assert point.center == pytest.approx(512 * 10 / 5.0)


def test_an_arm_with_other_settings_is_no_point_of_the_curve() -> None:
    """Such as synthetic data in place of a folder's images."""
    other = Arm("ddp", 2, 512, variant=Variant(bucket_cap_mb=1))
    study = replace(WEAK, arms=(*WEAK.arms, other))
    blocks = [_block("ddp@2", 0, rank, 5.0) for rank in (0, 1)] + [_block(other.name, 0, rank, 1.0) for rank in (0, 1)]
    (series,) = throughput_series(columns_of(blocks), make_plan(study))
    assert series.points(THROUGHPUT_PER_GPU)[0].center == pytest.approx(512 * 10 / 5.0)


def test_efficiency_pairs_the_arms_of_one_round() -> None:
    blocks = [_block("alone", 0, 0, 4.0), _block("alone", 1, 0, 2.0)]
    blocks += [_block("ddp@2", i, rank, seconds) for i, seconds in ((0, 5.0), (1, 2.5), (2, 9.0)) for rank in (0, 1)]
    (series,) = throughput_series(columns_of(blocks), make_plan(WEAK))
    (point,) = series.points(WEAK_SCALING_EFFICIENCY)
    assert point.world_size == 2
    assert point.center == pytest.approx(0.8)
    assert [point.below, point.above] == pytest.approx([0, 0], abs=1e-9)
    assert series.points(STRONG_SCALING_SPEEDUP)[0].center == pytest.approx(1.6)


@pytest.mark.parametrize(("one_gpu", "efficiency"), [(("ddp@1",), 0.8), (("ddp@1", "alone"), 0.6)])
def test_one_gpu_is_the_one_under_ddp_where_none_was_measured_alone(
    one_gpu: tuple[str, ...], efficiency: float
) -> None:
    arms = tuple(Arm("alone" if name == "alone" else "ddp", 1, 512) for name in one_gpu)
    study = replace(WEAK, arms=(*arms, Arm("ddp", 2, 512)))
    blocks = [_block(name, 0, 0, 3.0 if name == "alone" else 4.0) for name in one_gpu]
    blocks += [_block("ddp@2", 0, rank, 5.0) for rank in (0, 1)]
    (series,) = throughput_series(columns_of(blocks), make_plan(study))
    assert series.points(WEAK_SCALING_EFFICIENCY)[0].center == pytest.approx(efficiency)


def test_error_bars_are_one_geometric_standard_deviation() -> None:
    seconds = (4.0, 4.4, 4.1)
    (series,) = throughput_series(
        columns_of([_block("alone", i, 0, s) for i, s in enumerate(seconds)]), make_plan(WEAK)
    )
    (point,) = series.points(THROUGHPUT_PER_GPU)
    logs = [math.log(5120 / s) for s in seconds]
    assert point.center == pytest.approx(math.exp(statistics.fmean(logs)))
    assert point.center + point.above == pytest.approx(point.center * math.exp(statistics.stdev(logs)))
    assert point.center - point.below == pytest.approx(point.center / math.exp(statistics.stdev(logs)))


def test_single_round_has_no_error_bar() -> None:
    (series,) = throughput_series(columns_of(make_measurements(WEAK, 1000.0, 0.05, rounds=1)), make_plan(WEAK))
    assert {(point.below, point.above) for point in series.points(THROUGHPUT_PER_GPU)} == {(0.0, 0.0)}


def test_round_that_lacks_a_rank_is_left_out() -> None:
    assert throughput_series(columns_of([_block("ddp@2", 0, 0, 4.0)]), make_plan(WEAK)) == []


def test_what_the_plan_does_not_know_is_left_out() -> None:
    stray = [replace(_block("alone", 0, 0, 4.0), study="weak/other"), _block("ddp@4", 0, 0, 4.0)]
    assert throughput_series(columns_of(stray), make_plan(WEAK)) == []


def test_one_series_per_study_in_the_order_of_the_plan() -> None:
    found = throughput_series(columns_of(MEASUREMENTS), PLAN)
    assert [f"{series.scaling}/{series.workload}" for series in found] == [study.id for study in STUDIES]
    assert [point.world_size for point in found[0].points(THROUGHPUT_PER_GPU)] == [1, 2, 4, 8]
    assert [point.world_size for point in found[0].points(WEAK_SCALING_EFFICIENCY)] == [2, 4, 8]


def test_of_several_nodes_the_curve_is_that_of_rank_0s_and_of_packed_ranks() -> None:
    spread = replace(WEAK, arms=(*WEAK.arms, Arm("ddp", 2, 512, "spread")))
    plan = replace(make_plan(spread), nodes=2, ranks_per_node=2)

    def block(arm: str, rank: int, block_s: float) -> Measurement:
        node, local_rank = divmod(rank, 2)
        return replace(_block(arm, 0, rank, block_s), host=f"n{node}", local_rank=local_rank)

    blocks = [block("ddp@2", rank, 4.0 + rank // 2) for rank in range(4)]
    blocks += [block("ddp@2-spread", rank, 9.0) for rank in (0, 2)]
    (series,) = throughput_series(columns_of(blocks), plan)
    (point,) = series.points(THROUGHPUT_PER_GPU)
    assert point.center == pytest.approx(512 * 10 / 4.0)
