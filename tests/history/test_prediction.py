"""Within which values the next one should lie."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.history.prediction import LEAST_SPREAD, Reference, is_lower_better, reference_of, shared_confidence
from tests.builders.nights import stable


def reference(*values: float) -> Reference:
    found = reference_of(values)
    assert found is not None
    return found


def test_the_interval_is_that_of_the_textbook() -> None:
    """Five logarithms with mean 0 and standard deviation 0.1; t(4) at 97.5 % is 2.776."""
    logs = (-0.12649110640673517, -0.06324555320336758, 0.0, 0.06324555320336758, 0.12649110640673517)
    found = reference(*map(math.exp, logs))
    assert found.log_sd == pytest.approx(0.1)
    assert found.reach(0.95) == pytest.approx(2.776445 * 0.1 * math.sqrt(1.2), rel=1e-5)
    assert found.interval(0.95) == pytest.approx((math.exp(-found.reach(0.95)), math.exp(found.reach(0.95))))


def test_the_robust_spread_passes_over_one_odd_night() -> None:
    steady = reference(98.0, 99.0, 100.0, 101.0, 102.0, 100.0, 99.5)
    odd = reference(98.0, 99.0, 100.0, 101.0, 102.0, 100.0, 10.0)
    assert odd.spread == pytest.approx(steady.spread, rel=0.6)
    assert odd.log_sd > 10 * steady.log_sd
    assert odd.median == 100.0


def test_the_robust_spread_is_the_standard_deviation_of_normal_values() -> None:
    many = reference(*stable(random.Random(1), 4001, 0.02))
    assert many.spread == pytest.approx(0.02, rel=0.05)
    assert many.spread == pytest.approx(many.log_sd, rel=0.06)


def test_equal_values_are_no_proof_of_no_noise() -> None:
    found = reference(*[100.0] * 5)
    assert found.log_sd == 0.0
    low, high = found.interval(0.95)
    assert low < 100 * (1 - 2 * LEAST_SPREAD) < 100 * (1 + 2 * LEAST_SPREAD) < high


@given(st.lists(st.floats(1e-3, 1e9), min_size=5, max_size=30), st.floats(0.5, 0.999))
def test_the_interval_holds_the_geometric_mean_and_grows_with_confidence(
    values: list[float], confidence: float
) -> None:
    found = reference(*values)
    low, high = found.interval(confidence)
    assert low < statistics.geometric_mean(values) < high
    wider = found.interval(1 - (1 - confidence) / 10)
    assert wider[0] < low
    assert high < wider[1]


def test_of_nothing_there_is_no_reference_and_of_few_none_that_is_enough() -> None:
    assert reference_of(()) is None
    assert reference(1.0).log_sd == 0.0
    assert [reference(*[1.0] * number).is_enough for number in (1, 4, 5)] == [False, False, True]


def test_impossible_numbers_are_no_reference() -> None:
    rows: list[dict[str, Any]] = [
        {"number": 0}, {"number": 5.0}, {"number": True}, {"median": 0.0}, {"median": math.nan}, {"log_sd": -1.0},
        {"log_mean": math.inf}, {"spread": -0.1},
    ]  # fmt: skip
    for fields in rows:
        possible = {"number": 5, "median": 1.0, "log_mean": 0.0, "log_sd": 0.1, "spread": 0.1}
        with pytest.raises(ValueError, match="expected a whole number"):
            Reference(**(possible | fields))


def test_times_and_memory_should_be_low_and_all_else_high() -> None:
    assert {name for name in ("step_time_p95", "peak_memory_gib") if is_lower_better(name)} == {
        "step_time_p95",
        "peak_memory_gib",
    }
    assert not any(map(is_lower_better, ("throughput_per_gpu", "matmul_tflops", "busbw_gbps", "some_other")))


def test_values_that_differ_beyond_reason_give_an_interval_that_json_can_hold() -> None:
    low, high = reference(1e-300, 1e300).interval(0.999999)
    assert 0.0 < low < high < math.inf


def test_many_intervals_share_the_risk() -> None:
    assert shared_confidence(0.95, 1) == pytest.approx(0.95)
    assert shared_confidence(0.95, 50) == pytest.approx(0.999)
    assert shared_confidence(0.95, 0) == pytest.approx(0.95)
