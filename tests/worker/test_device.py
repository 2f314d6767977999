"""Devices: timing of steps and of the forward passes within, memory, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.records import RankMemory
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.device import CpuDevice, Forwards, be_ended_first, open_device, resident_memory
from tests.builders.trained import TIMEOUT, TINY, study

from .ranks import on_two_ranks

KIB, MIB = 2**10, 2**20
ACCUMULATING = Arm("ddp", 1, 4, variant=Variant(accumulation_steps=2))
ALONE, INFER = Arm("alone", 1, 2), Arm("infer", 1, 2)
ARMS = (ALONE, Arm("each", 1, 2), Arm("no_sync", 1, 2), Arm("ddp", 1, 2), ACCUMULATING, INFER)


class Slow(nn.Module):
    def forward(self) -> None:
        time.sleep(0.02)


def test_a_cpu_times_steps_by_the_wall_clock_and_in_them_all_passes_of_the_model() -> None:
    model = Slow()

    def sleep() -> None:
        for _ in range(2):
            model()
            time.sleep(0.05)

    def compute() -> None:
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    timing, busy = CpuDevice().time_steps(sleep, 3, Forwards(model, 2)), CpuDevice().time_steps(compute, 3)
    assert [0.14 <= step_s < 1 for step_s in timing.step_s] == [True] * 3
    assert timing.block_s >= 3 * 0.14
    assert 6 * 0.02 <= (timing.forward_s or 0) < 6 * 0.05
    # Both get less of a core that others use too, so they are compared with each other.
    assert (busy.utilization or 0) > 3 * (timing.utilization or 0)
    assert (timing.utilization or 0) < 0.1
    assert CpuDevice().allocated_bytes() == 0, "of what tensors hold a CPU knows nothing"


class Asked(nn.Module):
    """A model that only says that it was asked."""

    def __init__(self, asked: list[str]) -> None:
        super().__init__()
        self.asked = asked

    def forward(self) -> None:
        self.asked.append("step")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torch.cuda is asked, of a GPU that is not there. How a real one is timed is tests/integration's."""
    asked: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            asked.append("event")

        def record(self) -> None:
            asked.append("record")
            self.at = asked.count("step")

        def elapsed_time(self, end: Event) -> float:
            return 1000.0 * (end.at - self.at)

    answers: dict[str, Any] = {
        "device_count": 1, "set_device": None, "reset_peak_memory_stats": None, "synchronize": None,
        "max_memory_allocated": 0, "mem_get_info": (300, 1000), "memory_reserved": 500, "max_memory_reserved": 550,
        "get_arch_list": ["sm_80"],
        "get_device_properties": SimpleNamespace(name="Tested GPU", uuid="0", major=8, minor=0),
    }  # fmt: skip

    def answer(name: str) -> Any:
        asked.append(name)
        return answers[name]

    for name in answers:
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: answer(name))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return asked


def test_a_gpu_starts_its_clock_when_it_is_idle_and_stops_it_when_it_is_done(asked: list[str]) -> None:
    """Of forward passes too, by events that are there before."""
    device, model = open_device("cuda", 0), Asked(asked)
    without, within = (None, 3, ["step", "record"]), (Forwards(model, 1), 7, ["record", "step", "record", "record"])
    for forwards, events, of_step in (without, within):
        asked.clear()
        timing = device.time_steps(model, 2, forwards)
        timed = ["reset_peak_memory_stats", *["event"] * events, "synchronize", "record", *of_step * 2, "synchronize"]
        assert asked == [*timed, "max_memory_allocated"]
        assert (timing.step_s, timing.block_s, timing.unread) == ((1.0, 1.0), 2.0, {})
        assert timing.forward_s == (2.0 if forwards else None)


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize(("passes", "made"), [(2, 1), (1, 2), (1, 0)])
def test_another_number_of_passes_is_no_reading(
    asked: list[str], device_type: DeviceType, passes: int, made: int
) -> None:
    model = Asked(asked)

    def step() -> None:
        for _ in range(made):
            model()

    timing = open_device(device_type, 0).time_steps(step, 3, Forwards(model, passes))
    saw = f"hooks on the model saw {3 * made} forward passes begin and {3 * made} end; expected {3 * passes}"
    assert (timing.forward_s, timing.unread) == (None, {"forward_s": saw})


def test_of_a_gpu_all_counts_that_is_in_use_with_torch_at_its_peak(asked: list[str]) -> None:
    # 700 are in use, 200 of them by NCCL, CUDA and others.
    assert open_device("cuda", 0).memory_held() == RankMemory(own_bytes=750, total_bytes=1000)


