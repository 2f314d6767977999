"""Asking the sampler never raises and never hangs, whatever becomes of it."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from pytest_ddpscale.telemetry.link import Sampler
from tests.nvml_stand_in.machine import A100, DRIVER_NOT_LOADED, HANG, PlayedMachine, uuid_of
from tests.telemetry.sampled import cut, ends_within, is_running, sampler_on, wait_until

HANGING = dataclasses.replace(A100, failures={"any": HANG})


def pid_of(sampler: Sampler) -> int:
    assert sampler.pid is not None
    return sampler.pid


def test_between_rare_polls_no_sample_is_lost_nor_taken_twice(machine: PlayedMachine) -> None:
    start = round(time.time() + 0.5, 1)
    machine.play([dataclasses.replace(A100, utilization_changes=[(start + 0.35, 80), (start + 0.65, 0)])])
    bare = uuid_of(0).removeprefix("GPU-")  # as torch has it
    with sampler_on(machine, [bare], poll_s=60) as sampler:
        wait_until(start + 1.01)
        windows = [(start, start + 0.5), (start + 0.5, start + 1.0), (start, start + 1.0)]
        first, second, whole = cut(sampler, [(bare, *window) for window in windows])
    assert first.utilization == pytest.approx(2 * 0.8 / 5)
    assert second.utilization == pytest.approx(0.8 / 5)
    assert whole.utilization == pytest.approx(3 * 0.8 / 10)


def test_what_is_not_sampled_and_no_driver_are_answered_by_the_reason(machine: PlayedMachine) -> None:
    machine.play([A100], {"nvmlInit": DRIVER_NOT_LOADED})
    now = time.time()
    with sampler_on(machine) as sampler:
        known, unknown = cut(sampler, [(uuid_of(0), now - 1, now), ("GPU-other", now - 1, now)])
        pid = pid_of(sampler)
    assert "DriverNotLoaded" in known.unreadable["device"]
    assert unknown.unreadable == {"device": "not one of the sampled GPUs"}
    assert not is_running(pid)
    assert sampler.cut([(uuid_of(0), now - 1, now)]) == ()
    assert "closed" in sampler.problem


def test_a_driver_that_hangs_is_waited_for_once(machine: PlayedMachine) -> None:
    machine.play([A100])
    now = time.time()
    with sampler_on(machine) as sampler:
        machine.play([HANGING])
        began = time.monotonic()
        assert sampler.cut([(uuid_of(0), now - 1, now)], timeout_s=0.3) == ()
        assert 0.25 < time.monotonic() - began < 2
        assert "in time" in sampler.problem
        began = time.monotonic()
        sampler.mark()
        assert sampler.cut([(uuid_of(0), now - 1, now)], timeout_s=30) == ()
        assert time.monotonic() - began < 1
        pid = pid_of(sampler)
    assert ends_within(pid, 5)


def test_an_answer_that_was_late_is_not_taken_for_the_next(machine: PlayedMachine) -> None:
    machine.play([A100])
    now = time.time()
    with sampler_on(machine) as sampler:
        pid = pid_of(sampler)
        os.kill(pid, signal.SIGSTOP)
        assert sampler.cut([(uuid_of(0), now - 1, now)], timeout_s=0.1) == ()
        os.kill(pid, signal.SIGCONT)
        deadline_s = time.monotonic() + 10
        found = sampler.cut([(uuid_of(0), now - 2, now)])
        while not found and time.monotonic() < deadline_s:
            time.sleep(0.02)
            found = sampler.cut([(uuid_of(0), now - 2, now)])
    assert [one.started_unix_s for one in found] == [now - 2]


def test_a_sampler_that_was_killed_answers_nothing_and_says_so(machine: PlayedMachine) -> None:
    machine.play([A100])
    with sampler_on(machine) as sampler:
        os.kill(pid_of(sampler), signal.SIGKILL)
        assert ends_within(pid_of(sampler), 5)
        for _ in range(2):
            assert sampler.cut([(uuid_of(0), 1, 2)]) == ()
            sampler.mark()
            assert "ended with exit code -9" in sampler.problem


def test_a_sampler_that_cannot_start_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with closing(Sampler([uuid_of(0)])) as sampler:
        assert "did not start" in sampler.problem
        sampler.mark()
        assert sampler.cut([(uuid_of(0), 1, 2)]) == ()
        assert "did not start" in sampler.problem


def test_a_sampler_in_a_driver_that_hangs_ends_with_its_parent(machine: PlayedMachine) -> None:
    machine.play([HANGING])
    program = """
import sys, time
from pytest_ddpscale.telemetry.link import Sampler
sampler = Sampler([sys.argv[1]])
assert sampler.cut([(sys.argv[1], 1, 2)], timeout_s=0.7) == ()
assert "in time" in sampler.problem, sampler.problem
foreign = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
assert not foreign & {"pynvml", "torch"}, foreign
print(sampler.pid, flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", program, uuid_of(0)]
    with subprocess.Popen(command, env=machine.environment(), stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        pid = int(rank.stdout.readline())
        assert is_running(pid)
        rank.kill()
    assert ends_within(pid, 10)


def test_a_sampler_whose_parent_ended_before_it_began_ends_at_once(machine: PlayedMachine) -> None:
    machine.play([HANGING])
    command = [sys.executable, "-m", "pytest_ddpscale.telemetry.sampling", uuid_of(0), "1", "1"]
    with subprocess.Popen(command, env=machine.environment(), stdin=subprocess.PIPE) as sampler:
        assert sampler.wait(10) == 0
