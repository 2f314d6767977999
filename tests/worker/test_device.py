"""Devices: timing, and what they refuse."""

from __future__ import annotations

import time

import pytest

from pytest_ddpscale.worker.device import CpuDevice, open_device


def test_cpu_steps_are_timed_by_the_wall_clock() -> None:
    timing = CpuDevice().time_steps(lambda: time.sleep(0.02), 5)
    assert len(timing.step_s) == 5
    assert all(0.02 <= step_s < 1 for step_s in timing.step_s)
    assert timing.block_s >= 0.1


def test_a_cpu_that_sleeps_is_not_busy_and_one_that_computes_is() -> None:
    def compute() -> None:
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    idle = CpuDevice().time_steps(lambda: time.sleep(0.1), 3).utilization
    busy = CpuDevice().time_steps(compute, 3).utilization
    assert idle is not None
    assert busy is not None
    # Both get less of a core that others use too, so they are compared with each other.
    assert idle < 0.1
    assert busy > 3 * idle


def test_a_cpu_does_not_count_what_tensors_hold() -> None:
    assert CpuDevice().allocated_bytes() == 0


def test_fp16_is_refused_on_cpu_in_words() -> None:
    with pytest.raises(RuntimeError, match="fp16 needs a GPU; expected fp32 or bf16"):
        CpuDevice().check("fp16")
    CpuDevice().check("bf16")


def test_a_rank_without_a_gpu_is_refused_in_words() -> None:
    import torch

    with pytest.raises(RuntimeError, match="has no GPU: torch sees"):
        open_device("cuda", torch.cuda.device_count())
