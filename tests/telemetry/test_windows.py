"""A window's readings are those of the window, and what is not known of it is None with a reason.

Series keep what a window may ask for, in time's order and within a bound.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_ddpscale.telemetry import sampled_gpu
from pytest_ddpscale.telemetry.sampled_gpu import SampledGpu
from pytest_ddpscale.telemetry.windows import (
    GpuLog,
    Intervals,
    TimedValues,
    cut,
    shares_of_reasons,
)
from tests.rows import rows


def fill(series: TimedValues, *items: tuple[float, float]) -> None:
    for time_s, value in items:
        series.append(time_s, value)


def test_nothing_read_is_a_record_of_nothing_with_reasons() -> None:
    telemetry = cut(GpuLog(), 10, 12)
    assert (telemetry.utilization, telemetry.energy_j, telemetry.throttle_reasons) == (None, None, None)
    assert telemetry.ecc_uncorrected is None
    assert {telemetry.unreadable[name] for name in ("utilization", "energy_j", "sm_activity", "ecc_corrected")} == {
        "no sample in the window"
    }


def test_a_gpu_that_does_not_answer_says_why() -> None:
    telemetry = cut(GpuLog(problem="GPU is lost"), 10, 12)
    assert telemetry.unreadable == {"device": "GPU is lost"}


def test_the_drivers_reason_is_given() -> None:
    log = GpuLog(reasons={"energy_j": "Not Supported", "utilization samples": "Unknown Error", "sm_activity": "Old"})
    unreadable = cut(log, 10, 12).unreadable
    assert unreadable["energy_j"] == "Not Supported"
    assert unreadable["utilization"] == "Unknown Error"
    assert unreadable["sm_activity"] == "Old"


def test_the_drivers_samples_go_before_polled_values() -> None:
    log = GpuLog()
    fill(log.buffered["utilization"], (10, 0.1), (11, 0.5), (12, 0.7))
    fill(log.polled["utilization"], (11.5, 0.0))
    telemetry = cut(log, 10, 12)
    assert telemetry.utilization == pytest.approx(0.6)
    later = cut(log, 12, 13)
    assert later.utilization is None
    fill(log.polled["utilization"], (12.5, 0.25))
    assert cut(log, 12, 13).utilization == 0.25


@rows(
    ("busy", "watts", "joules", "sms", "why"),
    [
        (0.0, 390, None, None, "0 % busy, although it drew 390 W of 400 W"),
        (0.09, 200, None, None, "9 % busy, although it drew 200 W of 400 W"),
        (0.0, 60, None, 0.5, "0 % busy, although 50 % of its SMs worked"),
        (0.0, 60, 600, None, "0 % busy, although it drew 300 W of 400 W"),
        (0.0, 390, 120, None, ""),  # samples still show the second before the window
        (0.0, 199, None, 0.49, ""),
        (0.1, 390, None, 0.9, ""),
    ],
)
def test_a_gpu_that_works_is_not_said_to_be_idle(
    busy: float, watts: float, joules: float | None, sms: float | None, why: str
) -> None:
    log = GpuLog(limits={"power_limit_w": 400.0})
    fill(log.buffered["utilization"], (11, busy), (12, busy))
    fill(log.buffered["power_w"], (11, watts), (12, watts))
    fill(log.counters["energy_j"], *([] if joules is None else [(10, 0), (12, joules)]))
    if sms is not None:
        log.sm_activity.append(10, 12, sms)
    telemetry = cut(log, 10, 12)
    assert telemetry.unreadable.get("utilization", "") == why
    assert (telemetry.utilization is None) == bool(why)
    assert telemetry.power_w is not None


def test_energy_is_the_counters_growth_in_the_window() -> None:
    log = GpuLog()
    fill(log.counters["energy_j"], (9, 1000), (11, 1200), (13, 2200))
    fill(log.buffered["power_w"], (10, 1), (11, 1), (12, 1))
    telemetry = cut(log, 10, 12)
    assert telemetry.energy_j == pytest.approx(100 + 500)


@rows("totals", [[(11, 5), (13, 9)], [(9, 5), (11, 9)], [(9, 5), (11, 9), (13, 2)]],
                         ids=["begun in the window", "ended in it", "set back in it"])  # fmt: skip
def test_a_counter_that_does_not_span_the_window_says_nothing(totals: list[tuple[float, float]]) -> None:
    log = GpuLog()
    for reading in ("energy_j", "ecc_uncorrected"):
        fill(log.counters[reading], *totals)
    telemetry = cut(log, 10, 12)
    assert (telemetry.energy_j, telemetry.ecc_uncorrected) == (None, None)


def test_errors_of_the_polls_around_the_window_count() -> None:
    log = GpuLog()
    fill(log.counters["ecc_corrected"], (8, 3), (9, 4), (11, 4), (13, 6), (14, 9))
    assert cut(log, 10, 12).ecc_corrected == 2
    assert cut(log, 9, 11).ecc_corrected == 0


def test_gpm_means_weigh_as_long_as_they_last() -> None:
    log = GpuLog()
    for begin, end, value in [(9.9, 10.0, 0.0), (10.0, 11.5, 0.8), (11.5, 12.5, 0.4)]:
        log.sm_activity.append(begin, end, value)
    telemetry = cut(log, 10, 12)
    assert telemetry.sm_activity == pytest.approx((1.5 * 0.8 + 0.5 * 0.4) / 2)


def test_the_link_is_as_bad_as_it_was_seen() -> None:
    log = GpuLog()
    fill(log.polled["pcie_width"], (10, 4), (11, 16), (12, 8))
    fill(log.polled["pcie_generation"], (11, 5), (12, 5))
    telemetry = cut(log, 10, 12)
    assert (telemetry.pcie_width, telemetry.pcie_generation) == (8, 5)


def test_reasons_are_shares_of_polls_and_no_poll_is_not_no_reason() -> None:
    assert shares_of_reasons([]) is None
    assert shares_of_reasons([0.0, 0.0]) == {}
    assert shares_of_reasons([0x4, 0x4 | 0x40, 0x8, 0x8000]) == {
        "sw_power_cap": 0.5,
        "hw_thermal_slowdown": 0.25,
        "hw_slowdown": 0.25,
        "unknown_0x8000": 0.25,
    }


def idle_until_10() -> GpuLog:
    log = GpuLog()
    fill(log.buffered["utilization"], *((t / 2, 0.0 if t < 20 else 1.0) for t in range(40)))
    fill(log.buffered["power_w"], *((t / 4, 60.0 if t < 42 else 500.0) for t in range(80)))
    return log


def test_idle_power_is_that_before_the_first_window() -> None:
    log = idle_until_10()
    assert cut(log, 14, 15).idle_power_w == 60
    assert cut(log, 2, 3).idle_power_w == 60  # settled by the first window


def test_a_gpu_never_seen_idle_has_no_idle_power() -> None:
    log = idle_until_10()
    log.buffered["utilization"] = TimedValues()
    fill(log.buffered["utilization"], *((t / 2, 0.01) for t in range(40)))
    found = cut(log, 14, 15)
    assert found.idle_power_w is None
    assert "idle" in found.unreadable["idle_power_w"]


def test_power_beside_work_is_not_idle_power() -> None:
    log = GpuLog()
    fill(log.buffered["utilization"], *((float(t), 0.0) for t in range(1, 6)), (6.0, 1.0), (7.0, 0.0), (8.0, 0.0))
    fill(log.buffered["power_w"], (4.0, 60.0), (5.5, 300.0), (7.5, 310.0))
    assert cut(log, 8.5, 9).idle_power_w == 60


def series(*items: tuple[float, float]) -> TimedValues:
    made = TimedValues()
    fill(made, *items)
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


def test_a_clock_that_is_set_back_costs_no_reading_of_later_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, now = SampledGpu("GPU-played"), [0.0]
    gpu.log.problem = ""  # there is no NVML here
    played = {"temperature_c": 61, "utilization": 0.9, "ecc_corrected": 4, "energy_j": 7.0}
    monkeypatch.setattr(gpu._calls, "ask", lambda reading, *_: played.get(reading))
    monkeypatch.setattr(sampled_gpu, "time", SimpleNamespace(time=lambda: now[0]))
    gpu.log.buffered["utilization"].append(1000.5, 0.1)
    for now[0] in (999.0, 1000.0, 1001.0, 900.0, 901.0, 902.0, 903.0):
        gpu.poll()
    found = cut(gpu.log, 900.5, 902.5)
    assert (found.polls, found.ecc_corrected, found.energy_j) == (2, 0, 0.0)
    assert found.temperature_c is not None
    assert found.utilization == 0.9
