"""Series keep what a window may ask for, in time's order and within a bound."""

from __future__ import annotations

from pytest_ddpscale.telemetry.windows import Intervals, TimedValues
from tests.rows import rows


def series(*items: tuple[float, float]) -> TimedValues:
    made = TimedValues()
    for time_s, value in items:
        made.append(time_s, value)
    return made


def test_a_sample_at_the_start_belongs_to_the_window_before() -> None:
    samples = series((1, 10), (2, 20), (3, 30))
    assert samples.within(1, 2) == [20]
    assert samples.within(2, 3) == [30]
    assert samples.within(1, 3) == [20, 30]
    assert samples.within(3, 9) == []


def test_what_was_seen_already_is_not_taken_twice() -> None:
    assert series((1, 10), (2, 20), (2, 99), (1.5, 99), (3, 30)).items(0, 9) == [(1, 10), (2, 20), (3, 30)]


def test_the_oldest_go_by_age() -> None:
    samples = TimedValues(keep_s=100)
    for second in range(1000):
        samples.append(second, second)
    assert samples.within(899, 999) == list(range(900, 1000))
    assert len(samples) <= 111


def test_the_oldest_go_by_number() -> None:
    samples = TimedValues(most=50)
    for number in range(1000):
        samples.append(number / 1000, number)
    assert 50 <= len(samples) <= 55
    assert samples.newest_s == 0.999


@rows(("time_s", "value"), [(1, 10), (1.25, 15), (2, 30), (4, 50), (3, 40), (0.999, None), (4.001, None)])
def test_between_neighbours_values_lie_on_a_line(time_s: float, value: float | None) -> None:
    assert series((1, 10), (2, 30), (4, 50)).at(time_s) == value


def test_nothing_is_known_of_an_empty_series() -> None:
    assert TimedValues().at(1) is None
    assert TimedValues().around(1, 2) is None
    assert TimedValues().newest_s is None


def test_a_window_is_enclosed_by_the_values_around_it() -> None:
    totals = series((1, 10), (2, 20), (3, 30), (4, 40))
    assert totals.around(2, 3) == [20, 30]
    assert totals.around(1.9, 3.1) == [10, 20, 30, 40]
    assert totals.around(0.9, 3) is None
    assert totals.around(2, 4.1) is None


def test_stretches_mostly_outside_the_window_are_left_out() -> None:
    means = Intervals()
    for begin, end, value in [(0, 1, 0.1), (1, 2, 0.2), (2, 3, 0.3), (3, 4, 0.4)]:
        means.append(begin, end, value)
    assert means.within(1, 3) == [(1, 0.2), (1, 0.3)]
    assert means.within(0.5, 3.25) == [(0.5, 0.1), (1, 0.2), (1, 0.3)]
    assert means.within(1.4, 1.6) == []
    assert means.within(9, 10) == []


def test_old_stretches_go() -> None:
    means = Intervals(keep_s=10)
    for second in range(100):
        means.append(second, second + 1, second)
    assert [value for _, value in means.within(0, 100)] == list(range(89, 100))
