"""Which values are no norm for later runs: those that fell, and hardly any other."""

from __future__ import annotations

import random
import statistics

import pytest

from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries
from pytest_ddpscale.history.prediction import MOST_VALUES, Reference, reference_of
from pytest_ddpscale.history.regression import regressed_values
from tests.builders.nights import key_value, stable

STEADY = (99.7, 100.0, 100.3, 100.0, 100.2, 99.8)
YOUNG = (98.9, 101.1, 100.0, 98.9, 101.1)  # five nights of a place that strays by a per cent


def place(number: int, value: float = 100.0, metric: str = "throughput_per_gpu") -> KeyValue:
    return key_value(value, metric, gpu_index=number, gpu_uuid=f"GPU-{number}")


def past(values: list[KeyValue], *earlier: float) -> dict[KeyValueSeries, Reference]:
    reference = reference_of(earlier)
    assert reference is not None
    return {one.series: reference for one in values}


def test_only_what_is_worse_than_predicted_has_fallen() -> None:
    values = [place(0, 90.0), place(1, 99.9), place(2, 110.0)]
    assert regressed_values(values, past(values, *STEADY)) == {values[0]}


def test_where_lower_is_better_what_rose_has_fallen() -> None:
    values = [place(0, 90.0, "step_time_p95"), place(1, 110.0, "step_time_p95")]
    assert regressed_values(values, past(values, *STEADY)) == {values[1]}


def test_with_fewer_than_five_earlier_values_nothing_has() -> None:
    values = [place(0, 50.0), place(1, 50.0)]
    assert regressed_values(values, past(values[:1], *STEADY[:4])) == set()


@pytest.mark.parametrize(("value", "has_fallen"), [(91.0, True), (96.0, False)])
def test_a_large_loss_is_found_among_many_values_while_their_past_is_short(value: float, has_fallen: bool) -> None:
    """All intervals together reach 10 % down. A sound night is in there too, and is not left out."""
    values = [place(0, value), *[place(number) for number in range(1, 48)]]
    assert regressed_values(values, past(values, *YOUNG)) == ({values[0]} if has_fallen else set())


@pytest.mark.parametrize("sd", [0.003, 0.03])
def test_a_place_that_does_not_change_keeps_its_norm(sd: float) -> None:
    """What is left out for good is what strays down: the norm of a thousand nights must not climb for that."""
    random_ = random.Random(1)
    left_out = 0
    norm = {number: list(stable(random_, MOST_VALUES, sd)) for number in range(10)}
    for _ in range(1000):
        tonight = [place(number, stable(random_, 1, sd)[0]) for number in norm]
        earlier = {one.series: reference_of(norm[one.gpu_index or 0][-MOST_VALUES:]) for one in tonight}
        fallen = regressed_values(tonight, {series: one for series, one in earlier.items() if one})
        left_out += len(fallen)
        for one in set(tonight) - fallen:
            norm[one.gpu_index or 0].append(one.value)
    assert left_out <= 0.045 * 10_000
    kept = [value for values in norm.values() for value in values[-500:]]
    assert statistics.fmean(kept) == pytest.approx(100.0, rel=0.15 * sd)
    assert statistics.stdev(kept) >= 0.9 * sd * 100
