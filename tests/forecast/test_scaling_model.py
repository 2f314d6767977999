"""Forecasts of throughput at sizes that were not measured."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.forecast.measured_sizes import MeasuredSize, ScalingSeries
from pytest_ddpscale.forecast.scaling_model import Forecast, ScalingModel
from pytest_ddpscale.plan.study import Scaling

TINY = {1: 242.0, 2: 475.0, 4: 935.0, 8: 1817.0, 16: 3597.0}  # table 12.5 of a chapter on DDP; 32 GPUs: 6914
SERVED = {1: 100.0, 2: 198.0, 4: 394.0, 8: 784.0}


def model(
    rates: dict[int, float], per_node: int = 4, scaling: Scaling = "weak", error: float | None = None
) -> ScalingModel:
    sizes = tuple(MeasuredSize(gpus, rate, error=error) for gpus, rate in rates.items())
    return ScalingModel(ScalingSeries(scaling, "vit", per_node, sizes))


def limits(found: Forecast) -> tuple[float, float]:
    assert found.interval is not None
    return found.interval


def half_width(found: Forecast) -> float:
    low, high = limits(found)
    return (high - low) / 2 / found.img_per_s


def test_a_published_size_lies_in_its_interval() -> None:
    found = model(TINY).forecast(32)
    low, high = limits(found)
    assert low < 6914 < high
    assert half_width(found) < 0.05


def test_the_interval_grows_with_the_distance() -> None:
    near, far = model(TINY).forecast(32), model(TINY).forecast(512)
    assert far.times_largest == 32
    assert half_width(far) > 2 * half_width(near)


def test_rounds_that_vary_more_make_a_wider_interval() -> None:
    halves = [half_width(model(TINY, error=error).forecast(32)) for error in (0.001, 0.005, 0.02, 0.05)]
    assert all(wider > 1.2 * narrower for narrower, wider in pairwise(halves))


def test_a_size_whose_rounds_vary_weighs_less() -> None:
    """A dip at 8 GPUs, which is sure in one run and noise in the other."""
    rates = {1: 100.0, 2: 200.0, 4: 400.0, 8: 720.0}
    errors = {1: 0.001, 2: 0.001, 4: 0.001}
    found = []
    for error in (0.001, 0.05):
        sizes = tuple(MeasuredSize(gpus, rate, error=errors.get(gpus, error)) for gpus, rate in rates.items())
        found.append(ScalingModel(ScalingSeries("weak", "vit", 16, sizes)).forecast(16))
    assert found[0].efficiency < 0.85
    assert found[1].efficiency > 0.95


def test_a_size_without_rounds_counts_as_off_by_what_is_assumed() -> None:
    assumed, by_rounds = model(TINY).forecast(32), model(TINY, error=0.0001).forecast(32)
    assert half_width(assumed) > half_width(by_rounds)


def test_sizes_off_every_form_make_a_wider_interval_than_their_rounds_say() -> None:
    rough = {1: 100.0, 2: 190.0, 4: 396.0, 8: 740.0, 16: 1570.0}
    smooth = {1: 100.0, 2: 196.0, 4: 386.0, 8: 760.0, 16: 1500.0}
    wide, narrow = (half_width(model(rates, error=0.001).forecast(32)) for rates in (rough, smooth))
    assert wide > 2 * narrow


def test_a_measured_size_is_told_as_measured() -> None:
    found = model(TINY).forecast(16)
    assert (found.img_per_s, found.interval, found.efficiency_interval) == (3597.0, None, None)
    assert found.efficiency == pytest.approx(3597 / 16 / 242)


def test_no_overhead_is_below_nothing() -> None:
    """Rates that happen to lie above ideal are noise: more GPUs gain no more than GPUs."""
    lucky = {1: 100.0, 2: 201.0, 4: 404.0, 8: 812.0}
    found = model(lucky, 16, error=0.005).forecast(16)
    assert found.img_per_s < 1.5 * 812 + 812 / 2
    assert found.efficiency < 1.015  # of the sizes' mean, and not what a straight line through them would reach


def test_noise_alone_still_has_an_interval_around_it() -> None:
    for seed in range(20):
        chance = np.random.default_rng(seed)
        rates = {gpus: gpus * 100.0 * float(np.exp(0.2 * chance.standard_normal())) for gpus in (1, 2, 4, 8)}
        found = model(rates, 16, error=0.2).forecast(16)
        low, high = limits(found)
        assert 0 < low < found.img_per_s < high < 1e6
        assert half_width(found) > 0.15


def test_the_same_run_has_the_same_forecast() -> None:
    assert model(TINY).forecast(64) == model(TINY).forecast(64)


def test_one_node_says_nothing_of_two() -> None:
    with pytest.raises(OptionError, match="no arm of vit was measured across nodes"):
        model({1: 100.0, 2: 195.0, 4: 388.0}).forecast(8)


def test_one_size_says_nothing_of_others() -> None:
    with pytest.raises(OptionError, match="at one world size only"):
        model({8: 800.0}, 8).forecast(4)


def test_two_sizes_that_scale_better_than_ideal_give_a_forecast_around_it() -> None:
    low, high = limits(model({1: 100.0, 2: 204.0}, 8).forecast(4))
    assert low < 400 < high


def test_strong_scaling_that_stopped_is_not_forecast_to_go_on() -> None:
    found = model({1: 100.0, 2: 137.0, 4: 151.0}, 8, "strong").forecast(8)
    assert found.img_per_s < 250


def test_strong_scaling_may_stop_at_any_size() -> None:
    """Where the host limits a step is told by no smaller size: 8 more GPUs may bring nothing."""
    low, high = limits(model(SERVED, 16, "strong", error=0.0005).forecast(16))
    assert low < 784
    assert high > 1500
    assert limits(model(SERVED, 16, "weak", error=0.0005).forecast(16))[0] > 1500


def test_strong_scaling_may_stop_between_two_sizes() -> None:
    low, high = limits(model({1: 100.0, 8: 656.0}, 8, "strong", error=0.0005).forecast(6))
    assert low < 6 * 82
    assert high > 600


def test_sizes_that_fit_by_chance_are_not_taken_for_surer_than_assumed() -> None:
    ideal = model({gpus: 100.0 * gpus for gpus in (1, 2, 4, 8, 16)}, 16)
    assert half_width(ideal.forecast(12)) > 1.96 * 0.004


@pytest.mark.parametrize("error", [None, 0.0, 1.0])
@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_sizes_that_make_no_sense_still_have_finite_limits(error: float | None, scaling: Scaling) -> None:
    rates = {13: 13.5, 18: 40.2, 32: 63.9, 958: 65.8e6, 5714: 4394.0, 5912: 5912.0}
    for gpus in (1, 500, 1_000_000):
        found = model(rates, 15, scaling, error).forecast(gpus)
        low, high = limits(found)
        assert 0 < low <= found.img_per_s <= high < 1e30
