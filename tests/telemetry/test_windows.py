"""A window's readings are those of the window, and what is not known of it is None with a reason."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_ddpscale.telemetry.sampler import GpuPoll
from pytest_ddpscale.telemetry.windows import GpuLog, Sampler
from tests.rows import rows

SAMPLED = ("utilization", "power_w", "sm_activity")
LIMIT = "power_limit_w 9:400"


def log_of(*told: str, reasons: dict[str, str] | None = None) -> GpuLog:
    """Of one GPU: readings with TIME:VALUE of polls, one before and one at the end of 10 … 12, or of samples."""
    values, samples = dict[float, dict[str, float]]({9.5: {}, 12.0: {}}), dict[str, list[tuple[float, float]]]()
    for reading, *timed in map(str.split, told):
        for time_s, _, value in (study.partition(":") for study in timed):
            if reading in SAMPLED:
                samples.setdefault(reading, []).append((float(time_s), float(value)))
            else:
                values.setdefault(float(time_s), {})[reading] = float(value)
    log = GpuLog()
    for unix_s in sorted(values):
        log.add(GpuPoll(unix_s, values[unix_s], samples, reasons or {}))  # samples that are there already are left out
    return log


@rows(
    ("told", "found"),
    [
        ("utilization 10:0.1 11:0.5 12:0.7 12.5:1", 0.6),  # that at the start is of the time before
        ("temperature_c 9:30 11:50 12:60", 55),
        ("sm_activity 9.9:0 10.1:0.8 11:0.4", 0.6),
        ("pcie_width 10:4 11:16 12:8", 8),
        ("power_limit_w 9:500 9.5:400", 400),
        ("throttle_reasons 11:4 12:68", {"hw_thermal_slowdown": 0.5, "sw_power_cap": 1}),
        ("throttle_reasons 12:0", {}),
        ("throttle_reasons", None),
        ("energy_j 9:1000 10.5:1100 11.5:2100 13:2101", 2000),
        ("energy_j 9:1000 11:2000", None),
        ("energy_j 9:9 10.5:9 11.5:2", None),
        ("energy_j 9:9 10.5:9 11.5:9", None),
        ("ecc_corrected 9:3 11:4 12:5", 2),
        ("ecc_corrected 11:4 12:5", None),  # not read before the window
        ("ecc_corrected 9:3 11:4", None),  # the last poll could not read it
        ("ecc_corrected 9:3 12:2", None),  # the driver was loaded anew
        ("polls 10:1 11:1", 2),
    ],
)
def test_each_reading_is_that_of_the_window(told: str, found: Any) -> None:
    telemetry, reading = log_of(told).cut(10, 12), told.split()[0]
    assert getattr(telemetry, reading) == pytest.approx(found)
    assert telemetry.unreadable.get(reading) == ("no sample in the window" if found is None else None)


def test_errors_between_two_windows_are_those_of_the_second() -> None:
    log, new = GpuLog(), []
    for time_s, total in [(9, 5), (11.9, 5), (12.1, 6), (14.9, 8), (15, 8)]:
        log.add(GpuPoll(time_s, {"ecc_uncorrected": total}))
        new.append(None if time_s == 12.1 else log.cut(time_s - 1, time_s).ecc_uncorrected)
    assert new == [None, 0, None, 3, 0], "the first poll is in the first window"


def test_errors_that_a_window_does_not_tell_are_those_of_the_next() -> None:
    log = GpuLog()
    for time_s, total in [(9, 5), (12, 8), (13, 8)]:
        log.add(GpuPoll(time_s, {"ecc_uncorrected": total}))
    assert [log.cut(11, 12, tells_errors=False).ecc_uncorrected, log.cut(12, 13).ecc_uncorrected] == [3, 3]


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
    assert log_of(reasons=reasons).cut(10, 12).unreadable[reading] == why


@rows(
    ("end_s", "problem", "why"),
    [
        (13.9, "", None),
        (14.1, "", "the sampler reads nothing any more: its driver may hang"),
        (11, "the sampler ended", "the sampler ended"),
    ],
)
def test_of_a_window_after_the_last_poll_nothing_is_known(end_s: float, problem: str, why: str | None) -> None:
    telemetry = log_of("ecc_uncorrected 9:0 12:0").cut(10, end_s, problem)
    assert telemetry.unreadable.get("device") == why
    assert telemetry.ecc_uncorrected == (None if why else 0)


@rows(
    ("told", "why"),
    [
        (["utilization 11:0", "power_w 11:390", LIMIT], "0 % busy, although it drew 390 W of 400 W"),
        (["utilization 11:0.09", "power_w 11:200", LIMIT], "9 % busy, although it drew 200 W of 400 W"),
        (["utilization 11:0", "sm_activity 11:0.5"], "0 % busy, although 50 % of its SMs worked"),
        (["utilization 11:0", "energy_j 10.5:0 11.5:300", LIMIT], "0 % busy, although it drew 300 W of 400 W"),
        (["utilization 11:0 12:1", "power_w 11:300", LIMIT], "50 % busy, although it drew 300 W of 400 W"),
        (["utilization 11:0 12:1", "power_w 11:299", LIMIT], None),  # as much as the other half may draw
        (["utilization 10.5:0 11:1 11.5:1 12:1", "power_w 11:399", LIMIT], None),  # began before the window
        # samples still show the second before the window
        (["utilization 11:0", "energy_j 10.5:0 11.5:60", "power_w 11:390", LIMIT], None),
        (["utilization 11:0", "power_w 11:199", "sm_activity 11:0.49", LIMIT], None),
        (["utilization 11:0.1", "power_w 11:390", "sm_activity 11:0.9", LIMIT], None),
    ],
)
def test_a_gpu_that_works_is_not_said_to_be_idle(told: list[str], why: str | None) -> None:
    telemetry = log_of(*told).cut(10, 12)
    assert telemetry.unreadable.get("utilization") == why
    assert (telemetry.utilization is None) == bool(why)


@rows(
    ("busy", "power", "watts"),
    [
        ("utilization 4:0 6:0 8:1", "power_w 4.5:60 5.5:61 6.9:70 7.5:300 8.5:300", 61),
        ("utilization 4:0 6:0 8:0.01", "power_w 7.5:300", None),
        ("utilization 1:0", "power_w 7.5:300", None),
    ],
)
def test_idle_power_is_that_beside_no_work(busy: str, power: str, watts: float | None) -> None:
    assert log_of(busy, power).power_while_idle() == watts


def test_a_clock_that_is_set_back_costs_no_reading_of_later_windows() -> None:
    log = GpuLog()
    for number, time_s in enumerate([999.0, 1000.0, 1001.0, 900.0, 901.0, 902.0, 903.0]):
        log.add(GpuPoll(time_s, {"utilization": 0.9, "ecc_corrected": number, "energy_j": 7.0 * number}))
    found = log.cut(900.5, 902.5)
    assert (found.polls, found.utilization, found.energy_j) == (2, 0.9, 14)
    assert found.ecc_corrected == 6, "none is lost"


def test_no_line_is_lost_where_the_sampler_begins_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "true")
    path, new = tmp_path / "lines", tmp_path / "new"
    written = b"".join(msgspec.json.encode(GpuPoll(float(second))) + b"\n" for second in range(1, 7))
    with closing(Sampler("GPU-a", path)) as sampler:
        for file, part in [(path, written[:25]), (path, written[25:63]), (new, written[63:88]), (path, written[88:])]:
            with file.open("ab") as opened:
                opened.write(part)
            if file == new:
                new.replace(path)
            sampler.read() if len(part) == 25 else None
        assert sampler.process is not None
        assert sampler.process.wait(5) == 0
        assert sampler.read() == "the sampler ended with exit code 0"
    assert sampler.log.cut(0, 6).polls == 6
