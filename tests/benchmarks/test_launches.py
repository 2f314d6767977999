"""Intervals over launches are held against what the other runs found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.scripts import benchmark

launches = benchmark("launches")


def found(*halves: float, values: tuple[float, ...] = ()) -> Any:
    """Runs with intervals of these relative half-widths; of value 100 unless `values` says otherwise."""
    of_each = values or (100.0,) * len(halves)
    intervals = [
        launches.Interval(value, value * (1 - half), value * (1 + half), 0.1)
        for value, half in zip(of_each, halves, strict=True)
    ]
    return launches.Found("throughput_per_gpu[r-1rank]", tuple(intervals))


def test_an_interval_is_held_against_the_mean_of_the_others_and_not_its_own() -> None:
    assert found(0.1, 0.1, 0.1, values=(100.0, 100.0, 130.0)).hits == [False, False, False]
    assert found(0.2, 0.2, 0.2, values=(100.0, 100.0, 130.0)).hits == [True, True, False]


@pytest.mark.parametrize(
    ("one", "is_as_expected"),
    [
        (found(*[0.1] * 10), True),
        (found(*[0.3] * 10), False),
        (found(*[0.2] * 10, values=(*[100.0] * 9, 200.0)), True),
        (found(*[0.2] * 10, values=(*[100.0] * 8, 200.0, 50.0)), False),
    ],
    ids=["narrow", "too wide", "nine of ten", "eight of ten"],
)
def test_nine_of_ten_have_to_hold_and_half_to_be_narrow(one: Any, is_as_expected: bool) -> None:
    assert one.is_as_expected == is_as_expected
    assert ("NO" in launches.lines_of(one)) == (False in one.hits)