@pytest.mark.parametrize(
    ("broken", "local_rank", "error", "why"),
    [
        ("init", 1, RuntimeError("The NVIDIA driver is too old\nPlease update it"),
         r"local rank 1 has no GPU: torch sees 1 \(The NVIDIA driver is too old\)$"),
        ("init", 2, AssertionError("Torch not compiled with CUDA"),
         r"local rank 2 has no GPU: torch sees 1 \(Torch not compiled with CUDA\)$"),
        ("set_device", 0, RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
         r"local rank 0 takes no process \(busy or unavailable\).*nvidia-smi -i"),
        ("set_device", 0, RuntimeError("CUDA error: other"), "^CUDA error: other$"),
    ],
)  # fmt: skip
def test_a_gpu_that_cannot_be_used_says_why(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, broken: str, local_rank: int, error: Exception, why: str
) -> None:
    monkeypatch.setattr(torch.cuda, broken, Mock(side_effect=error))
    with pytest.raises(RuntimeError, match=why):
        open_device("cuda", local_rank)


def test_fp16_is_refused_on_cpu_in_words() -> None:
    with pytest.raises(RuntimeError, match="fp16 needs a GPU; expected fp32 or bf16"):
        CpuDevice().check("fp16")
    CpuDevice().check("bf16")


def test_the_peak_is_told_apart_from_pages_that_others_use_as_well(tmp_path: Path) -> None:
    status = "VmPeak:\t 900 kB\nVmHWM:\t 500 kB\nRssFile:\t 100 kB\nRssShmem:\t 20 kB\n"
    (tmp_path / "status").write_text(status)
    assert resident_memory(tmp_path) == RankMemory(own_bytes=380 * KIB, shared_bytes=120 * KIB)


def test_the_peak_is_of_the_rank_alone_and_what_was_given_back_still_counts() -> None:
    hoard = bytearray(800 * MIB)
    hoard[::4096] = b"x" * len(hoard[::4096])
    rank = (
        "from pytest_ddpscale.worker.device import CpuDevice as Cpu;"
        "print(Cpu().time_steps(lambda: None, 1).peak_memory_bytes)"
    )
    peak = subprocess.run([sys.executable, "-c", rank], capture_output=True, text=True, check=True, timeout=120).stdout
    held = len(hoard)
    assert 50 * MIB < int(peak) < held, "not that of whoever launched it"
    del hoard
    after = CpuDevice().memory_held()
    assert after.own_bytes >= held
    assert after.total_bytes is None


def test_a_rank_is_the_first_that_the_kernel_ends(tmp_path: Path) -> None:
    be_ended_first(tmp_path)
    assert (tmp_path / "oom_score_adj").read_text() == "1000"
    be_ended_first(tmp_path / "nowhere")  # where it cannot be said it is left unsaid


def hooks_on(model: nn.Module) -> int:
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())


def arms_of(*arms: Arm, **settings: Any) -> StudyArms:
    return StudyArms(study(*arms, workload=replace(TINY, **settings)), CpuDevice(), 0, Layout(1, 1), TIMEOUT)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_arms_that_train_uncompiled_time_their_forward_passes_and_keep_no_hook(
    gloo_of_one: None, monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, mode, *, dynamic: model)
    arms = arms_of(*ARMS, compile=is_compiled)
    for arm in ARMS:
        timing = arms.time_block(arm, 4)
        is_timed = not (is_compiled or arm.infers)
        assert timing.unread == {}
        assert (timing.forward_s is not None) == is_timed
        assert is_timed <= (0 < (timing.forward_s or 0) < timing.block_s)
        assert hooks_on(arms._replicas.of(arm).weights.model) == hooks_on(arms.model) == 0
    arms.close()


def test_an_exception_in_any_part_of_a_step_leaves_no_hook(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = arms_of(ALONE)
    arms.time_block(ALONE, 1)
    # Behind the forward pass, and within it.
    for place, name in ((nn.functional, "cross_entropy"), (nn.Conv2d, "forward")):
        usual = getattr(place, name)

        def fail(*inputs: Any, usual: Any = usual) -> Any:
            if hooks_on(arms.model):
                raise torch.OutOfMemoryError
            return usual(*inputs)

        monkeypatch.setattr(place, name, fail)
        with pytest.raises(torch.OutOfMemoryError):
            arms.time_block(ALONE, 4)
        assert hooks_on(arms.model) == 0
    arms.close()


class OftenLate(CpuDevice):
    """Of rank 1: before each timed step it does something else for a while."""

    late_s = 0.05

    def time_steps(self, step: Any, steps: int, forwards: Forwards | None = None) -> Any:
        def late() -> None:
            time.sleep(self.late_s)
            step()

        return super().time_steps(late, steps, forwards)


def _one_late(rank: int) -> tuple[float, float]:
    arm = Arm("ddp", 2, 2)
    arms = StudyArms(study(arm), OftenLate() if rank else CpuDevice(), rank, Layout(1, 2), TIMEOUT)
    timing = arms.time_block(arm, 8)
    arms.close()
    assert timing.forward_s is not None
    return timing.block_s / 8, timing.forward_s / 8


def test_a_rank_that_waits_for_a_late_one_keeps_its_own_pace(tmp_path: Path) -> None:
    (step_s, forward_s), (late_step_s, _) = on_two_ranks(_one_late, tmp_path)
    assert step_s > 0.8 * OftenLate.late_s, "it waited"
    assert late_step_s > OftenLate.late_s
    assert forward_s < step_s - 0.8 * OftenLate.late_s, "not in the forward passes"
