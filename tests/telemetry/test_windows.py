"""A window's readings are those of the window, and what is not known of it is None with a reason."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_ddpscale.telemetry.sampler import GpuPoll
from pytest_ddpscale.telemetry.windows import GpuLog, Sampler
from tests.rows import rows

Timed = Sequence[tuple[float, float]]
NOTHING = "no sample in the window"
SAMPLED = ("utilization", "power_w", "sm_activity")


def log_of(readings: Mapping[str, Timed], reasons: Mapping[str, str] | None = None) -> GpuLog:
    """Of one GPU: values at the times of polls, of which one is before and one at the end of 10 … 12; or samples."""
    log, polled = GpuLog(), {name: timed for name, timed in readings.items() if name not in SAMPLED}
    for time_s in sorted({9.5, 12.0} | {time_s for timed in polled.values() for time_s, _ in timed}):
        values = {name: dict(timed)[time_s] for name, timed in polled.items() if time_s in dict(timed)}
        samples = {name: list(readings[name]) for name in SAMPLED if name in readings}
        log.add(GpuPoll(time_s, values, samples, dict(reasons or {})))  # samples that are there already are left out
    return log


@rows(
    ("reading", "timed", "found"),
    [
        ("utilization", [(10, 0.1), (11, 0.5), (12, 0.7), (12.5, 1.0)], 0.6),  # that at the start is of the time before
        ("temperature_c", [(9, 30), (11, 50), (12, 60)], 55),
        ("sm_activity", [(9.9, 0), (10.1, 0.8), (11, 0.4)], 0.6),
        ("pcie_width", [(10, 4), (11, 16), (12, 8)], 8),
        ("power_limit_w", [(9, 500), (9.5, 400)], 400),
        ("throttle_reasons", [(11, 0x4), (12, 0x44)], {"hw_thermal_slowdown": 0.5, "sw_power_cap": 1}),
        ("throttle_reasons", [(11, 0), (12, 0x8000)], {"unknown_0x8000": 0.5}),
        ("throttle_reasons", [(12, 0)], {}),
        ("throttle_reasons", [], None),
        ("energy_j", [(9, 1000), (10.5, 1100), (11.5, 2100), (13, 2101)], 2000),
        ("energy_j", [(9, 1000), (11, 2000)], None),
        ("energy_j", [(9, 9), (10.5, 9), (11.5, 2)], None),
        ("ecc_corrected", [(9, 3), (11, 4), (12, 5)], 2),
        ("ecc_corrected", [(11, 4), (12, 5)], None),  # not read before the window
        ("ecc_corrected", [(9, 3), (11, 4)], None),  # the last poll could not read it
        ("ecc_corrected", [(9, 3), (12, 2)], None),  # the driver was loaded anew
        ("polls", [(10, 0), (11, 0)], 2),
    ],
)
def test_each_reading_is_that_of_the_window(reading: str, timed: Timed, found: Any) -> None:
    telemetry = log_of({reading: timed}).cut(10, 12)
    assert getattr(telemetry, reading) == pytest.approx(found)
    assert telemetry.unreadable.get(reading) == (NOTHING if found is None else None)


def test_errors_between_two_windows_are_those_of_the_second() -> None:
    log, total = GpuLog(), {"ecc_uncorrected": 5.0}
    assert log.cut(7, 8).ecc_uncorrected is None
    for time_s, end_s, total["ecc_uncorrected"], new in [(9, 9.1, 5, None), (11.9, 12, 5, 0), (12.1, 0, 6, 0),
                                                         (14.9, 15, 8, 3), (14.9, 15, 8, 0)]:  # fmt: skip
        log.add(GpuPoll(time_s, dict(total)))
        if end_s:
            assert log.cut(end_s - 2, end_s).ecc_uncorrected == new


@rows(
    ("reasons", "reading", "why"),
    [
        ({"energy_j": "Not Supported"}, "energy_j", "Not Supported"),
        ({"utilization samples": "Unknown Error"}, "utilization", "Unknown Error"),
        ({"device": "GPU is lost"}, "device", "GPU is lost"),
        ({}, "idle_power_w", "the GPU was never idle before the first window"),
    ],
)
def test_the_reason_is_the_drivers(reasons: dict[str, str], reading: str, why: str) -> None:
    assert log_of({}, reasons).cut(10, 12).unreadable[reading] == why


@rows(
    ("end_s", "problem", "why"),
    [
        (13.9, "", None),
        (14.1, "", "the sampler reads nothing any more: its driver may hang"),
        (11, "the sampler ended", "the sampler ended"),
    ],
)
def test_of_a_window_after_the_last_poll_nothing_is_known(end_s: float, problem: str, why: str | None) -> None:
    log = log_of({"ecc_uncorrected": [(9, 0), (12, 0)]})
    log.add(GpuPoll(12, {"ecc_uncorrected": 0.0}, lost="GPU is lost"))
    telemetry = log.cut(10, end_s, problem)
    assert (telemetry.unreadable.get("device"), telemetry.lost) == (why, "GPU is lost")
    assert telemetry.ecc_uncorrected == (None if why else 0)


@rows(
    ("busy", "watts", "joules", "sms", "why"),
    [
        (0.0, 390, None, None, "0 % busy, although it drew 390 W of 400 W"),
        (0.09, 200, None, None, "9 % busy, although it drew 200 W of 400 W"),
        (0.0, 60, None, 0.5, "0 % busy, although 50 % of its SMs worked"),
        (0.0, 60, 600, None, "0 % busy, although it drew 300 W of 400 W"),
        (0.0, 390, 120, None, None),  # samples still show the second before the window
        (0.0, 199, None, 0.49, None),
        (0.1, 390, None, 0.9, None),
    ],
)
def test_a_gpu_that_works_is_not_said_to_be_idle(
    busy: float, watts: float, joules: float | None, sms: float | None, why: str | None
) -> None:
    energy = [] if joules is None else [(10.5, 0.0), (11.5, joules / 2)]
    activity = [] if sms is None else [(11.0, sms)]
    found: dict[str, Timed] = {"utilization": [(11, busy)], "power_w": [(11, watts)], "sm_activity": activity}
    telemetry = log_of({**found, "energy_j": energy, "power_limit_w": [(11, 400)]}).cut(10, 12)
    assert telemetry.unreadable.get("utilization") == why
    assert (telemetry.utilization is None) == bool(why)


@rows(
    ("busy", "power", "watts"),
    [
        ([(4, 0), (6, 0), (8, 1)], [(4.5, 60), (5.5, 61), (6.9, 70), (7.5, 300), (8.5, 300)], 61),
        ([(4, 0), (6, 0), (8, 0.01)], [(7.5, 300)], None),
        ([(1, 0)], [(7.5, 300)], None),
    ],
)
def test_idle_power_is_that_beside_no_work(busy: Timed, power: Timed, watts: float | None) -> None:
    assert log_of({"utilization": busy, "power_w": power}).power_while_idle() == watts


def test_a_clock_that_is_set_back_costs_no_reading_of_later_windows() -> None:
    log = GpuLog()
    for total, time_s in enumerate([999.0, 1000.0, 1001.0, 900.0, 901.0, 902.0, 903.0]):
        values = {"temperature_c": 61.0, "utilization": 0.9, "ecc_corrected": 4.0 + total, "energy_j": 7.0 * total}
        log.add(GpuPoll(time_s, values))
    found = log.cut(900.5, 902.5)
    assert (found.polls, found.temperature_c, found.utilization) == (2, 61, 0.9)
    assert (found.ecc_corrected, found.energy_j) == (6, 14), "no error is lost"


def test_no_line_is_lost_where_the_sampler_begins_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "true")
    path, new = tmp_path / "lines", tmp_path / "new"
    lines = [msgspec.json.encode([GpuPoll(float(second))]) + b"\n" for second in range(1, 7)]
    written = b"".join(lines)
    with closing(Sampler(["GPU-a"], path)) as sampler:
        for file, part in [(path, written[:25]), (path, written[25:63]), (new, written[63:88]), (path, written[88:])]:
            with file.open("ab") as opened:
                opened.write(part)
            if file == new:
                new.replace(path)
            sampler.read() if len(part) == 25 else None
        assert sampler.process is not None
        assert sampler.process.wait(5) == 0
        assert sampler.read() == "the sampler ended with exit code 0"
    assert sampler.logs["GPU-a"].cut(0, 6).polls == 6
